package exec

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Outcome says how far an execution is, and truly how it ended.
type Outcome struct {
	ExecutionID string `json:"executionId"`
	Status      string `json:"status" enum:"pending_approval,queued,running,completed,lost,rejected"`
	Outcome     string `json:"outcome,omitempty" enum:"exit,signal,timeout,not_started,unknown" doc:"How it ended: by exiting, by a signal, at its timeout, without having been started, or nobody knows, for its sandbox was lost."`
	ExitCode    *int   `json:"exitCode" doc:"124 after a timeout, 128 and the number of the signal after a signal, 127 or 126 for a program that is missing or cannot be executed; null while it has not ended, when nobody knows, and when anything else kept it from being started: error says what."`
	Signal      string `json:"signal,omitempty" doc:"The signal that ended it, such as SIGKILL."`
	// ProcessExitCode keeps apart what exitCode says for shells and what is true.
	ProcessExitCode *int   `json:"processExitCode,omitempty" doc:"What it exited with after its timeout, when it ended so; else signal says what ended it."`
	Reason          string `json:"reason,omitempty" doc:"Why it ended other than by itself, or was refused: timeout, cancelled, rotated, paused, closed, budget, out_of_memory, not_started, sandbox_lost, busy, rejected, expired."`
	Error           string `json:"error,omitempty" doc:"What went wrong, for people."`
	TimedOut        bool   `json:"timedOut"`
	DurationMs      int64  `json:"durationMs" doc:"From its start to its end, or until now; time in which it was saved with its sandbox is left out."`
	CPUTimeMs       int64  `json:"cpuTimeMs" doc:"Of it and the children that it waited for."`
	MaxRSSBytes     int64  `json:"maxRssBytes"`

	CostCents      int64 `json:"costCents" doc:"What was charged for it, rounded up."`
	CostMicroCents int64 `json:"costMicroCents"`

	StdoutBytes int64  `json:"stdoutBytes" doc:"All that it wrote, so far while it runs. Of a lost one: all that is known of."`
	StderrBytes int64  `json:"stderrBytes"`
	OutputCut   string `json:"outputCut,omitempty" enum:"limit,no_space,lost" doc:"Why not all of its output was kept, or may have been: lost for what a sandbox had not handed over when it was lost. Absent when all was kept."`
}

// Reply is what an exec call answers.
type Reply struct {
	Outcome
	Output
	Budget   ReplyBudget `json:"budget"`
	Approval *Approval   `json:"approval,omitempty" doc:"What it waits for."`
}

// Output is what an execution wrote, as far as the call takes it.
type Output struct {
	Stdout         string `json:"stdout"`
	Stderr         string `json:"stderr"`
	StdoutEncoding string `json:"stdoutEncoding" enum:"utf-8,base64" doc:"base64 when the bytes are not UTF-8."`
	StderrEncoding string `json:"stderrEncoding" enum:"utf-8,base64"`
	Truncated      bool   `json:"truncated" doc:"Not all of it is here: the output call has the rest."`
}

// ReplyBudget is the session's budget after an execution.
type ReplyBudget struct {
	Spent     Usage     `json:"spent"`
	Remaining Remaining `json:"remaining"`
	Exhausted bool      `json:"exhausted" doc:"A limit is reached: the session takes no more executions."`
	Limit     string    `json:"limit,omitempty" enum:"cost,iterations,duration" doc:"Which one."`
}

// Execution is a record of an execution.
type Execution struct {
	Outcome
	SessionID  string    `json:"sessionId"`
	Number     int64     `json:"number" doc:"1 for the first of its session."`
	Command    Argv      `json:"command"`
	Tool       string    `json:"tool,omitempty"`
	WorkingDir string    `json:"workingDir,omitempty" doc:"As it was asked for; absent for that of the context."`
	TimeoutMs  int64     `json:"timeoutMs,omitempty" doc:"Absent for none."`
	Detached   bool      `json:"detached"`
	TTY        bool      `json:"tty,omitempty"`
	Hook       bool      `json:"hook,omitempty" doc:"It is the hook before a rotation: no iteration."`
	QueuedAt   api.Time  `json:"queuedAt"`
	StartedAt  *api.Time `json:"startedAt"`
	EndedAt    *api.Time `json:"endedAt"`
}

