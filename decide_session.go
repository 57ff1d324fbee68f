package sojourn

import (
	"strings"
	"time"
	"unicode/utf8"
)

// The bounds of what a caller may send.
const (
	MaxTitleBytes    = 512
	MaxModelBytes    = 256
	MaxMetadataPairs = 32
	MaxMetadataBytes = 4096 // of one key and value together
	MaxInputParts    = 64
	MaxInputBytes    = 8 << 20 // of all parts together
)

// NewSession is what a session starts from.
type NewSession struct {
	ID       SessionID
	Project  ProjectID
	Contract Contract
	Title    string
	Runtime  string
	Model    string
	Metadata map[string]string
	Base     string
	Sandbox  SandboxSpec
	Limits   Limits // of its budget
	// Rotation and Presence are of a bare session; their facts are ignored.
	Rotation Rotation
	Presence Presence
	// Carryover is what its execs start from.
	Carryover CarryoverPatch
}

// Create decides on a new session. Nothing is provisioned: a turn causes that.
func Create(now time.Time, in NewSession) (*Decision, error) {
	if len(in.Title) > MaxTitleBytes || !utf8.ValidString(in.Title) {
		return nil, Errorf(CodeInvalid, "title: must be text of at most %d bytes.", MaxTitleBytes)
	}
	if len(in.Metadata) > MaxMetadataPairs {
		return nil, Errorf(CodeInvalid, "metadata: at most %d entries.", MaxMetadataPairs)
	}
	for k, v := range in.Metadata {
		if len(k)+len(v) > MaxMetadataBytes {
			return nil, Errorf(CodeInvalid, "metadata: an entry may have at most %d bytes.", MaxMetadataBytes)
		}
	}
	if len(in.Model) > MaxModelBytes || strings.ContainsFunc(in.Model, notPrintable) {
		return nil, Errorf(CodeInvalid, "model: must be a name of at most %d printable bytes.", MaxModelBytes)
	}
	if l := in.Limits; min(int64(l.Cost), l.Iterations, int64(l.Duration)) < 0 {
		return nil, Errorf(CodeInvalid, "budget: a limit must not be negative.")
	}
	if err := in.Sandbox.Validate(); err != nil {
		return nil, err
	}
	if err := in.checkBare(); err != nil {
		return nil, err
	}
	f := Facts{Session: Session{
		ID: in.ID, Project: in.Project, Contract: in.Contract, Title: in.Title, Runtime: in.Runtime, Model: in.Model,
		Metadata: in.Metadata, Base: in.Base, Sandbox: in.Sandbox, Budget: Budget{Limits: in.Limits}, State: SessionNew, CreatedAt: now, UpdatedAt: now,
	}}
	if r, p := in.Rotation, in.Presence; f.Session.Bare() {
		f.Session.Rotation = Rotation{
			Buffer: r.Buffer, Processes: r.Processes, Hook: r.Hook, Checkpoint: r.Checkpoint, NoIdleCheckpoint: r.NoIdleCheckpoint,
		}
		f.Session.Presence = Presence{Client: p.Client, OnAbandon: p.OnAbandon}
	}
	d := f.Decide(now)
	d.created = true
	d.emit(EventSessionCreated, "", "", map[string]any{"title": in.Title, "runtime": in.Runtime})
	if c, err := (Carryover{}).Patch(in.Carryover); err != nil {
		return nil, err
	} else if c.Dir != "" || len(c.Env) > 0 || len(c.Custom) > 0 {
		c.Session, c.UpdatedAt = in.ID, now
		d.carryover = &c
	}
	return d, nil
}

// checkBare checks what only a bare session has.
func (in NewSession) checkBare() error {
	r := in.Rotation
	if in.Runtime != RuntimeNone {
		return nil
	}
	if err := in.Presence.validate(); err != nil {
		return err
	}
	switch timeout := in.Sandbox.Timeout; {
	case timeout != 0 && (timeout < MinSandboxTimeout || timeout > MaxSandboxTimeout):
		return Errorf(CodeInvalid, "sandbox.timeoutSeconds: between %d and %d.", MinSandboxTimeout/time.Second, MaxSandboxTimeout/time.Second)
	case r.Buffer < 0 || r.Buffer > MaxRotationBuffer:
		return Errorf(CodeInvalid, "rotation.preRotateBufferSeconds: between 0 and %d.", MaxRotationBuffer/time.Second)
	case timeout != 0 && r.Buffer > timeout/2:
		return Errorf(CodeInvalid, "rotation.preRotateBufferSeconds: must be at most half of sandbox.timeoutSeconds.")
	case r.Checkpoint != 0 && (r.Checkpoint < MinCheckpointEvery || r.Checkpoint > MaxSandboxTimeout):
		return Errorf(CodeInvalid, "rotation.checkpointIntervalSeconds: between 1 and %d.", MaxSandboxTimeout/time.Second)
	}
	if len(r.Hook) > 0 {
		return checkArgv("rotation.preRotateHook", r.Hook)
	}
	return nil
}

