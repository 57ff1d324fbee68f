package store

import (
	"slices"
	"time"
)

const (
	workColumns = `kind, id, due_at, attempt, fence, owner, rev, payload, last_error, dead_at`

	// While a claim is held, due_at is its end and stays; rev tells the holder.
	scheduleWork = `INSERT INTO work (` + workColumns + `, wanted_at)
	VALUES ($1, $2, $3, 0, 0, '', 1, $4, '', 0, $3)
	ON CONFLICT (kind, id) DO UPDATE SET rev = work.rev + 1, wanted_at = excluded.wanted_at,
	payload = excluded.payload, dead_at = 0,
	due_at = CASE WHEN work.owner = '' THEN excluded.due_at ELSE work.due_at END,
	attempt = CASE WHEN work.owner = '' THEN 0 ELSE work.attempt END`

	cancelWork = `DELETE FROM work WHERE kind = $1 AND id = $2`

	selectDueWork = `SELECT id FROM work WHERE kind = $1 AND due_at <= $2 ORDER BY due_at LIMIT $3`
	nextFence     = `UPDATE counters SET value = value + 1 WHERE name = 'fence' RETURNING value`

	claimWork = `UPDATE work SET owner = $3, fence = $4, due_at = $5, attempt = attempt + 1
	WHERE kind = $1 AND id = $2 RETURNING ` + workColumns

	completeWork = `DELETE FROM work WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> '' AND rev = $4`

	rescheduleWork = `UPDATE work SET owner = '', attempt = 0, last_error = '', due_at = wanted_at
	WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> '' AND rev <> $4`

	againWork = `UPDATE work SET owner = '', attempt = 0, last_error = '',
	due_at = CASE WHEN rev = $4 OR wanted_at > $5 THEN $5 ELSE wanted_at END
	WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> ''`

	retryWork = `UPDATE work SET owner = '', last_error = $4, due_at = $5, attempt = $6
	WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> ''`

	buryWork = `UPDATE work SET owner = '', last_error = $4, dead_at = $5, due_at = $6
	WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> ''`

	heartbeatWork = `UPDATE work SET due_at = $4 WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> ''`

	selectFence  = `SELECT fence FROM work WHERE kind = $1 AND id = $2 AND fence = $3 AND owner <> ''`
	nextWork     = `SELECT due_at FROM work WHERE kind = $1 ORDER BY due_at LIMIT 1`
	selectWork   = `SELECT ` + workColumns + ` FROM work WHERE kind = $1 AND id = $2`
	deadWork     = `SELECT ` + workColumns + ` FROM work WHERE dead_at > 0 ORDER BY dead_at DESC, kind, id LIMIT $1`
	orphanedWork = `UPDATE work SET owner = '', due_at = $2 WHERE owner <> '' AND owner <> $1`
)

// never is the due time of work that was given up: 31 December 9999.
var never = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// WorkKey names a piece of work.
type WorkKey struct{ Kind, ID string }

// Work is a row of the work table: a timer or a job, unique by kind and id.
type Work struct {
	Kind, ID  string
	DueAt     time.Time // when it may be claimed: timer, retry time and end of a claim in one
	Attempt   int       // of the current or last claim since it last succeeded; 0 before
	Fence     int64     // of the current or last claim; never used twice
	Owner     string    // who holds it; "" for nobody
	Rev       int64     // counts the times it was scheduled
	Payload   []byte    // JSON, or nil
	LastError string    // why the last attempt failed; "" when it did not
	DeadAt    time.Time // zero unless it was given up
}

func scanWork(row scanner) (w Work, err error) {
	var due, dead int64
	var payload string
	err = row.Scan(&w.Kind, &w.ID, &due, &w.Attempt, &w.Fence, &w.Owner, &w.Rev, &payload, &w.LastError, &dead)
	w.DueAt, w.DeadAt, w.Payload = instant(due), instant(dead), raw(payload)
	return w, err
}

// ScheduleWork makes work due at the given time, or moves it and replaces its
// payload (JSON; nil for none). Work that is being done goes on undisturbed and
// is done again afterwards. Work that was given up is revived.
func (t *Tx) ScheduleWork(kind, id string, due time.Time, payload []byte) error {
	_, err := t.exec("schedule work", scheduleWork, kind, id, micros(due), string(payload))
	t.wake(due)
	return err
}

// wake has the commit tell the engine of work that is due at the given time.
func (t *Tx) wake(due time.Time) {
	if us := micros(due); t.earliest == 0 || us < t.earliest {
		t.earliest = us
	}
}

// CancelWork deletes work. Whoever is doing it loses the claim.
func (t *Tx) CancelWork(kind, id string) error {
	n, err := t.exec("cancel work", cancelWork, kind, id)
	if n > 0 {
		t.cancelled = append(t.cancelled, WorkKey{kind, id})
	}
	return err
}

// WorkCancelled reports whether this transaction has cancelled the work.
func (t *Tx) WorkCancelled(kind, id string) bool {
	return slices.Contains(t.cancelled, WorkKey{kind, id})
}

