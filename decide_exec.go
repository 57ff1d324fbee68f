package sojourn

import (
	"slices"
	"strings"
	"time"
)

// NewExec is what an exec starts from.
type NewExec struct {
	ID    ExecID
	Spec  ExecSpec
	Input []byte // of StdinGiven
	// Interaction is the id of the question that an exec with Ask waits for.
	Interaction InteractionID
	// Request is what that question shows.
	Request any
}

// InteractionLife is how long an approval is waited for.
const InteractionLife = time.Hour

// Execute accepts an exec: it runs at once, when nothing stands in its way, or is
// queued, or parked until it is approved. open is how many execs of the session
// are not terminal. The codes are invalid, too_large, invalid_state,
// budget_exceeded and session_busy.
func (d *Decision) Execute(in NewExec, open int, rate ExecRate) (Exec, error) {
	s := &d.facts.Session
	if err := d.bare(); err != nil {
		return Exec{}, err
	}
	if err := in.check(); err != nil {
		return Exec{}, err
	}
	if s.State != SessionOpen {
		if s.Ending.Reason == StopBudget {
			return Exec{}, Errorf(CodeBudgetExceeded, "The session has reached the %s limit of its budget.", s.Ending.Limit)
		}
		return Exec{}, invalidState(*s, "runs nothing")
	}
	if err := d.affords(); err != nil {
		return Exec{}, err
	}
	if open >= MaxOpenExecs {
		return Exec{}, Errorf(CodeSessionBusy, "The session has %d execs that have not ended.", open)
	}
	s.Execs++
	x := Exec{ID: in.ID, Session: s.ID, Number: s.Execs, State: ExecQueued, Spec: in.Spec, QueuedAt: d.now}
	if len(in.Input) > 0 {
		d.inputs = append(d.inputs, ExecInput{Exec: in.ID, Data: in.Input})
	}
	switch {
	case in.Spec.Ask:
		x.State = ExecParked
		d.putExec(x)
		d.askFor(x, in)
	case d.runnable(x):
		return d.startExec(x, rate), nil
	default:
		d.putExec(x)
		d.order(WorkBench, string(s.ID), d.now)
	}
	return x, nil
}

func (in NewExec) check() error {
	x := in.Spec
	if err := checkArgv("command", x.Argv); err != nil {
		return err
	}
	if err := CheckEnv("env", x.Env); err != nil {
		return err
	}
	switch {
	case x.Timeout == 0 && !x.Detached:
		return Errorf(CodeInvalid, "timeoutMs: an exec that is waited for has a timeout.")
	case x.Timeout != 0 && x.Timeout < MinExecTimeout, x.Timeout > MaxExecTimeout && !x.Detached:
		return Errorf(CodeInvalid, "timeoutMs: between 1000 and 600000.")
	case x.Grace < 0 || x.Grace > MaxExecGrace:
		return Errorf(CodeInvalid, "graceMs: between 0 and 60000.")
	case len(x.Dir) > 4096 || strings.ContainsRune(x.Dir, 0):
		return Errorf(CodeInvalid, "workingDir: must be a path of at most 4,096 bytes.")
	case len(in.Input) > MaxExecInput:
		return Errorf(CodeTooLarge, "stdin: at most %d bytes; stream more.", MaxExecInput)
	case len(in.Input) > 0 && x.Stdin != StdinGiven:
		return Errorf(CodeInvalid, "stdin: given to an exec that does not read it.")
	case x.Stdin != StdinNone && x.Stdin != StdinGiven && x.Stdin != StdinStream:
		return Errorf(CodeInvalid, "stdin: given or stream.")
	}
	return nil
}

func checkArgv(field string, argv []string) error {
	total := 0
	for _, a := range argv {
		total += len(a) + 1
		if strings.ContainsRune(a, 0) {
			return Errorf(CodeInvalid, "%s: an argument contains a NUL.", field)
		}
	}
	switch {
	case len(argv) == 0 || argv[0] == "":
		return Errorf(CodeInvalid, "%s: must name a program.", field)
	case len(argv) > MaxExecArgs || total > MaxExecArgBytes:
		return Errorf(CodeTooLarge, "%s: at most %d arguments of %d bytes together.", field, MaxExecArgs, MaxExecArgBytes)
	}
	return nil
}

