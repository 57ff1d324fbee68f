package store

import (
	"math"
	"time"

	"github.com/sojourn-dev/sojourn"
)

const (
	sessionColumns = `id, project, contract, title, runtime, metadata, base, state, close_reason,
	created_at, updated_at, archived_at, deleted_at,
	last_seq, last_epoch, turns, active_run, last_run, worked, head, sandbox, model, budget,
	bare, client, rotating`

	selectSession = `SELECT ` + sessionColumns + ` FROM sessions WHERE id = $1`

	insertSession = `INSERT INTO sessions (` + sessionColumns + `)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26)`

	// What identifies a session, and when it was created, never changes. $14 is
	// the counter as the decision saw it, $19 how many events follow.
	updateSession = `UPDATE sessions SET title = $2, runtime = $3, metadata = $4, base = $5, state = $6,
	close_reason = $7, updated_at = $8, archived_at = $9, deleted_at = $10, last_epoch = $11, turns = $12,
	active_run = $13, last_seq = $14 + $19, last_run = $15, worked = $16, head = $17, sandbox = $20, model = $21, budget = $22,
	bare = $23, client = $24, rotating = $25
	WHERE id = $1 AND last_seq = $14 AND created_at = $18`

	newestSessions = `SELECT ` + sessionColumns + ` FROM sessions
	WHERE deleted_at = 0 AND ($1 = '' OR contract = $1) AND ($2 < 0 OR (archived_at > 0) = ($2 = 1))
	AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5`

	newestSessionsOfProject = `SELECT ` + sessionColumns + ` FROM sessions
	WHERE project = $6 AND deleted_at = 0 AND ($1 = '' OR contract = $1)
	AND ($2 < 0 OR (archived_at > 0) = ($2 = 1))
	AND (created_at, id) < ($3, $4) ORDER BY created_at DESC, id DESC LIMIT $5`

	selectLastSeq = `SELECT last_seq FROM sessions WHERE id = $1`
)

// SessionQuery selects sessions that are not deleted, newest first.
type SessionQuery struct {
	Project  sojourn.ProjectID // "" for all
	Contract sojourn.Contract  // "" for all
	Archived *bool             // nil for both
	After    SessionCursor     // continue behind this one; zero to start
	Limit    int               // 0 means 100; at most 1,000
}

// SessionCursor is the place of a session in the order of creation.
type SessionCursor struct {
	CreatedAt time.Time
	ID        sojourn.SessionID
}

func scanSession(row scanner) (s sojourn.Session, err error) {
	var metadata, sandbox, budget, only, client string
	var created, updated, archived, deleted, worked, rotating int64
	err = row.Scan(&s.ID, &s.Project, &s.Contract, &s.Title, &s.Runtime, &metadata, &s.Base, &s.State, &s.CloseReason,
		&created, &updated, &archived, &deleted,
		&s.LastSeq, &s.LastEpoch, &s.Turns, &s.ActiveRun, &s.LastRun, &worked, &s.Head, &sandbox, &s.Model, &budget, &only, &client, &rotating)
	if err != nil {
		return s, err
	}
	s.CreatedAt, s.UpdatedAt = instant(created), instant(updated)
	s.ArchivedAt, s.DeletedAt = instant(archived), instant(deleted)
	s.Worked = worked != 0
	if err := decode(metadata, &s.Metadata); err != nil {
		return s, err
	}
	if err := decode(budget, &s.Budget); err != nil {
		return s, err
	}
	if err := decodeBare(only, &s); err != nil {
		return s, err
	}
	return s, decode(sandbox, &s.Sandbox)
}

// Session returns the session's own row: enough to append events that change
// nothing else. In an Update it stays as it is until the commit.
func (t *Tx) Session(id sojourn.SessionID) (sojourn.Session, error) {
	query := selectSession
	if t.write && t.d.ForUpdate != "" {
		query += t.d.ForUpdate
	}
	return one(t, "session", scanSession, query, id)
}

// Facts returns all that decisions about the session are made from; only the
// packs of its head, which may be many, are left to [Tx.Checkpoint]. In an Update
// the session stays as it is until the commit.
func (t *Tx) Facts(id sojourn.SessionID) (sojourn.Facts, error) {
	s, err := t.Session(id)
	if err != nil {
		return sojourn.Facts{}, err
	}
	return t.factsOf(s)
}

// FactsOfRun returns the facts of the session that the run belongs to.
func (t *Tx) FactsOfRun(id sojourn.RunID) (sojourn.Facts, error) {
	r, err := t.Run(id)
	if err != nil {
		return sojourn.Facts{}, err
	}
	return t.Facts(r.Session)
}

