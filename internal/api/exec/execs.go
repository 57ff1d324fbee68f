package exec

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// The numbers of an exec call.
const (
	defaultTimeout   = 60 * time.Second
	defaultOutputMax = 1 << 20  // bytes of each stream in a reply
	maxOutputMax     = 16 << 20 // that a caller may ask for
)

// executionHeader names an execution before its reply is there.
const executionHeader = "X-Execution-Id"

// ExecBody is what is to be run: a command, or a tool with its input.
type ExecBody struct {
	Command         *Argv             `json:"command,omitempty"`
	Tool            string            `json:"tool,omitempty" maxLength:"64" doc:"A registered tool, instead of a command."`
	Input           json.RawMessage   `json:"input,omitempty" doc:"The tool's input, which its schema admits."`
	WorkingDir      string            `json:"workingDir,omitempty" maxLength:"4096" doc:"That of the context when absent; a relative one is beneath the workspace."`
	TimeoutMs       *int64            `json:"timeoutMs,omitempty" minimum:"1000" maximum:"600000" doc:"Between 1 s and 10 min; 60,000 when absent, and none for a detached execution. It bounds the wait for its turn, too."`
	Env             map[string]string `json:"env,omitempty" doc:"Laid over the variables of the context."`
	Stdin           *string           `json:"stdin,omitempty" doc:"What it reads, as text. Without this and its siblings it reads an end of file."`
	StdinBase64     *string           `json:"stdinBase64,omitempty" doc:"What it reads, as bytes."`
	StdinStream     bool              `json:"stdinStream,omitempty" doc:"It reads what the stdin call sends."`
	Detached        bool              `json:"detached,omitempty" doc:"It runs beside others, and the call does not wait for it."`
	TTY             bool              `json:"tty,omitempty" doc:"It has a terminal: all its output is stdout."`
	Rows            uint16            `json:"rows,omitempty" maximum:"65535"`
	Cols            uint16            `json:"cols,omitempty" maximum:"65535"`
	GraceMs         *int64            `json:"graceMs,omitempty" minimum:"0" maximum:"60000" doc:"How long after SIGTERM, at a timeout or a cancel, SIGKILL follows; 2,000 when absent."`
	RequireApproval bool              `json:"requireApproval,omitempty" doc:"It waits until it is approved."`
	Stream          bool              `json:"stream,omitempty" doc:"Answer with an event stream, as with \"Accept: text/event-stream\"."`
	MaxOutputBytes  *int64            `json:"maxOutputBytes,omitempty" minimum:"0" maximum:"16777216" doc:"Of each stream in the reply, from its beginning; 1 MiB when absent."`
	Encoding        string            `json:"encoding,omitempty" enum:"auto,base64" doc:"auto writes output as text where it is UTF-8."`
}

type execInput struct {
	api.SessionPath
	api.Idempotent
	Accept string `header:"Accept" hidden:"true"`
	Body   ExecBody
}

func (h *handler) execs(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "exec", Method: http.MethodPost, Path: sessionPath + "/exec", Page: Reply{},
		Scope: ScopeWrite, Summary: "Execute, charged against the budget",
		Description: "One execution runs at a time; the next waits for its turn, as long as its timeout. One that arrives while the session rotates waits for the fresh sandbox. " +
			"The reply comes when the program has ended, whatever its exit code; children that it leaves behind do not hold it open. " +
			"A detached execution, and one that waits for approval, are answered at once, with 202. A caller that leaves does not end the execution. " +
			"With stream or \"Accept: text/event-stream\" the answer is a stream of events in data lines, by type: stdout and stderr (data, encoding, offset in both streams together), exit, done (the reply without the output), error. " +
			"The id of an event is the offset behind it: with it the output call goes on after a cut.",
	}, h.exec)
}

// request reads an exec.
func (b *ExecBody) request() (out engine.ExecRequest, err error) {
	out.Spec = sojourn.ExecSpec{
		Dir: b.WorkingDir, Env: b.Env, Grace: sojourn.DefaultExecGrace, Detached: b.Detached,
		TTY: b.TTY, Rows: b.Rows, Cols: b.Cols, Ask: b.RequireApproval,
	}
	switch {
	case b.Command != nil && b.Tool != "":
		return out, sojourn.Errorf(sojourn.CodeInvalid, "An execution has either a command or a tool.")
	case b.Command != nil && b.Input != nil:
		return out, sojourn.Errorf(sojourn.CodeInvalid, "input: only a tool has it.")
	case b.Command != nil:
		out.Spec.Argv = b.Command.args
	case b.Tool != "":
		out.Tool, out.ToolInput = b.Tool, b.Input
	default:
		return out, sojourn.Errorf(sojourn.CodeInvalid, "command: is required.")
	}
	if b.TimeoutMs != nil {
		out.Spec.Timeout = time.Duration(*b.TimeoutMs) * time.Millisecond
	} else if !b.Detached {
		out.Spec.Timeout = defaultTimeout
	}
	if b.GraceMs != nil {
		out.Spec.Grace = time.Duration(*b.GraceMs) * time.Millisecond
	}
	if (b.Rows != 0 || b.Cols != 0) && !b.TTY {
		return out, sojourn.Errorf(sojourn.CodeInvalid, "rows and cols: only a terminal has a size.")
	}
	out.Spec.Stdin, out.Input, err = b.stdin()
	return out, err
}

