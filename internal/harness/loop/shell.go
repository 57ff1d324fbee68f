package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	shellTimeout    = 2 * time.Minute
	shellTimeoutMax = time.Hour
	killAfter       = 2 * time.Second
	readWait        = 20 * time.Second
	readBytes       = 1 << 20
	linger          = 300 * time.Millisecond // for output after the exit
	spoolBytes      = 8 << 20
	ackAfter        = 4 << 20 // of unacknowledged output; until then a crash loses none of it
)

// shellScript runs the command that is its first argument with the best shell
// that is there, both streams in one, so that they stay in order.
const shellScript = `exec 2>&1; exec "$(command -v bash || command -v sh)" -c "$1"`

type shellInput struct {
	Command string `json:"command"`
	Cwd     string `json:"cwd"`
	Timeout int    `json:"timeout_seconds"`
}

func (in shellInput) timeout() time.Duration {
	if in.Timeout <= 0 {
		return shellTimeout
	}
	return min(time.Duration(min(in.Timeout, 1<<20))*time.Second, shellTimeoutMax)
}

func describeShell(in json.RawMessage) (string, string) {
	var v shellInput
	_ = json.Unmarshal(in, &v) // what does not fit is said when the call is done
	return v.Command, ""
}

// prepareShell refuses what need not be started.
func prepareShell(_ context.Context, t *task) (*result, error) {
	in, wrong := read[shellInput](t.input)
	switch {
	case wrong != nil:
		return wrong, nil
	case strings.TrimSpace(in.Command) == "":
		return new(refusal("The command is empty.")), nil
	case strings.ContainsRune(in.Command+in.Cwd, 0):
		return new(refusal("The command has a NUL byte.")), nil
	}
	return nil, nil
}

// quiet keeps programs from waiting for a person.
var quiet = map[string]string{
	"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "DEBIAN_FRONTEND": "noninteractive",
}

// env is the environment of processes in the sandbox.
func (d *drive) env() map[string]string {
	env := maps.Clone(quiet)
	maps.Copy(env, d.job.Env)
	maps.Copy(env, d.job.Runtime.Env)
	env["HOME"] = sandbox.HomePath
	return env
}