// factsOf adds the rows that a session points to.
func (t *Tx) factsOf(s sojourn.Session) (f sojourn.Facts, err error) {
	f.Session = s
	if s.LastEpoch > 0 {
		l, err := t.Lease(s.ID, s.LastEpoch)
		if err != nil {
			return f, err
		}
		f.Lease = &l
	}
	if s.LastRun != "" {
		r, err := t.Run(s.LastRun)
		if err != nil {
			return f, err
		}
		f.Last = &r
	}
	switch s.ActiveRun {
	case "":
	case s.LastRun:
		active := *f.Last
		f.Active = &active
	default:
		r, err := t.Run(s.ActiveRun)
		if err != nil {
			return f, err
		}
		f.Active = &r
	}
	if s.Head != "" {
		c, err := one(t, "checkpoint", scanCheckpoint, selectCheckpoint, s.Head)
		if err != nil {
			return f, err
		}
		f.Head = &c
	}
	if s.Bare() && s.Execs > 0 {
		if f.Execs, err = collect(t, "execs", scanExec, selectOpenExecs, s.ID, queuedInFacts); err != nil {
			return f, err
		}
	}
	if s.LastRun != "" || s.Execs > 0 {
		f.Open, err = t.openInteractions(s.ID)
	}
	return f, err
}

// Sessions returns the facts of the sessions that q selects.
func (t *Tx) Sessions(q SessionQuery) ([]sojourn.Facts, error) {
	archived := int64(-1)
	if q.Archived != nil {
		archived = flag(*q.Archived)
	}
	before := int64(math.MaxInt64)
	if !q.After.CreatedAt.IsZero() {
		before = micros(q.After.CreatedAt)
	}
	query, args := newestSessions, []any{q.Contract, archived, before, q.After.ID, page(q.Limit)}
	if q.Project != "" {
		query, args = newestSessionsOfProject, append(args, q.Project)
	}
	sessions, err := collect(t, "sessions", scanSession, query, args...)
	if err != nil {
		return nil, err
	}
	all := make([]sojourn.Facts, 0, len(sessions))
	for _, s := range sessions {
		f, err := t.factsOf(s)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// LastSeq returns the number of the session's last event; 0 before the first.
func (t *Tx) LastSeq(id sojourn.SessionID) (int64, error) {
	return one(t, "session", func(row scanner) (seq int64, err error) {
		return seq, row.Scan(&seq)
	}, selectLastSeq, id)
}

// writeSession stores the session's new value with room for events more events.
func (t *Tx) writeSession(s sojourn.Session, created bool, events int) error {
	metadata, err := encoded(s.Metadata, s.Metadata == nil)
	if err != nil {
		return t.fail("encode metadata", err)
	}
	sandbox, err := encoded(s.Sandbox, s.Sandbox.IsZero())
	if err != nil {
		return t.fail("encode sandbox", err)
	}
	budget, err := encoded(s.Budget, s.Budget == sojourn.Budget{})
	if err != nil {
		return t.fail("encode budget", err)
	}
	only, err := encodeBare(s)
	if err != nil {
		return t.fail("encode what a bare session has", err)
	}
	if created {
		_, err := t.exec("insert session", insertSession,
			s.ID, s.Project, s.Contract, s.Title, s.Runtime, metadata, s.Base, s.State, s.CloseReason,
			micros(s.CreatedAt), micros(s.UpdatedAt), micros(s.ArchivedAt), micros(s.DeletedAt),
			int64(events), s.LastEpoch, s.Turns, s.ActiveRun, s.LastRun, flag(s.Worked), s.Head, sandbox, s.Model, budget,
			only, s.Presence.Client, flag(s.Rotating()))
		return err
	}
	n, err := t.exec("update session", updateSession,
		s.ID, s.Title, s.Runtime, metadata, s.Base, s.State, s.CloseReason,
		micros(s.UpdatedAt), micros(s.ArchivedAt), micros(s.DeletedAt), s.LastEpoch, s.Turns,
		s.ActiveRun, s.LastSeq, s.LastRun, flag(s.Worked), s.Head, micros(s.CreatedAt), int64(events), sandbox, s.Model, budget,
		only, s.Presence.Client, flag(s.Rotating()))
	if err != nil {
		return err
	}
	if n == 0 {
		if _, err := t.LastSeq(s.ID); err != nil {
			return err
		}
		return t.fail("update session", ErrStale)
	}
	return nil
}
