package operator

import (
	"encoding/json"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// Execution is one process that was started in a session's sandbox, or is to be.
type Execution struct {
	ID        string   `json:"id"`
	SessionID string   `json:"sessionId"`
	Number    int64    `json:"number" doc:"1 for the session's first."`
	State     string   `json:"state" enum:"parked,queued,running,ended,lost,refused" doc:"Parked waits for an approval. Of a lost one nobody knows how it ended."`
	Command   []string `json:"command" doc:"The program and its arguments."`
	Dir       string   `json:"dir,omitempty"`
	Variables []string `json:"variables,omitempty" doc:"The names of its own environment variables."`
	Tool      string   `json:"tool,omitempty"`
	Detached  bool     `json:"detached,omitempty"`
	Hook      bool     `json:"hook,omitempty" doc:"It is the hook before a rotation."`
	TTY       bool     `json:"tty,omitempty"`
	Stdin     string   `json:"stdin,omitempty" enum:"given,stream"`
	TimeoutMs int64    `json:"timeoutMs,omitempty" doc:"Absent for none."`
	GraceMs   int64    `json:"graceMs" doc:"How long after SIGTERM SIGKILL follows."`
	Epoch     int64    `json:"epoch,omitempty" doc:"Of the lease that it started under."`

	QueuedAt  api.Time `json:"queuedAt"`
	StartedAt api.Time `json:"startedAt,omitempty"`
	EndedAt   api.Time `json:"endedAt,omitempty"`

	Ending   string `json:"ending,omitempty" doc:"Why it is being ended."`
	Reason   string `json:"reason,omitempty" doc:"Why it ended other than by itself, or was refused: timeout, cancelled, rotated, paused, closed, budget, out_of_memory, not_started, sandbox_lost, busy, rejected, expired."`
	Outcome  string `json:"outcome,omitempty" enum:"exit,signal,not_started,unknown" doc:"Present when it is over. A refused one was not_started."`
	ExitCode *int   `json:"exitCode,omitempty" doc:"With the outcome exit; also with not_started: 127 when there is no such program, 126 when it cannot be executed."`
	Signal   string `json:"signal,omitempty" doc:"That ended it, such as SIGKILL."`
	Error    string `json:"error,omitempty" doc:"Why it could not be started, for people."`

	DurationMs     int64  `json:"durationMs" doc:"From its start to the exit of its main process."`
	CPUMs          int64  `json:"cpuMs"`
	MaxRSSBytes    int64  `json:"maxRssBytes,omitempty"`
	StdoutBytes    int64  `json:"stdoutBytes" doc:"Written by it so far. Of a lost one: all that is known of."`
	StderrBytes    int64  `json:"stderrBytes"`
	KeptBytes      int64  `json:"keptBytes" doc:"Of both, that can be read."`
	KeptNote       string `json:"keptNote,omitempty" doc:"Why not all of them can, or may: limit, no_space, or lost for what a sandbox had not handed over when it was lost."`
	CostMicroCents int64  `json:"costMicroCents" doc:"What was charged for it."`
}

// execution projects an exec.
func execution(x sojourn.Exec) Execution {
	p, r := x.Spec, x.Result
	out := Execution{
		ID: string(x.ID), SessionID: string(x.Session), Number: x.Number, State: string(x.State),
		Command: p.Argv, Dir: p.Dir, Variables: sortedKeys(p.Env), Tool: p.Tool, Detached: p.Detached, Hook: p.Hook, TTY: p.TTY,
		Stdin: string(p.Stdin), TimeoutMs: p.Timeout.Milliseconds(), GraceMs: p.Grace.Milliseconds(), Epoch: x.Epoch,
		QueuedAt: api.Instant(x.QueuedAt), StartedAt: api.Instant(x.StartedAt), EndedAt: api.Instant(x.EndedAt),
		Ending: string(x.Ending), Reason: string(x.Reason),
		ExitCode: r.Code, Signal: r.Signal, Error: r.Failure,
		DurationMs: r.RunTime.Milliseconds(), CPUMs: r.CPUTime.Milliseconds(), MaxRSSBytes: r.MaxRSS,
		StdoutBytes: r.Stdout, StderrBytes: r.Stderr, KeptBytes: r.Kept, KeptNote: r.KeptNote, CostMicroCents: int64(x.Cost),
	}
	if x.State.Terminal() {
		out.Outcome = outcomeOf(x)
	}
	if err := engine.ExecRefusal(x); err != nil && out.Error == "" {
		out.Error = messageOf(err)
	}
	return out
}

// outcomeOf says how an exec that is over has ended.
func outcomeOf(x sojourn.Exec) string {
	switch {
	case x.State == sojourn.ExecRefused, x.Result.Failure != "":
		return "not_started"
	case x.State == sojourn.ExecLost, x.Reason == sojourn.ExecSandboxLost:
		return "unknown"
	case x.Result.Signal != "":
		return "signal"
	}
	return "exit"
}

// StartExecutionBody is what is to be run: a command, or a tool with its input.
type StartExecutionBody struct {
	Command         []string          `json:"command,omitempty" maxItems:"4096" doc:"The program and its arguments; each arrives as it is given, no shell reads them."`
	Tool            string            `json:"tool,omitempty" maxLength:"64" doc:"A registered tool in place of a command."`
	Input           json.RawMessage   `json:"input,omitempty" doc:"Of the tool."`
	Dir             string            `json:"dir,omitempty" maxLength:"4096" doc:"Absolute or below the workspace; that of the session's context when absent."`
	Env             map[string]string `json:"env,omitempty" doc:"Laid over the variables of the session's context."`
	TimeoutMs       int64             `json:"timeoutMs,omitempty" minimum:"0" doc:"Between 1000 and 600000; a detached one may have none or a longer one. Absent: 60000, or none when detached."`
	GraceMs         *int64            `json:"graceMs,omitempty" minimum:"0" maximum:"60000" doc:"How long after SIGTERM SIGKILL follows when it is ended; 2000 when absent."`
	Detached        bool              `json:"detached,omitempty" doc:"It runs beside others."`
	Stdin           string            `json:"stdin,omitempty" enum:"stream" doc:"With stream its input is what is sent while it is attached to; else its input is stdinData, or ends at once."`
	StdinData       []byte            `json:"stdinData,omitempty" doc:"Its whole input."`
	TTY             bool              `json:"tty,omitempty" doc:"It has a terminal; all its output is stdout then."`
	Rows            uint16            `json:"rows,omitempty"`
	Cols            uint16            `json:"cols,omitempty"`
	RequireApproval bool              `json:"requireApproval,omitempty" doc:"It waits until its interaction is answered."`
}

// defaultExecTimeout bounds an exec that says nothing of its timeout.
const defaultExecTimeout = time.Minute

// request is what the engine is asked for.
func (b StartExecutionBody) request() (engine.ExecRequest, error) {
	if (len(b.Command) == 0) == (b.Tool == "") {
		return engine.ExecRequest{}, sojourn.Errorf(sojourn.CodeInvalid, "command: give either a command or a tool.")
	}
	if b.Stdin != "" && len(b.StdinData) > 0 {
		return engine.ExecRequest{}, sojourn.Errorf(sojourn.CodeInvalid, "stdinData: not with a streamed stdin.")
	}
	in := engine.ExecRequest{
		Spec: sojourn.ExecSpec{
			Argv: b.Command, Dir: b.Dir, Env: b.Env, Timeout: time.Duration(min(b.TimeoutMs, maxMillis)) * time.Millisecond,
			Grace: sojourn.DefaultExecGrace, Detached: b.Detached, Stdin: sojourn.StdinMode(b.Stdin),
			TTY: b.TTY, Rows: b.Rows, Cols: b.Cols, Ask: b.RequireApproval,
		},
		Input: b.StdinData, Tool: b.Tool, ToolInput: b.Input,
	}
	if b.GraceMs != nil {
		in.Spec.Grace = time.Duration(*b.GraceMs) * time.Millisecond
	}
	if len(b.StdinData) > 0 {
		in.Spec.Stdin = sojourn.StdinGiven
	}
	if b.TimeoutMs == 0 && !b.Detached {
		in.Spec.Timeout = defaultExecTimeout
	}
	return in, nil
}

// maxMillis is more than any timeout, and no overflow.
const maxMillis = int64(1) << 43
