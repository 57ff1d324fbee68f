package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	leaseColumns = `session, epoch, state, driver, isolation, handle,
	requested_at, granted_at, touched_at, ended_at, ceiling, hold, end_reason, restored, conversation,
	visited_at, save_processes, resumed`

	upsertLease = `INSERT INTO leases (` + leaseColumns + `, destroyed_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 0)
	ON CONFLICT (session, epoch) DO UPDATE SET state = excluded.state, driver = excluded.driver,
	isolation = excluded.isolation, handle = excluded.handle, granted_at = excluded.granted_at,
	touched_at = excluded.touched_at, ended_at = excluded.ended_at, ceiling = excluded.ceiling,
	hold = excluded.hold, end_reason = excluded.end_reason, restored = excluded.restored,
	conversation = excluded.conversation, visited_at = excluded.visited_at,
	save_processes = excluded.save_processes, resumed = excluded.resumed`

	selectLease = `SELECT ` + leaseColumns + ` FROM leases WHERE session = $1 AND epoch = $2`

	openLeases = `SELECT ` + leaseColumns + ` FROM leases WHERE state NOT IN ('released', 'expired', 'lost')
	ORDER BY session`

	undestroyedLeases = `SELECT ` + leaseColumns + ` FROM leases WHERE ended_at > 0 AND destroyed_at = 0
	ORDER BY session, epoch`

	undestroyedOf = `SELECT ` + leaseColumns + ` FROM leases
	WHERE session = $1 AND ended_at > 0 AND destroyed_at = 0 ORDER BY epoch`

	leaseWorked = `SELECT COUNT(*) FROM runs WHERE session = $1 AND epoch = $2 AND active_at > 0`

	selectLeaseState = `SELECT state FROM lease_states WHERE session = $1 AND epoch = $2`
	deleteLeaseState = `DELETE FROM lease_states WHERE session = $1 AND epoch = $2`

	upsertLeaseState = `INSERT INTO lease_states (session, epoch, state, updated_at)
	SELECT session, epoch, $3, $4 FROM leases WHERE session = $1 AND epoch = $2
	AND state NOT IN ('released', 'expired', 'lost')
	ON CONFLICT (session, epoch) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at`

	markDestroyed = `UPDATE leases SET destroyed_at = $3
	WHERE session = $1 AND epoch = $2 AND ended_at > 0 AND destroyed_at = 0`
)

func scanLease(row scanner) (l sojourn.Lease, err error) {
	var handle string
	var requested, granted, touched, ended, ceiling, hold, visited, save int64
	err = row.Scan(&l.Session, &l.Epoch, &l.State, &l.Driver, &l.Isolation, &handle,
		&requested, &granted, &touched, &ended, &ceiling, &hold, &l.EndReason, &l.Restored, &l.Conversation,
		&visited, &save, &l.Resumed)
	if err != nil {
		return l, err
	}
	l.Handle = raw(handle)
	l.RequestedAt, l.GrantedAt, l.TouchedAt, l.EndedAt = instant(requested), instant(granted), instant(touched), instant(ended)
	l.Ceiling, l.Hold = duration(ceiling), duration(hold)
	l.VisitedAt, l.SaveProcesses = instant(visited), save != 0
	return l, nil
}

func (t *Tx) putLease(l sojourn.Lease) error {
	_, err := t.exec("write lease", upsertLease, l.Session, l.Epoch, l.State, l.Driver, l.Isolation, string(l.Handle),
		micros(l.RequestedAt), micros(l.GrantedAt), micros(l.TouchedAt), micros(l.EndedAt),
		l.Ceiling.Microseconds(), l.Hold.Microseconds(), l.EndReason, l.Restored, l.Conversation,
		micros(l.VisitedAt), flag(l.SaveProcesses), l.Resumed)
	if err == nil && l.State.Terminal() {
		_, err = t.exec("delete lease state", deleteLeaseState, l.Session, l.Epoch)
	}
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

// UndestroyedLeasesOf is UndestroyedLeases for one session.
func (t *Tx) UndestroyedLeasesOf(session sojourn.SessionID) ([]sojourn.Lease, error) {
	return collect(t, "leases", scanLease, undestroyedOf, session)
}

// LeaseWorked reports whether a run's prompt may have reached an agent under the
// lease.
func (t *Tx) LeaseWorked(session sojourn.SessionID, epoch int64) (bool, error) {
	n, err := one(t, "lease", func(row scanner) (n int64, err error) {
		return n, row.Scan(&n)
	}, leaseWorked, session, epoch)
	return n > 0, err
}

// LeaseState returns what a harness keeps privately about the agent in the
// lease's sandbox, or nil.
func (t *Tx) LeaseState(session sojourn.SessionID, epoch int64) ([]byte, error) {
	states, err := collect(t, "lease state", func(row scanner) (b []byte, err error) {
		return b, row.Scan(&b)
	}, selectLeaseState, session, epoch)
	if err != nil || len(states) == 0 {
		return nil, err
	}
	return states[0], nil
}

// PutLeaseState keeps a harness's private state until the lease ends, when it is
// deleted. Under a lease that is over it is refused with workspace_expired.
func (t *Tx) PutLeaseState(session sojourn.SessionID, epoch int64, state []byte) error {
	if state == nil {
		state = []byte{}
	}
	n, err := t.exec("write lease state", upsertLeaseState, session, epoch, state, micros(t.now))
	if err == nil && n == 0 {
		return sojourn.Errorf(sojourn.CodeWorkspaceExpired, "Lease epoch %d is over.", epoch)
	}
	return err
}