// ClaimWork takes up to limit pieces of work of a kind that are due, the longest
// due first. Each is the owner's until lease has passed without a heartbeat.
func (t *Tx) ClaimWork(kind, owner string, lease time.Duration, limit int) ([]Work, error) {
	scanID := func(row scanner) (id string, err error) { return id, row.Scan(&id) }
	ids, err := collect(t, "due work", scanID, selectDueWork+t.d.SkipLocked, kind, micros(t.now), limit)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	fence, err := one(t, "fence counter", func(row scanner) (n int64, err error) { return n, row.Scan(&n) }, nextFence)
	if err != nil {
		return nil, err
	}
	claims := make([]Work, 0, len(ids))
	for _, id := range ids {
		w, err := one(t, "work", scanWork, claimWork, kind, id, owner, fence, micros(t.now.Add(lease)))
		if err != nil {
			return nil, err
		}
		claims = append(claims, w)
	}
	return claims, nil
}

// CompleteWork ends a claim whose work is done. The work is deleted, unless it
// was scheduled after it was claimed: then it becomes due as scheduled. It
// returns [ErrLost] when the fence no longer holds.
func (t *Tx) CompleteWork(w Work) error {
	n, err := t.exec("complete work", completeWork, w.Kind, w.ID, w.Fence, w.Rev)
	if err != nil || n > 0 {
		return err
	}
	n, err = t.exec("reschedule work", rescheduleWork, w.Kind, w.ID, w.Fence, w.Rev)
	t.wake(t.now)
	return lost(n, err)
}

// AgainWork ends a claim whose work went well and is to be done again at due, or
// earlier if it was scheduled so after it was claimed. Attempts start anew.
func (t *Tx) AgainWork(w Work, due time.Time) error {
	n, err := t.exec("repeat work", againWork, w.Kind, w.ID, w.Fence, w.Rev, micros(due))
	t.wake(t.now)
	return lost(n, err)
}

// ReleaseWork ends a claim whose attempt failed, for the reason why: it is due
// again at due. With counts false the attempt does not count.
func (t *Tx) ReleaseWork(w Work, due time.Time, why string, counts bool) error {
	attempt := w.Attempt
	if !counts {
		attempt--
	}
	n, err := t.exec("release work", retryWork, w.Kind, w.ID, w.Fence, why, micros(due), attempt)
	t.wake(due)
	return lost(n, err)
}

// BuryWork ends a claim whose work is given up. It is kept, for people to see
// why, until it is scheduled again or cancelled.
func (t *Tx) BuryWork(w Work, why string) error {
	return lost(t.exec("bury work", buryWork, w.Kind, w.ID, w.Fence, why, micros(t.now), micros(never)))
}

// HeartbeatWork moves the end of a claim to lease from now.
func (t *Tx) HeartbeatWork(kind, id string, fence int64, lease time.Duration) error {
	return lost(t.exec("keep work", heartbeatWork, kind, id, fence, micros(t.now.Add(lease))))
}

// CheckFence returns nil while the claim with the given fence holds, else
// [ErrLost]. In an Update the claim cannot be lost before the commit.
func (t *Tx) CheckFence(kind, id string, fence int64) error {
	query := selectFence
	if t.write && t.d.ForUpdate != "" {
		query += t.d.ForUpdate
	}
	held, err := collect(t, "fence", func(row scanner) (n int64, err error) { return n, row.Scan(&n) },
		query, kind, id, fence)
	return lost(int64(len(held)), err)
}

// NextWork returns when work of the kind is next due, claims that may lapse
// included. It reports false when there is none.
func (t *Tx) NextWork(kind string) (time.Time, bool, error) {
	next, err := collect(t, "next work", func(row scanner) (us int64, err error) { return us, row.Scan(&us) },
		nextWork, kind)
	if err != nil || len(next) == 0 || next[0] >= micros(never) {
		return time.Time{}, false, err
	}
	return instant(next[0]), true, nil
}

// Work returns a piece of work.
func (t *Tx) Work(kind, id string) (Work, error) {
	return one(t, "work", scanWork, selectWork, kind, id)
}

// DeadWork returns what was given up, the latest first; limit 0 means 100.
func (t *Tx) DeadWork(limit int) ([]Work, error) {
	return collect(t, "dead work", scanWork, deadWork, page(limit))
}

// ReleaseOrphanedClaims makes every claim that owner does not hold due at once,
// and returns how many there were. It is right only where this process is the
// only one on the database; elsewhere it changes nothing, and claims lapse.
func (t *Tx) ReleaseOrphanedClaims(owner string) (int64, error) {
	if !t.d.Exclusive {
		return 0, nil
	}
	n, err := t.exec("release orphaned claims", orphanedWork, owner, micros(t.now))
	t.wake(t.now)
	return n, err
}

// lost turns "no row had this fence" into an error.
func lost(n int64, err error) error {
	if err == nil && n == 0 {
		return ErrLost
	}
	return err
}
