package exec

import (
	"encoding/json"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// Session is a durable wrapper around a series of executions.
type Session struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	ClientID   *string `json:"clientId" doc:"Your own handle for reattaching; null for none."`
	Status     string  `json:"status" enum:"pending,running,rotating,paused,completed,failed,cancelled"`
	StopReason string  `json:"stopReason,omitempty" doc:"Why it ended: stopped, cancelled, budget_exhausted, client_abandoned, rotation_failed, sandbox_unavailable."`
	StopDetail string  `json:"stopDetail,omitempty" doc:"The words of whoever stopped it."`
	Limit      string  `json:"limit,omitempty" enum:"cost,iterations,duration" doc:"The limit that ended it."`
	Error      string  `json:"error,omitempty" doc:"What went wrong, of a failed one."`

	Budget    Budget    `json:"budget"`
	Usage     Usage     `json:"usage"`
	Remaining Remaining `json:"remaining"`
	Rotation  Rotation  `json:"rotation"`
	Sandbox   Sandbox   `json:"sandbox"`
	Context   *Context  `json:"context,omitempty" doc:"Absent in lists."`

	PendingApproval *Approval  `json:"pendingApproval,omitempty" doc:"The oldest that is open."`
	OpenApprovals   []Approval `json:"openApprovals,omitempty" doc:"All that are open, oldest first, when there is more than one."`

	Attached        bool              `json:"attached" doc:"Whether heartbeats of its client arrive."`
	OnAbandon       string            `json:"onAbandon,omitempty" enum:"pause,stop"`
	LastHeartbeatAt *api.Time         `json:"lastHeartbeatAt"`
	NextHeartbeatBy *api.Time         `json:"nextHeartbeatBy,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	LastSeq         int64             `json:"lastSeq" doc:"The number of its last event."`
	CreatedAt       api.Time          `json:"createdAt"`
	UpdatedAt       api.Time          `json:"updatedAt"`
	StartedAt       *api.Time         `json:"startedAt"`
	EndedAt         *api.Time         `json:"endedAt"`
}

// Budget is what a session may use.
type Budget struct {
	CostCapCents         *int64 `json:"costCapCents" required:"false" nullable:"true" minimum:"1" maximum:"9000000000000" doc:"Spend ceiling for the whole session; null or absent for none."`
	IterationLimit       *int64 `json:"iterationLimit" required:"false" nullable:"true" minimum:"1" maximum:"1000000000000" doc:"Maximum executions."`
	DurationLimitSeconds *int64 `json:"durationLimitSeconds" required:"false" nullable:"true" minimum:"1" maximum:"3153600000" doc:"Wall-clock ceiling, from the start; a pause does not count."`
}

// limits reads a budget; nil is none.
func (b *Budget) limits() (l sojourn.Limits) {
	if b == nil {
		return l
	}
	if v := b.CostCapCents; v != nil {
		l.Cost = sojourn.Money(*v) * sojourn.Cent
	}
	if v := b.IterationLimit; v != nil {
		l.Iterations = *v
	}
	if v := b.DurationLimitSeconds; v != nil {
		l.Duration = time.Duration(*v) * time.Second
	}
	return l
}

func budgetOf(l sojourn.Limits) (b Budget) {
	if l.Cost > 0 {
		b.CostCapCents = new(l.Cost.CentsUp())
	}
	if l.Iterations > 0 {
		b.IterationLimit = new(l.Iterations)
	}
	if l.Duration > 0 {
		b.DurationLimitSeconds = new(int64(l.Duration / time.Second))
	}
	return b
}

// Usage is what was used.
type Usage struct {
	CostCents       int64   `json:"costCents" doc:"Rounded up."`
	CostMicroCents  int64   `json:"costMicroCents"`
	Iterations      int64   `json:"iterations"`
	DurationSeconds float64 `json:"durationSeconds"`
}

func usageOf(u sojourn.Usage) Usage {
	return Usage{
		CostCents: u.Cost.CentsUp(), CostMicroCents: int64(u.Cost), Iterations: u.Iterations, DurationSeconds: seconds(u.Duration),
	}
}

// Remaining is what is left under each limit.
type Remaining struct {
	CostCents       *int64   `json:"costCents" doc:"Rounded down; null when nothing limits it, as for the others."`
	CostMicroCents  *int64   `json:"costMicroCents"`
	Iterations      *int64   `json:"iterations"`
	DurationSeconds *float64 `json:"durationSeconds"`
}

func remainingOf(b sojourn.Budget) (r Remaining) {
	left := b.Remaining()
	if b.Limits.Cost > 0 {
		r.CostCents, r.CostMicroCents = new(int64(left.Cost/sojourn.Cent)), new(int64(left.Cost))
	}
	if b.Limits.Iterations > 0 {
		r.Iterations = new(left.Iterations)
	}
	if b.Limits.Duration > 0 {
		r.DurationSeconds = new(seconds(left.Duration))
	}
	return r
}

// seconds is a duration in seconds, to the millisecond.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// Rotation is how a session's sandboxes are replaced, and what is known of that.
type Rotation struct {
	PreRotateBufferSeconds    *float64   `json:"preRotateBufferSeconds" doc:"Grace period before a sandbox is replaced; null for the server's choice."`
	IncludeProcessState       bool       `json:"includeProcessState" doc:"Running processes are carried, too."`
	PreRotateHook             []string   `json:"preRotateHook,omitempty" doc:"Runs in that time."`
	CheckpointIntervalSeconds *float64   `json:"checkpointIntervalSeconds" doc:"How much time may pass between two checkpoints while executions run; null for the server's choice."`
	CheckpointAfterExec       bool       `json:"checkpointAfterExec" doc:"A checkpoint is made after an execution that changed files."`
	Count                     int64      `json:"count" doc:"Rotations that were completed."`
	LastRotatedAt             *api.Time  `json:"lastRotatedAt"`
	Current                   *InFlight  `json:"current,omitempty" doc:"The rotation under way."`
	Lost                      *LostFiles `json:"lost,omitempty" doc:"What the last sandbox that was lost took with it; absent when nothing is missing."`
}

// InFlight is a rotation under way.
type InFlight struct {
	Reason    string   `json:"reason" enum:"timeout,requested,sandbox_lost"`
	StartedAt api.Time `json:"startedAt"`
	Failures  int      `json:"failures" doc:"Tries that failed."`
}

// LostFiles says which files are missing.
type LostFiles struct {
	Since api.Time `json:"since" doc:"Files written from here on are gone."`
	At    api.Time `json:"at" doc:"When the sandbox was lost."`
}

func rotationOf(r sojourn.Rotation) Rotation {
	out := Rotation{
		IncludeProcessState: r.Processes, PreRotateHook: r.Hook, CheckpointAfterExec: !r.NoIdleCheckpoint,
		Count: r.Count, LastRotatedAt: instant(r.LastAt),
	}
	if r.Buffer > 0 {
		out.PreRotateBufferSeconds = new(r.Buffer.Seconds())
	}
	if r.Checkpoint > 0 {
		out.CheckpointIntervalSeconds = new(r.Checkpoint.Seconds())
	}
	if !r.BegunAt.IsZero() {
		out.Current = &InFlight{Reason: string(r.Why), StartedAt: api.Instant(r.BegunAt), Failures: r.Tries}
	}
	if r.Lost != nil {
		out.Lost = &LostFiles{Since: api.Instant(r.Lost.Since), At: api.Instant(r.Lost.At)}
	}
	return out
}

// Approval is a step that needs sign-off.
type Approval struct {
	ID          string          `json:"id"`
	ExecutionID string          `json:"executionId"`
	Status      string          `json:"status" enum:"pending,approved,rejected,expired"`
	Request     json.RawMessage `json:"request,omitempty" doc:"What is to be approved."`
	RequestedAt api.Time        `json:"requestedAt"`
	ExpiresAt   api.Time        `json:"expiresAt,omitempty"`
	ResolvedAt  api.Time        `json:"resolvedAt,omitempty"`
	Comment     string          `json:"comment,omitempty"`
}

func approvalOf(i sojourn.Interaction) Approval {
	out := Approval{
		ID: string(i.ID), ExecutionID: string(i.Exec), Status: "pending", Request: i.Request,
		RequestedAt: api.Instant(i.OpenedAt), ExpiresAt: api.Instant(i.ExpiresAt), ResolvedAt: api.Instant(i.EndedAt),
	}
	switch {
	case i.State == sojourn.InteractionAnswered && i.Answer != nil:
		out.Status, out.Comment = "rejected", i.Answer.Comment
		if i.Answer.OptionID == sojourn.OptionApprove {
			out.Status = "approved"
		}
	case i.State != sojourn.InteractionOpen:
		out.Status = "expired"
	}
	return out
}

// approvalsOf returns the open approvals of a session, oldest first.
func approvalsOf(f sojourn.Facts) (all []Approval) {
	for _, i := range f.Open {
		if i.Exec != "" && i.State == sojourn.InteractionOpen {
			all = append(all, approvalOf(i))
		}
	}
	return all
}

// statusOf names what a session is doing.
func statusOf(s sojourn.Session) string {
	switch s.State {
	case sojourn.SessionNew:
		return "pending"
	case sojourn.SessionOpen:
		if s.Rotating() {
			return "rotating"
		}
		return "running"
	case sojourn.SessionClosed:
		return string(s.CloseReason)
	}
	return string(s.State)
}

// sessionOf projects a session at now, without its context.
func sessionOf(f sojourn.Facts, now time.Time) Session {
	s, b := f.Session, f.BudgetAt(now)
	out := Session{
		ID: string(s.ID), Name: s.Title, Status: statusOf(s), Metadata: s.Metadata, LastSeq: s.LastSeq,
		Budget: budgetOf(b.Limits), Usage: usageOf(b.Usage), Remaining: remainingOf(b), Rotation: rotationOf(s.Rotation),
		Sandbox: sandboxOf(f, now), Attached: s.State != sojourn.SessionClosed && s.Presence.Attached(now),
		OnAbandon: string(s.Presence.OnAbandon), LastHeartbeatAt: instant(s.Presence.SeenAt),
		CreatedAt: api.Instant(s.CreatedAt), UpdatedAt: api.Instant(s.UpdatedAt), StartedAt: instant(s.StartedAt), EndedAt: instant(s.Ending.At),
	}
	if s.Presence.Client != "" {
		out.ClientID = new(s.Presence.Client)
	}
	if s.State == sojourn.SessionClosed {
		out.StopReason, out.Limit = s.Ending.Reason, string(s.Ending.Limit)
		if s.CloseReason == sojourn.CloseFailed {
			out.Error = s.Ending.Text
		} else {
			out.StopDetail = s.Ending.Text
		}
	} else if due := s.Presence.Due(); !due.IsZero() {
		out.NextHeartbeatBy = instant(due)
	}
	if open := approvalsOf(f); len(open) > 0 {
		out.PendingApproval = &open[0]
		if len(open) > 1 {
			out.OpenApprovals = open
		}
	}
	return out
}

// instant projects t; nil for the zero time, which is null on the wire.
func instant(t time.Time) *api.Time {
	if t.IsZero() {
		return nil
	}
	return new(api.Instant(t))
}