// Submit decides on a turn with a run that will execute it. The error codes are
// session_archived, run_active, resume_unavailable, workspace_expiring and
// invalid.
func (d *Decision) Submit(turn TurnID, run RunID, input []Part) error {
	s := &d.facts.Session
	if s.Bare() {
		return Errorf(CodeInvalid, "The session has no agent: it takes execs, no turns.")
	}
	if err := checkInput(input); err != nil {
		return err
	}
	if err := d.admits(); err != nil {
		return err
	}
	if err := s.Budget.Admit(); err != nil {
		return err
	}
	if s.State == SessionNew {
		s.State = SessionOpen
	}
	s.Turns++
	t := Turn{ID: turn, Session: s.ID, Number: s.Turns, Input: input, SubmittedAt: d.now}
	d.turns = append(d.turns, t)
	s.LastRun = run
	d.putRun(Run{ID: run, Session: s.ID, Turn: turn, State: RunQueued, QueuedAt: d.now})
	d.emit(EventTurnSubmitted, turn, run, map[string]any{"number": t.Number, "input": input})
	d.emit(EventRunQueued, turn, run, nil)
	d.order(WorkRun, string(run), d.now)
	return nil
}

// admits returns why the session takes no turn now, or nil.
func (d *Decision) admits() error {
	s := d.facts.Session
	switch {
	case s.Archived():
		return Errorf(CodeSessionArchived, "The session is archived: it can be read and takes no more commands.")
	case s.State == SessionClosed:
		return Errorf(CodeSessionArchived, "The session is closed (%s).", s.CloseReason)
	case d.facts.Active != nil:
		return Errorf(CodeRunActive, "Run %s has not finished. A session runs one turn at a time.", s.ActiveRun)
	}
	if c := d.facts.Continuation(d.now); !c.CanContinue {
		return &Error{
			Code: CodeResumeUnavailable, Details: map[string]string{"reason": string(c.Reason)},
			Message: "The previous state cannot be restored (" + string(c.Reason) + "). Start a new session.",
		}
	}
	if l := d.facts.Lease; l != nil && l.Expiring(d.now) {
		return &Error{
			Code: CodeWorkspaceExpiring, RetryAfter: l.Deadline().Sub(d.now),
			Message: "The lease is too close to its deadline for new work. Retry: a fresh lease follows.",
		}
	}
	return nil
}

func checkInput(input []Part) error {
	if len(input) == 0 || len(input) > MaxInputParts {
		return Errorf(CodeInvalid, "input: between 1 and %d parts.", MaxInputParts)
	}
	total := 0
	for i, p := range input {
		total += len(p.Text) + len(p.Data)
		switch p.Type {
		case "text":
			if p.Text == "" {
				return Errorf(CodeInvalid, "input[%d].text: must not be empty.", i)
			}
			if p.Data != "" || p.MimeType != "" {
				return Errorf(CodeInvalid, "input[%d]: a text part has only text.", i)
			}
		case "image", "file":
			if p.Data == "" || p.MimeType == "" {
				return Errorf(CodeInvalid, "input[%d]: an %s part needs data and mimeType.", i, p.Type)
			}
		default:
			return Errorf(CodeInvalid, "input[%d].type: must be text, image or file.", i)
		}
	}
	if total > MaxInputBytes {
		return Errorf(CodeTooLarge, "input: at most %d bytes.", MaxInputBytes)
	}
	return nil
}

// Archive closes the session to commands for good and gives its lease back.
// Archiving an archived session changes nothing. A session with an active run
// is refused with run_active.
func (d *Decision) Archive() error {
	s := &d.facts.Session
	if s.Archived() {
		return nil
	}
	if d.facts.Active != nil {
		return Errorf(CodeRunActive, "Run %s has not finished. Cancel it or wait, then archive.", s.ActiveRun)
	}
	if s.Bare() && s.State != SessionClosed { // its clock would go on
		return invalidState(*s, "cannot be archived: stop or cancel it first")
	}
	if l := d.facts.Lease; l != nil && !l.State.Terminal() {
		if err := d.EndLease(l.Epoch, LeaseReleased, "archived"); err != nil {
			return err
		}
	}
	s.ArchivedAt = d.now
	d.emit(EventSessionArchived, "", "", nil)
	return nil
}

// SetNetwork changes what the session's sandboxes may reach, at once. The codes
// are invalid and session_archived.
func (d *Decision) SetNetwork(p NetworkPolicy) error {
	if d.facts.Session.Archived() {
		return Errorf(CodeSessionArchived, "The session is archived.")
	}
	if err := p.Validate(); err != nil {
		return err
	}
	s := &d.facts.Session
	if p.Raw != s.Sandbox.Network.Raw && d.facts.Lease != nil && !d.facts.Lease.State.Terminal() {
		return Errorf(CodeInvalid, "network.raw: cannot be changed while there is a sandbox.")
	}
	s.Sandbox.Network = p
	d.emit(EventNetworkChanged, "", "", p)
	return nil
}

// NoteNetwork records decisions of the proxy.
func (d *Decision) NoteNetwork(epoch int64, decisions []NetworkDecision) {
	if len(decisions) == 0 {
		return
	}
	turn, run := TurnID(""), RunID("")
	if r := d.facts.Active; r != nil && r.Epoch == epoch {
		turn, run = r.Turn, r.ID
	}
	d.emit(EventNetworkDecided, turn, run, map[string]any{"epoch": epoch, "decisions": decisions})
}

// charge books what an execution has cost, and says when a threshold or a limit
// of the budget is reached by it.
func (d *Decision) charge(c Charge, turn TurnID, run RunID) {
	d.warned(d.facts.Session.Budget.Charge(c), turn, run)
	d.stopIfSpent()
}