// affords refuses an exec that the budget does not admit: with those that run
// counted as if they ended now.
func (d *Decision) affords() error { return d.facts.BudgetAt(d.now).Admit() }

// charge is what x costs when its process ran for so long.
func (x Exec) charge(ran time.Duration) Charge {
	c := Charge{Cost: x.Rate.Cost(ran), Iterations: 1}
	if x.Spec.Hook {
		c.Iterations = 0
	}
	return c
}

// lostLate is how long a lost exec may be charged beyond what it was allowed to run.
const lostLate = 30 * time.Second

// bounded is how long a lost exec can have run that nobody watched for so long: its
// keeper would have ended it at its timeout.
func (x Exec) bounded(ran time.Duration) time.Duration {
	if x.Spec.Timeout > 0 {
		return min(ran, x.Spec.Timeout+x.Spec.Grace+lostLate)
	}
	return ran
}

// runnable reports whether x could start now.
func (d *Decision) runnable(x Exec) bool {
	s, l := d.facts.Session, d.facts.Lease
	switch {
	case s.State != SessionOpen || l == nil || !l.Live(d.now):
		return false
	case x.Spec.Hook:
		return true
	case s.Rotating() || !d.now.Before(d.facts.RotateAt()):
		return false
	case x.Spec.Detached:
		return len(d.facts.Running()) < MaxDetachedExecs
	}
	ahead := slices.ContainsFunc(d.facts.Execs, func(o Exec) bool {
		return o.State == ExecQueued && o.Foreground() && o.Number < x.Number
	})
	return !d.facts.busy() && !ahead
}

// startExec moves x to running: its process is started after the commit.
func (d *Decision) startExec(x Exec, rate ExecRate) Exec {
	x.State, x.StartedAt, x.Epoch, x.Rate = ExecRunning, d.now, d.facts.Lease.Epoch, rate
	d.putExec(x)
	d.used()
	d.emit(EventExecStarted, "", "", map[string]any{
		"executionId": x.ID, "command": clippedArgv(x.Spec.Argv), "detached": x.Spec.Detached, "tool": x.Spec.Tool, "hook": x.Spec.Hook,
	})
	return x
}

// used says that the sandbox may hold what no checkpoint does.
func (d *Decision) used() {
	if l := d.facts.Lease; l != nil && l.State == LeaseHeld {
		next := l.Touch(d.now)
		next.VisitedAt = d.now
		d.putLease(next)
	}
}

// shownArgs and shownArg bound what an event shows of an argv.
const (
	shownArgs = 32
	shownArg  = 256
)

func clippedArgv(argv []string) []string {
	out := make([]string, 0, min(len(argv), shownArgs))
	for _, a := range argv[:min(len(argv), shownArgs)] {
		if len(a) > shownArg {
			a = a[:shownArg] + "…"
		}
		out = append(out, strings.ToValidUTF8(a, "?"))
	}
	return out
}

// StartExecs starts what waits and may run, and refuses what the budget or the
// session's state does not admit any more. The foreground execs come in order, one
// at a time.
func (d *Decision) StartExecs(rate ExecRate) (started []Exec) {
	for _, x := range slices.Clone(d.facts.Execs) {
		switch s := d.facts.Session; {
		case s.State == SessionClosed:
			d.RefuseExec(x, closedReason(s))
		case x.State != ExecQueued:
		case s.State == SessionPaused:
			d.refuseExec(x, ExecPaused)
		case !d.runnable(x):
		case d.affords() != nil:
			d.refuseExec(x, ExecBudget)
		default:
			started = append(started, d.startExec(x, rate))
		}
	}
	return started
}

// closedReason is why a closed session ends its execs.
func closedReason(s Session) ExecReason {
	if s.Ending.Reason == StopBudget {
		return ExecBudget
	}
	return ExecClosed
}

// RefuseExec refuses an exec that has not started. For another it changes nothing
// and reports false. x was read in the same transaction.
func (d *Decision) RefuseExec(x Exec, why ExecReason) bool {
	if x.State != ExecQueued && x.State != ExecParked {
		return false
	}
	d.refuseExec(x, why)
	return true
}

