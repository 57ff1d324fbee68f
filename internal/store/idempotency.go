package store

import (
	"time"

	"github.com/sojourn-dev/sojourn"
)

const (
	selectRemembered = `SELECT hash, status, body, created_at, expires_at FROM idempotency
	WHERE project = $1 AND key = $2 AND expires_at > $3`

	// A record that has run out is taken over; a valid one is not touched.
	insertRemembered = `INSERT INTO idempotency (project, key, hash, status, body, created_at, expires_at)
	VALUES ($1, $2, $3, 0, $4, $5, $6)
	ON CONFLICT (project, key) DO UPDATE SET hash = excluded.hash, status = 0, body = excluded.body,
	created_at = excluded.created_at, expires_at = excluded.expires_at
	WHERE idempotency.expires_at <= excluded.created_at`

	updateReply = `UPDATE idempotency SET status = $3, body = $4 WHERE project = $1 AND key = $2`

	forgetExpired = `DELETE FROM idempotency WHERE expires_at <= $1`
)

// IdempotencyKey is a caller's name for one command.
type IdempotencyKey struct {
	Project sojourn.ProjectID
	Key     string
}

// Remembered is a command that was carried out under an idempotency key.
type Remembered struct {
	Status    int    // of the reply
	Body      []byte // of the reply
	CreatedAt time.Time
	ExpiresAt time.Time
}

// Remember claims a key for the command that this transaction carries out. It
// returns nil when the command is new: the caller carries it out, and calls
// StoreReply before the commit. It returns the earlier reply when the same
// command, by its hash, was carried out before, and refuses another command
// with idempotency_conflict. When the transaction fails the key stays free.
func (t *Tx) Remember(key IdempotencyKey, hash [32]byte, expires time.Time) (*Remembered, error) {
	n, err := t.exec("remember command", insertRemembered,
		key.Project, key.Key, hashText(hash), []byte{}, micros(t.now), micros(expires))
	if err != nil || n > 0 {
		return nil, err
	}
	var stored string
	prior, err := one(t, "idempotency record", func(row scanner) (r Remembered, err error) {
		var created, ends int64
		err = row.Scan(&stored, &r.Status, &r.Body, &created, &ends)
		r.CreatedAt, r.ExpiresAt = instant(created), instant(ends)
		return r, err
	}, selectRemembered, key.Project, key.Key, micros(t.now))
	if err != nil {
		return nil, err
	}
	if stored != hashText(hash) {
		return nil, sojourn.Errorf(sojourn.CodeIdempotencyConflict,
			"This Idempotency-Key was used with another request. Use a new key.")
	}
	return &prior, nil
}

// StoreReply keeps the reply that a repeat of the command will get.
func (t *Tx) StoreReply(key IdempotencyKey, status int, body []byte) error {
	if body == nil {
		body = []byte{}
	}
	n, err := t.exec("store reply", updateReply, key.Project, key.Key, status, body)
	if err == nil && n == 0 {
		return sojourn.Errorf(sojourn.CodeInternal, "A reply was stored for a command that was not remembered.")
	}
	return err
}

// ForgetExpired deletes the idempotency records that have run out, and returns
// how many there were.
func (t *Tx) ForgetExpired() (int64, error) {
	return t.exec("forget commands", forgetExpired, micros(t.now))
}
