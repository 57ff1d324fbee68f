package operator

import (
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
)

// RotationTerms is how the sandboxes of a session without an agent are replaced.
type RotationTerms struct {
	BufferSeconds     float64  `json:"bufferSeconds,omitempty" minimum:"0" doc:"How long before the sandbox's timeout its replacement begins; 30 seconds when absent, at most half the timeout."`
	Processes         bool     `json:"processes,omitempty" doc:"Carry running processes. Refused where the isolation cannot."`
	Hook              []string `json:"hook,omitempty" doc:"A command that runs in the sandbox before it is replaced."`
	CheckpointSeconds float64  `json:"checkpointSeconds,omitempty" minimum:"0" doc:"How much time may pass between two checkpoints while execs run; five minutes when absent."`
	NoIdleCheckpoint  bool     `json:"noIdleCheckpoint,omitempty" doc:"No checkpoint after each exec that changed files."`
}

func (r *RotationTerms) rotation() sojourn.Rotation {
	if r == nil {
		return sojourn.Rotation{}
	}
	return sojourn.Rotation{
		Buffer: seconds(r.BufferSeconds), Processes: r.Processes, Hook: r.Hook,
		Checkpoint: seconds(r.CheckpointSeconds), NoIdleCheckpoint: r.NoIdleCheckpoint,
	}
}

// Rotation is how the sandboxes of a session are replaced, and what is known of it.
type Rotation struct {
	RotationTerms
	Count   int64    `json:"count" doc:"Rotations that were completed."`
	LastAt  api.Time `json:"lastAt,omitempty"`
	NextAt  api.Time `json:"nextAt,omitempty" doc:"When the present sandbox is to be replaced."`
	BegunAt api.Time `json:"begunAt,omitempty" doc:"Absent unless one is under way."`
	Why     string   `json:"why,omitempty" enum:"timeout,requested,sandbox_lost"`
	Tries   int      `json:"tries,omitempty" doc:"How many have failed; after the third the session fails."`
	Lost    *Loss    `json:"lost,omitempty" doc:"What the latest sandbox that was lost took with it; absent for nothing."`
}

// Loss says which files a sandbox took with it: what was written since.
type Loss struct {
	Epoch int64    `json:"epoch" doc:"Of the lease that ended."`
	Since api.Time `json:"since" doc:"What was written from here on is gone."`
	At    api.Time `json:"at"`
}

// Client is the caller's own handle of a session, and its last sign of life.
type Client struct {
	ID              string   `json:"id,omitempty"`
	OnAbandon       string   `json:"onAbandon,omitempty" enum:"pause,stop"`
	Attached        bool     `json:"attached"`
	LastHeartbeatAt api.Time `json:"lastHeartbeatAt,omitempty"`
	NextHeartbeatBy api.Time `json:"nextHeartbeatBy,omitempty"`
	LostAt          api.Time `json:"lostAt,omitempty" doc:"Since when heartbeats stay away."`
}

// Ending is why and when a session without an agent was closed.
type Ending struct {
	Reason string   `json:"reason" doc:"A stable word, such as stopped, budget_exhausted or rotation_failed."`
	Limit  string   `json:"limit,omitempty" enum:"cost,iterations,duration" doc:"The limit that was reached."`
	Text   string   `json:"text,omitempty" doc:"A caller's words, or what went wrong."`
	At     api.Time `json:"at"`
}

// bare adds what only a session without an agent has.
func (out *Session) bare(f sojourn.Facts, now time.Time) {
	s := f.Session
	if !s.Bare() {
		return
	}
	out.Status, out.Executions = statusOf(s), s.Execs
	out.StartedAt, out.PausedAt = api.Instant(s.StartedAt), api.Instant(s.PausedAt)
	r := s.Rotation
	out.Rotation = &Rotation{
		RotationTerms: RotationTerms{
			BufferSeconds: r.Buffer.Seconds(), Processes: r.Processes, Hook: r.Hook,
			CheckpointSeconds: r.Checkpoint.Seconds(), NoIdleCheckpoint: r.NoIdleCheckpoint,
		},
		Count: r.Count, LastAt: api.Instant(r.LastAt), BegunAt: api.Instant(r.BegunAt), Why: string(r.Why), Tries: r.Tries,
	}
	if s.State == sojourn.SessionOpen && !s.Rotating() {
		out.Rotation.NextAt = api.Instant(f.RotateAt())
	}
	if r.Lost != nil {
		out.Rotation.Lost = &Loss{Epoch: r.Lost.Epoch, Since: api.Instant(r.Lost.Since), At: api.Instant(r.Lost.At)}
	}
	if p := s.Presence; p != (sojourn.Presence{}) {
		out.Client = &Client{
			ID: p.Client, OnAbandon: string(p.OnAbandon), Attached: p.Attached(now) && s.State != sojourn.SessionClosed,
			LastHeartbeatAt: api.Instant(p.SeenAt), LostAt: api.Instant(p.LostAt),
		}
		if s.State != sojourn.SessionClosed {
			out.Client.NextHeartbeatBy = api.Instant(p.Due())
		}
	}
	if e := s.Ending; e != (sojourn.Ending{}) {
		out.Ending = &Ending{Reason: e.Reason, Limit: string(e.Limit), Text: e.Text, At: api.Instant(e.At)}
	}
	for _, x := range f.Execs {
		out.OpenExecutions = append(out.OpenExecutions, execution(x))
	}
}

// statusOf is a session without an agent in the words of its contract.
func statusOf(s sojourn.Session) string {
	switch {
	case s.State == sojourn.SessionNew:
		return "pending"
	case s.State == sojourn.SessionClosed:
		return string(s.CloseReason)
	case s.State == sojourn.SessionPaused:
		return "paused"
	case s.Rotating():
		return "rotating"
	}
	return "running"
}