// refuseExec ends x before it has started, and the approval that it waits for.
func (d *Decision) refuseExec(x Exec, why ExecReason) {
	for _, i := range slices.Clone(d.facts.Open) {
		if i.Exec != x.ID {
			continue
		}
		reason := string(why)
		if d.facts.Session.State == SessionClosed {
			reason = ReasonSessionClosed
		}
		d.resolved(d.expireInteraction(i, reason))
	}
	if now, open := d.facts.execAt(x.ID); open {
		x = now
	}
	if x.State.Terminal() {
		return
	}
	x.State, x.Reason, x.EndedAt = ExecRefused, why, d.now
	d.putExec(x)
	payload := map[string]any{"executionId": x.ID, "reason": why}
	if x.Spec.Hook {
		payload["hook"] = true
	}
	d.emit(EventExecRefused, "", "", payload)
}

// CancelExec asks that an exec ends: one that has not started is refused at once,
// one that runs is ended by whoever drives it. For one that is over it reports
// false.
func (d *Decision) CancelExec(x Exec, why ExecReason, kill bool) bool {
	if d.RefuseExec(x, why) {
		return true
	}
	if x.State != ExecRunning {
		return false
	}
	if x.Ending == "" || kill && !x.Kill {
		if x.Ending == "" {
			x.Ending = why
		}
		x.Kill = x.Kill || kill
		d.putExec(x)
		d.order(WorkBench, string(x.Session), d.now)
	}
	return true
}

// EndExec records how a running exec ended, and charges it, exactly once: for one
// that is over it reports false. A limit that is reached by it closes the session. The
// clock of its keeper has gone on while it was saved.
func (d *Decision) EndExec(id ExecID, r ExecResult, why ExecReason) bool {
	x, ok := d.facts.execAt(id)
	if !ok || x.State != ExecRunning {
		return false
	}
	r.Saved, r.RunTime = x.Result.Saved, max(0, r.RunTime-x.Result.Saved)
	x.State, x.Result, x.Reason = ExecEnded, r, why
	d.overExec(x, r.RunTime)
	d.used()
	return true
}

// loseExecs records that the execs that run have ended with their sandbox.
func (d *Decision) loseExecs() {
	end, why := d.now, ExecSandboxLost
	if l := d.facts.Lease; l != nil && l.State.Terminal() {
		end = l.EndedAt
		if l.EndReason == string(ExecOutOfMemory) {
			why = ExecOutOfMemory
		}
	}
	for { // one may close the session, which loses the others
		running := d.facts.Running()
		if len(running) == 0 {
			return
		}
		x := running[0]
		x.State, x.Reason = ExecLost, why
		d.overExec(x, x.bounded(d.facts.ran(x, end)))
	}
}

// overExec ends x, charges it and says so.
func (d *Decision) overExec(x Exec, ran time.Duration) {
	x.EndedAt = d.now
	c := x.charge(ran)
	x.Cost = c.Cost
	d.putExec(x)
	payload := map[string]any{
		"executionId": x.ID, "durationMs": ran.Milliseconds(), "costMicroCents": x.Cost,
		"stdoutBytes": x.Result.Stdout, "stderrBytes": x.Result.Stderr,
	}
	if x.Reason != "" {
		payload["reason"] = x.Reason
	}
	if x.Spec.Hook {
		payload["hook"] = true
	}
	switch r := x.Result; {
	case x.State == ExecLost:
		payload["outcome"] = "unknown"
	case r.Failure != "":
		payload["outcome"], payload["error"] = "not_started", r.Failure
	case r.Signal != "":
		payload["outcome"], payload["signal"] = "signal", r.Signal
	case r.Code != nil:
		payload["outcome"], payload["exitCode"] = "exit", *r.Code
	}
	d.emit(EventExecCompleted, "", "", payload)
	d.charge(c, "", "")
}

// stopIfSpent closes an open session whose budget has reached a limit, once no
// foreground exec runs: that one may still finish.
func (d *Decision) stopIfSpent() {
	s := d.facts.Session
	if l := s.BudgetAt(d.now).Exhausted(); l != "" && s.Bare() && s.State == SessionOpen && !d.facts.busy() {
		d.exhausted(l)
	}
}