func runShell(ctx context.Context, t *task) (result, error) {
	in, wrong := read[shellInput](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	d := t.drive
	// A start must not be broken off: it would not be known whether it took
	// place. The keeper answers at once.
	err := d.link.Start(d.ctx, link.StartParams{
		ProcessID: t.name, Argv: []string{"/bin/sh", "-c", shellScript, "sh", in.Command}, Cwd: resolve(in.Cwd),
		Env: d.env(), Inherit: true, Retain: link.RetainAck, SpoolBytes: spoolBytes,
	})
	if err != nil && !errors.Is(err, link.ErrProcessExists) {
		if refused(err) {
			return refusal("The command could not be started: %s", why(err)), nil
		}
		return result{}, err
	}
	return followShell(ctx, t)
}

// followShell waits for the end of the command, however it was started.
func followShell(ctx context.Context, t *task) (result, error) {
	in, wrong := read[shellInput](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	t.process = true
	f := follower{task: t, timeout: in.timeout(), until: t.call.startedAt().Add(in.timeout())}
	err := f.follow(ctx)
	if errors.Is(err, link.ErrUnknownProcess) {
		return refusal(saidUnknown), nil
	}
	if err != nil {
		return result{}, err
	}
	return f.result(), nil
}

// follower reads a command's output to its end.
type follower struct {
	*task
	out     excerpt
	timeout time.Duration
	until   time.Time
	why     string // why the command was told to end
	last    link.ReadResult
	seq     int64
	unacked int
}

func (f *follower) follow(ctx context.Context) error {
	l, own := f.drive.link, f.drive.ctx
	wait := time.Duration(0)
	for {
		if f.why == "" {
			if err := f.over(ctx, own); err != nil {
				return err
			}
		}
		reading, done := own, func() {}
		if f.why == "" {
			reading, done = context.WithCancel(ctx)
		}
		r, err := l.Read(reading, link.ReadParams{ProcessID: f.name, AfterSeq: f.seq, MaxBytes: readBytes, Wait: min(wait, max(time.Until(f.until), 0))})
		done()
		if err != nil && f.why == "" && ctx.Err() != nil && own.Err() == nil {
			continue // the turn is being ended
		}
		if err != nil {
			return err
		}
		f.take(r)
		if f.unacked > ackAfter {
			if err := l.Ack(own, f.name, f.seq); err != nil {
				return err
			}
			f.unacked = 0
		}
		switch {
		case r.Closed || r.Exited && len(r.Chunks) == 0 && wait == linger:
			return nil
		case r.Exited:
			wait = linger
		case f.why != "" && !time.Now().Before(f.until):
			f.unsure = true // it does not die
			return nil
		default:
			wait = readWait
		}
	}
}

// over tells the command to end when its time is up, or the turn's.
func (f *follower) over(ctx, own context.Context) error {
	grace := killAfter
	switch {
	case own.Err() != nil:
		return context.Cause(own)
	case ctx.Err() != nil:
		f.why = saidCancelled
	case !time.Now().Before(f.until):
		f.why = fmt.Sprintf("The command was ended: it took longer than %v.", f.timeout)
	default:
		return nil
	}
	f.until = time.Now().Add(or(f.drive.job.Grace, defaultGrace))
	_, err := f.drive.link.Terminate(own, f.name, grace)
	return err
}

// take takes in what a read gave.
func (f *follower) take(r link.ReadResult) {
	for _, c := range r.Chunks {
		f.out.add(c.Offset, c.Data)
		f.unacked += len(c.Data)
		f.seq = c.Seq
	}
	f.seq = max(f.seq, r.NextSeq-1)
	f.last = r
}

func (f *follower) result() result {
	r := f.last
	text := strings.TrimRight(f.out.String(), "\n")
	var notes []string
	failed := f.why != ""
	switch {
	case f.why != "":
		notes = append(notes, f.why)
	case r.Failure != "":
		notes, failed = append(notes, "The command could not be run: "+clip(r.Failure, 500)), true
	case r.Signal != "":
		notes, failed = append(notes, "ended by "+clip(r.Signal, 40)), true
	case r.ExitCode != nil && *r.ExitCode != 0:
		notes = append(notes, fmt.Sprintf("exit status %d", *r.ExitCode))
	}
	if f.unsure {
		notes = append(notes, "It may still run.")
	}
	if len(notes) > 0 {
		if text != "" {
			text += "\n"
		}
		text += "[" + strings.Join(notes, " ") + "]"
	}
	return result{output: or(text, "[no output]"), failed: failed}
}

// excerpt keeps the beginning and the end of an output of any length.
type excerpt struct {
	head, tail []byte
	end        int64 // where the output ends, as far as it was seen
	seen       int64 // bytes that came here
}

func (e *excerpt) add(offset int64, data []byte) {
	e.end = max(e.end, offset+int64(len(data)))
	e.seen += int64(len(data))
	e.end = max(e.end, e.seen)
	if n := min(outputHead-len(e.head), len(data)); n > 0 {
		e.head, data = append(e.head, data[:n]...), data[n:]
	}
	const most = maxOutputBytes - outputHead
	e.tail = append(e.tail, data...)
	if len(e.tail) > 4*most { // moved now and then, not at each piece
		e.tail = append([]byte(nil), e.tail[len(e.tail)-most:]...)
	}
}

func (e *excerpt) String() string {
	const most = maxOutputBytes - outputHead
	tail := e.tail[max(0, len(e.tail)-most):]
	left := e.end - int64(len(e.head)) - int64(len(tail))
	if left <= 0 {
		return strings.ToValidUTF8(string(e.head)+string(tail), "\uFFFD")
	}
	return strings.ToValidUTF8(string(e.head), "\uFFFD") + fmt.Sprintf("\n[… %d bytes left out …]\n", left) + strings.ToValidUTF8(string(tail), "\uFFFD")
}
