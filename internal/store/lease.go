package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	leaseColumns = `session, epoch, state, driver, isolation, handle,
	requested_at, granted_at, touched_at, ended_at, ceiling, hold, end_reason, restored, conversation`

	upsertLease = `INSERT INTO leases (` + leaseColumns + `, destroyed_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 0)
	ON CONFLICT (session, epoch) DO UPDATE SET state = excluded.state, driver = excluded.driver,
	isolation = excluded.isolation, handle = excluded.handle, granted_at = excluded.granted_at,
	touched_at = excluded.touched_at, ended_at = excluded.ended_at, ceiling = excluded.ceiling,
	hold = excluded.hold, end_reason = excluded.end_reason, restored = excluded.restored,
	conversation = excluded.conversation`

	selectLease = `SELECT ` + leaseColumns + ` FROM leases WHERE session = $1 AND epoch = $2`

	openLeases = `SELECT ` + leaseColumns + ` FROM leases WHERE state NOT IN ('released', 'expired', 'lost')
	ORDER BY session`

	undestroyedLeases = `SELECT ` + leaseColumns + ` FROM leases WHERE ended_at > 0 AND destroyed_at = 0
	ORDER BY session, epoch`

	markDestroyed = `UPDATE leases SET destroyed_at = $3
	WHERE session = $1 AND epoch = $2 AND ended_at > 0 AND destroyed_at = 0`
)

func scanLease(row scanner) (l sojourn.Lease, err error) {
	var handle string
	var requested, granted, touched, ended, ceiling, hold int64
	err = row.Scan(&l.Session, &l.Epoch, &l.State, &l.Driver, &l.Isolation, &handle,
		&requested, &granted, &touched, &ended, &ceiling, &hold, &l.EndReason, &l.Restored, &l.Conversation)
	if err != nil {
		return l, err
	}
	l.Handle = raw(handle)
	l.RequestedAt, l.GrantedAt, l.TouchedAt, l.EndedAt = instant(requested), instant(granted), instant(touched), instant(ended)
	l.Ceiling, l.Hold = duration(ceiling), duration(hold)
	return l, nil
}

func (t *Tx) putLease(l sojourn.Lease) error {
	_, err := t.exec("write lease", upsertLease, l.Session, l.Epoch, l.State, l.Driver, l.Isolation, string(l.Handle),
		micros(l.RequestedAt), micros(l.GrantedAt), micros(l.TouchedAt), micros(l.EndedAt),
		l.Ceiling.Microseconds(), l.Hold.Microseconds(), l.EndReason, l.Restored, l.Conversation)
	return err
}

// Lease returns the lease with the given epoch.
func (t *Tx) Lease(session sojourn.SessionID, epoch int64) (sojourn.Lease, error) {
	return one(t, "lease", scanLease, selectLease, session, epoch)
}

// OpenLeases returns every lease that is not terminal, of all sessions.
func (t *Tx) OpenLeases() ([]sojourn.Lease, error) {
	return collect(t, "leases", scanLease, openLeases)
}

// UndestroyedLeases returns every lease that has ended but whose sandbox is not
// known to be destroyed.
func (t *Tx) UndestroyedLeases() ([]sojourn.Lease, error) {
	return collect(t, "leases", scanLease, undestroyedLeases)
}

// MarkDestroyed records that an ended lease's sandbox is destroyed. For a lease
// that has not ended, or is marked already, it changes nothing.
func (t *Tx) MarkDestroyed(session sojourn.SessionID, epoch int64) error {
	_, err := t.exec("mark lease destroyed", markDestroyed, session, epoch, micros(t.now))
	return err
}