// Overrun closes an open session when what its detached execs have cost so far
// brings it to a limit.
func (d *Decision) Overrun() bool {
	s := d.facts.Session
	if !s.Bare() || s.State != SessionOpen || d.facts.busy() || d.affords() == nil {
		return false
	}
	b := s.BudgetAt(d.now)
	for _, x := range d.facts.Running() {
		b = b.Charge(Charge{Cost: x.Rate.Cost(d.facts.ran(x, d.now))}) // they are counted already
	}
	l := b.Exhausted()
	if l == "" {
		return false
	}
	d.exhausted(l)
	return true
}

// putExec records an exec's new value, and keeps the facts that show it in step.
func (d *Decision) putExec(x Exec) {
	i := slices.IndexFunc(d.execs, func(o Exec) bool { return o.ID == x.ID })
	if i < 0 {
		d.execs = append(d.execs, x)
	} else {
		d.execs[i] = x
	}
	j := slices.IndexFunc(d.facts.Execs, func(o Exec) bool { return o.ID == x.ID })
	switch {
	case x.State.Terminal():
		if j >= 0 {
			d.facts.Execs = slices.Delete(d.facts.Execs, j, j+1)
		}
	case j >= 0:
		d.facts.Execs[j] = x
	default:
		d.facts.Execs = append(d.facts.Execs, x)
	}
}

// askFor opens the interaction that a parked exec waits for.
func (d *Decision) askFor(x Exec, in NewExec) {
	i := Interaction{
		ID: in.Interaction, Session: x.Session, Exec: x.ID, Kind: "approval", State: InteractionOpen, Ref: string(x.ID),
		Request: draft("", "", "", in.Request).Data, OpenedAt: d.now, ExpiresAt: d.now.Add(InteractionLife),
		Options: []Option{{ID: OptionApprove, Name: "Approve", Kind: "allow_once"}, {ID: OptionReject, Name: "Reject", Kind: "reject_once"}},
	}
	d.putInteraction(i)
	d.emit(EventApprovalRequested, "", "", map[string]any{
		"approvalId": i.ID, "executionId": x.ID, "command": clippedArgv(x.Spec.Argv), "tool": x.Spec.Tool, "expiresAt": instant(i.ExpiresAt),
	})
	d.order(WorkInteraction, string(i.ID), i.ExpiresAt)
}

// The options of an approval.
const (
	OptionApprove = "approve"
	OptionReject  = "reject"
)

// resolve lets a parked exec go on or refuses it, as its interaction was answered.
// x was read in the same transaction.
func (d *Decision) resolve(i Interaction, x Exec) {
	approved := i.State == InteractionAnswered && i.Answer.OptionID == OptionApprove
	d.resolved(i)
	if x.State != ExecParked {
		return
	}
	if !approved {
		why := ExecRejected
		if i.State != InteractionAnswered {
			why = ExecExpired
		}
		d.refuseExec(x, why)
		return
	}
	x.State = ExecQueued
	d.putExec(x)
	d.order(WorkBench, string(x.Session), d.now)
}

// resolved says how an approval ended: each that was requested is resolved once.
func (d *Decision) resolved(i Interaction) {
	payload := map[string]any{"approvalId": i.ID, "executionId": i.Exec, "decision": i.Reason}
	if i.Answer != nil {
		payload["decision"] = i.Answer.OptionID
		if i.Answer.Comment != "" {
			payload["comment"] = i.Answer.Comment
		}
	}
	d.emit(EventApprovalResolved, "", "", payload)
	d.withdraw(WorkInteraction, string(i.ID))
}

// ExpireInteraction ends an approval that was not answered in time. It returns when
// to look again; zero when it is over. x is the exec that it is about.
func (d *Decision) ExpireInteraction(i Interaction, x Exec) time.Time {
	if i.State != InteractionOpen || i.Exec == "" {
		return time.Time{}
	}
	if d.now.Before(i.ExpiresAt) {
		return i.ExpiresAt
	}
	i = d.expireInteraction(i, ReasonTimeout)
	d.resolve(i, x)
	return time.Time{}
}

func (d *Decision) expireInteraction(i Interaction, why string) Interaction {
	i.State, i.EndedAt, i.Reason = InteractionExpired, d.now, why
	d.putInteraction(i)
	d.emit(EventInteractionExpired, d.turnOf(i.Run), i.Run, map[string]any{"interactionId": i.ID, "reason": why})
	return i
}