// stdin reads what the exec is to read.
func (b *ExecBody) stdin() (mode sojourn.StdinMode, data []byte, err error) {
	given := 0
	for _, is := range []bool{b.Stdin != nil, b.StdinBase64 != nil, b.StdinStream, b.Tool != ""} {
		if is {
			given++
		}
	}
	switch {
	case given > 1 && b.Tool != "":
		return "", nil, sojourn.Errorf(sojourn.CodeInvalid, "stdin: a tool reads its input.")
	case given > 1:
		return "", nil, sojourn.Errorf(sojourn.CodeInvalid, "At most one of stdin, stdinBase64 and stdinStream.")
	case b.StdinStream:
		return sojourn.StdinStream, nil, nil
	case b.Stdin != nil:
		return sojourn.StdinGiven, []byte(*b.Stdin), nil
	case b.StdinBase64 != nil:
		data, err = base64.StdEncoding.DecodeString(*b.StdinBase64)
		if err != nil {
			return "", nil, sojourn.Errorf(sojourn.CodeInvalid, "stdinBase64: expected base64 with padding.")
		}
		return sojourn.StdinGiven, data, nil
	}
	return sojourn.StdinNone, nil, nil
}

// shape is how much of an output a reply has, and how.
type shape struct {
	most     int64
	always64 bool
}

func (b *ExecBody) shape() shape {
	s := shape{most: defaultOutputMax, always64: b.Encoding == asBase64}
	if b.MaxOutputBytes != nil {
		s.most = *b.MaxOutputBytes
	}
	return s
}

func (h *handler) exec(ctx context.Context, in *execInput) (*huma.StreamResponse, error) {
	request, err := in.Body.request()
	if err != nil {
		return nil, err
	}
	if request.Idempotency, err = in.Of("exec.exec", in.SessionID, in.Body); err != nil {
		return nil, err
	}
	at := ref(ctx, in.SessionID)
	f, x, err := h.engine.StartExec(ctx, at, request)
	if err != nil {
		return nil, err
	}
	stream := in.Body.Stream || api.WantsStream(api.HTTP(ctx))
	switch {
	case x.State == sojourn.ExecParked, x.Spec.Detached && !stream:
		return h.reply(ctx, f, x, in.Body.shape())
	case stream:
		return h.stream(ctx, x, in.Body.shape())
	}
	lasting, end := api.Lasting(ctx)
	defer end()
	if !x.State.Terminal() {
		id := x.ID
		if f, x, err = h.engine.WaitExec(lasting, at, id); err != nil {
			return nil, named(api.Ended(cause(lasting, err)), id)
		}
	}
	return h.reply(ctx, f, x, in.Body.shape())
}

// cause returns why ctx ended, when that is what err says.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

// named tells the caller which execution goes on without it.
func named(err error, id sojourn.ExecID) error {
	e, ok := errors.AsType[*sojourn.Error](err)
	if !ok {
		return err
	}
	out := *e
	out.Details = map[string]string{"executionId": string(id)}
	for k, v := range e.Details {
		out.Details[k] = v
	}
	return &out
}

// reply answers with an exec as it is now: 202 for one that has not ended.
func (h *handler) reply(ctx context.Context, f sojourn.Facts, x sojourn.Exec, s shape) (*huma.StreamResponse, error) {
	body, err := h.replyOf(ctx, f, x, s)
	if err != nil {
		return nil, named(err, x.ID)
	}
	status := http.StatusOK
	if !x.State.Terminal() {
		status = http.StatusAccepted
	}
	return api.Answer(status, body, http.Header{executionHeader: {string(x.ID)}}), nil
}

func (h *handler) replyOf(ctx context.Context, f sojourn.Facts, x sojourn.Exec, s shape) (Reply, error) {
	if err := engine.ExecRefusal(x); err != nil {
		return Reply{}, err
	}
	now := h.engine.Now()
	out := Reply{Outcome: outcomeOf(x, now), Budget: replyBudget(f, now)}
	for _, a := range approvalsOf(f) {
		if a.ExecutionID == string(x.ID) {
			out.Approval = &a
		}
	}
	var err error
	out.Output, err = h.captured(ctx, x, s, &out.Outcome)
	out.Truncated = out.Truncated || x.Result.KeptNote != ""
	return out, err
}

// captured reads what an exec wrote so far. The counts of out come to include it:
// one that runs may have written more since they were taken.
func (h *handler) captured(ctx context.Context, x sojourn.Exec, s shape, out *Outcome) (Output, error) {
	r, err := h.opened(ctx, x)
	if err != nil || r == nil {
		return Output{StdoutEncoding: asText, StderrEncoding: asText}, err
	}
	defer r.Close()
	got, err := capture(r, s.most, s.always64)
	now, _ := r.Sizes()
	out.StdoutBytes, out.StderrBytes = max(out.StdoutBytes, now.Stdout), max(out.StderrBytes, now.Stderr)
	return got, err
}

// outputPatience is how long a reply waits for the output of an exec that is about
// to begin, or that is taken up again after a restart of the server.
const outputPatience = 2 * time.Second

// opened opens the output of an exec; nil for one that has written nothing.
func (h *handler) opened(ctx context.Context, x sojourn.Exec) (*output.Reader, error) {
	silent := x.State.Terminal() && x.State != sojourn.ExecLost && x.Result.Stdout+x.Result.Stderr == 0
	if silent || x.State == sojourn.ExecParked || x.State == sojourn.ExecQueued {
		return nil, nil
	}
	at := ref(ctx, string(x.Session))
	if x.State.Terminal() {
		return h.engine.ExecOutput(ctx, at, x.ID)
	}
	short, cancel := context.WithTimeout(ctx, outputPatience)
	defer cancel()
	r, err := h.engine.ExecOutput(short, at, x.ID)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return nil, nil
	}
	return r, err
}