// statuses are the words for the states of an exec.
var statuses = map[sojourn.ExecState]string{
	sojourn.ExecParked: "pending_approval", sojourn.ExecQueued: "queued", sojourn.ExecRunning: "running",
	sojourn.ExecEnded: "completed", sojourn.ExecLost: "lost", sojourn.ExecRefused: "rejected",
}

// timeoutCode is the exit code of what ran out of time, as timeout(1) has it.
const timeoutCode = 124

// outcomeOf projects an exec at now.
func outcomeOf(x sojourn.Exec, now time.Time) Outcome {
	r := x.Result
	out := Outcome{
		ExecutionID: string(x.ID), Status: statuses[x.State], Reason: string(x.Reason), Error: r.Failure,
		DurationMs: ran(x, now).Milliseconds(), CPUTimeMs: r.CPUTime.Milliseconds(), MaxRSSBytes: r.MaxRSS,
		CostCents: x.Cost.CentsUp(), CostMicroCents: int64(x.Cost),
		StdoutBytes: r.Stdout, StderrBytes: r.Stderr, OutputCut: r.KeptNote,
	}
	switch {
	case x.State == sojourn.ExecLost, x.Reason == sojourn.ExecSandboxLost:
		out.Outcome, out.Error = "unknown", "The sandbox was lost while it ran: how it ended is unknown."
	case x.State != sojourn.ExecEnded:
	case r.Failure != "":
		out.Outcome, out.ExitCode = "not_started", r.Code
	case r.Signal != "":
		out.Outcome, out.Signal = "signal", r.Signal
		if n := signalNumber(r.Signal); n > 0 {
			out.ExitCode = new(128 + n)
		}
	case r.Code != nil:
		out.Outcome, out.ExitCode = "exit", r.Code
	}
	if x.Reason == sojourn.ExecTimeout {
		out.Outcome, out.TimedOut, out.ExitCode, out.ProcessExitCode = "timeout", true, new(timeoutCode), r.Code
	}
	return out
}

// ran is how long the process of an exec ran, or has run until now.
func ran(x sojourn.Exec, now time.Time) time.Duration {
	switch x.State {
	case sojourn.ExecEnded:
		return x.Result.RunTime
	case sojourn.ExecRunning:
		return max(0, now.Sub(x.StartedAt)-x.Result.Saved)
	case sojourn.ExecLost:
		return max(0, x.EndedAt.Sub(x.StartedAt)-x.Result.Saved)
	}
	return 0
}

func executionOf(x sojourn.Exec, now time.Time) Execution {
	return Execution{
		Outcome: outcomeOf(x, now), SessionID: string(x.Session), Number: x.Number, Command: Argv{args: x.Spec.Argv},
		Tool: x.Spec.Tool, WorkingDir: x.Spec.Dir, TimeoutMs: x.Spec.Timeout.Milliseconds(), Detached: x.Spec.Detached,
		TTY: x.Spec.TTY, Hook: x.Spec.Hook,
		QueuedAt: api.Instant(x.QueuedAt), StartedAt: instant(x.StartedAt), EndedAt: instant(x.EndedAt),
	}
}

func replyBudget(f sojourn.Facts, now time.Time) ReplyBudget {
	b := f.BudgetAt(now)
	limit := b.Exhausted()
	return ReplyBudget{Spent: usageOf(b.Usage), Remaining: remainingOf(b), Exhausted: limit != "", Limit: string(limit)}
}

// signals are the numbers of Linux, where every sandbox is.
var signals = [...]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	16: "SIGSTKFLT", 17: "SIGCHLD", 18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU",
	23: "SIGURG", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 28: "SIGWINCH", 29: "SIGIO",
	30: "SIGPWR", 31: "SIGSYS",
}

// signalNumber returns the number of a signal, 0 for one without. Those without a
// name have their number in it, such as SIG34.
func signalNumber(name string) int {
	if n := slices.Index(signals[:], name); n > 0 {
		return n
	}
	n, err := strconv.Atoi(strings.TrimPrefix(name, "SIG"))
	if err != nil || n < 1 || n > 64 {
		return 0
	}
	return n
}
