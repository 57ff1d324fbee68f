package store

import (
	"github.com/sojourn-dev/sojourn"
)

// purges delete the rows of one session, but its own, in batches of $2. What refers
// to others comes first.
var purges = []string{
	`DELETE FROM exec_inputs WHERE exec IN (SELECT i.exec FROM exec_inputs i JOIN execs x ON x.id = i.exec WHERE x.session = $1 LIMIT $2)`,
	`DELETE FROM exec_outputs WHERE exec IN (SELECT o.exec FROM exec_outputs o JOIN execs x ON x.id = o.exec WHERE x.session = $1 LIMIT $2)`,
	`DELETE FROM execs WHERE id IN (SELECT id FROM execs WHERE session = $1 LIMIT $2)`,
	`DELETE FROM interactions WHERE id IN (SELECT id FROM interactions WHERE session = $1 LIMIT $2)`,
	`DELETE FROM carryovers WHERE session = $1 AND $2 > 0`,
	`DELETE FROM tools WHERE session = $1 AND $2 > 0`,
	`DELETE FROM events WHERE session = $1 AND seq IN (SELECT seq FROM events WHERE session = $1 ORDER BY seq LIMIT $2)`,
	`DELETE FROM checkpoint_packs WHERE checkpoint IN (SELECT id FROM checkpoints WHERE session = $1 ORDER BY id LIMIT $2)`,
	`DELETE FROM checkpoints WHERE id IN (SELECT id FROM checkpoints WHERE session = $1 ORDER BY id LIMIT $2)`,
}

// Purge deletes up to batch rows of each kind that a deleted session has left, and
// reports whether there may be more. The session's own row stays, without a head:
// its id and its numbers are never used again. So do its leases, which say what
// sandboxes are still to be destroyed. A session that is not deleted is
// left alone.
func (t *Tx) Purge(id sojourn.SessionID, batch int) (more bool, err error) {
	s, err := t.Session(id)
	if err != nil || s.DeletedAt.IsZero() {
		return false, err
	}
	if s.Head != "" {
		if _, err := t.exec("forget the head", `UPDATE sessions SET head = '' WHERE id = $1`, id); err != nil {
			return false, err
		}
	}
	for _, query := range purges {
		n, err := t.exec("purge a session", query, id, batch)
		if err != nil {
			return false, err
		}
		if n >= int64(batch) { // what it refers to must wait
			return true, nil
		}
	}
	return false, nil
}
