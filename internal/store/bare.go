package store

import (
	"math"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// bare is what only a session without an agent has, as it is stored.
type bare struct {
	Rotation  sojourn.Rotation `json:"rotation,omitzero"`
	Presence  sojourn.Presence `json:"presence,omitzero"`
	Ending    sojourn.Ending   `json:"ending,omitzero"`
	StartedAt time.Time        `json:"startedAt,omitzero"`
	PausedAt  time.Time        `json:"pausedAt,omitzero"`
	ClockAt   time.Time        `json:"clockAt,omitzero"`
	Execs     int64            `json:"execs,omitempty"`
}

func encodeBare(s sojourn.Session) (string, error) {
	text, err := encoded(bare{
		Rotation: s.Rotation, Presence: s.Presence, Ending: s.Ending,
		StartedAt: s.StartedAt, PausedAt: s.PausedAt, ClockAt: s.ClockAt, Execs: s.Execs,
	}, false)
	if text == "{}" {
		text = ""
	}
	return text, err
}

func decodeBare(text string, s *sojourn.Session) error {
	var b bare
	if err := decode(text, &b); err != nil {
		return err
	}
	s.Rotation, s.Presence, s.Ending = b.Rotation, b.Presence, b.Ending
	s.StartedAt, s.PausedAt, s.ClockAt, s.Execs = b.StartedAt, b.PausedAt, b.ClockAt, b.Execs
	return nil
}

const (
	liveOfClient = `SELECT ` + sessionColumns + ` FROM sessions
	WHERE project = $1 AND client = $2 AND state <> 'closed' AND deleted_at = 0`

	whereBare = ` FROM sessions WHERE project = $1 AND deleted_at = 0 AND ($2 = '' OR contract = $2)
	AND ($3 = '' OR state = $3) AND ($4 = '' OR close_reason = $4) AND ($5 < 0 OR rotating = $5)`

	selectBare = `SELECT ` + sessionColumns + whereBare + ` ORDER BY created_at DESC, id DESC LIMIT $6 OFFSET $7`
	countBare  = `SELECT COUNT(*)` + whereBare
)

// BareQuery selects sessions of a project that are not deleted by what they are
// at, newest first. A zero field selects all.
type BareQuery struct {
	Project     sojourn.ProjectID
	Contract    sojourn.Contract
	State       sojourn.SessionState
	CloseReason sojourn.CloseReason
	Rotating    *bool
	Limit       int // 0 means 100; at most 1,000
	Offset      int
}

// SessionsWhere returns the facts of the sessions that q selects, and how many
// there are without its limit and offset.
func (t *Tx) SessionsWhere(q BareQuery) ([]sojourn.Facts, int, error) {
	rotating := int64(-1)
	if q.Rotating != nil {
		rotating = flag(*q.Rotating)
	}
	args := []any{q.Project, q.Contract, q.State, q.CloseReason, rotating}
	total, err := one(t, "sessions", scanInt, countBare, args...)
	if err != nil {
		return nil, 0, err
	}
	sessions, err := collect(t, "sessions", scanSession, selectBare, append(args, page(q.Limit), min(max(0, q.Offset), math.MaxInt32))...)
	if err != nil {
		return nil, 0, err
	}
	all := make([]sojourn.Facts, 0, len(sessions))
	for _, s := range sessions {
		f, err := t.factsOf(s)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, f)
	}
	return all, total, nil
}

// SessionOfClient returns the session of a project that is not closed and has that
// client. The code is not_found.
func (t *Tx) SessionOfClient(project sojourn.ProjectID, client string) (sojourn.Session, error) {
	return one(t, "live session of this client", scanSession, liveOfClient, project, client)
}
