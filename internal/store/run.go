package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	runColumns = `id, session, turn, state, epoch,
	queued_at, started_at, active_at, sealing_at, ended_at, cancel_at, stop_reason, error, final`

	upsertRun = `INSERT INTO runs (` + runColumns + `)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
	ON CONFLICT (id) DO UPDATE SET state = excluded.state, epoch = excluded.epoch,
	started_at = excluded.started_at, active_at = excluded.active_at, sealing_at = excluded.sealing_at,
	ended_at = excluded.ended_at, cancel_at = excluded.cancel_at, stop_reason = excluded.stop_reason,
	error = excluded.error, final = excluded.final`

	selectRun       = `SELECT ` + runColumns + ` FROM runs WHERE id = $1`
	selectRunOfTurn = `SELECT ` + runColumns + ` FROM runs WHERE turn = $1 ORDER BY queued_at DESC, id DESC LIMIT 1`

	selectRuns = `SELECT ` + runColumns + ` FROM runs
	WHERE session = $1 AND (queued_at, id) > ($2, $3) ORDER BY queued_at, id LIMIT $4`

	activeRuns = `SELECT ` + runColumns + ` FROM runs
	WHERE state NOT IN ('completed', 'failed', 'crashed', 'cancelled')`

	selectRunState = `SELECT state FROM run_states WHERE run = $1`
	deleteRunState = `DELETE FROM run_states WHERE run = $1`

	upsertRunState = `INSERT INTO run_states (run, state, updated_at)
	SELECT id, $2, $3 FROM runs WHERE id = $1
	AND state NOT IN ('completed', 'failed', 'crashed', 'cancelled')
	ON CONFLICT (run) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at`
)

func scanRun(row scanner) (r sojourn.Run, err error) {
	var queued, started, active, sealing, ended, cancel int64
	var why string
	err = row.Scan(&r.ID, &r.Session, &r.Turn, &r.State, &r.Epoch,
		&queued, &started, &active, &sealing, &ended, &cancel, &r.StopReason, &why, &r.Final)
	if err != nil {
		return r, err
	}
	r.QueuedAt, r.StartedAt, r.ActiveAt = instant(queued), instant(started), instant(active)
	r.SealingAt, r.EndedAt, r.CancelAt = instant(sealing), instant(ended), instant(cancel)
	return r, decode(why, &r.Error)
}

func (t *Tx) putRun(r sojourn.Run) error {
	why, err := encoded(r.Error, r.Error == nil)
	if err != nil {
		return t.fail("encode run error", err)
	}
	_, err = t.exec("write run", upsertRun, r.ID, r.Session, r.Turn, r.State, r.Epoch,
		micros(r.QueuedAt), micros(r.StartedAt), micros(r.ActiveAt), micros(r.SealingAt), micros(r.EndedAt),
		micros(r.CancelAt), r.StopReason, why, r.Final)
	if err == nil && r.State.Terminal() {
		_, err = t.exec("delete run state", deleteRunState, r.ID)
	}
	return err
}

// Run returns a run.
func (t *Tx) Run(id sojourn.RunID) (sojourn.Run, error) {
	return one(t, "run", scanRun, selectRun, id)
}

// RunOfTurn returns the latest run of a turn.
func (t *Tx) RunOfTurn(id sojourn.TurnID) (sojourn.Run, error) {
	return one(t, "run", scanRun, selectRunOfTurn, id)
}

// Runs returns runs of a session in the order they were queued, behind the run
// after ("" to start); limit 0 means 100.
func (t *Tx) Runs(session sojourn.SessionID, after sojourn.RunID, limit int) ([]sojourn.Run, error) {
	queued := int64(-1)
	if after != "" {
		r, err := t.Run(after)
		if err != nil {
			return nil, err
		}
		queued = micros(r.QueuedAt)
	}
	return collect(t, "runs", scanRun, selectRuns, session, queued, after, page(limit))
}

// ActiveRuns returns every run that is not terminal, of all sessions, in no order.
func (t *Tx) ActiveRuns() ([]sojourn.Run, error) {
	return collect(t, "runs", scanRun, activeRuns)
}

// RunState returns what a harness keeps privately about a run, or nil.
func (t *Tx) RunState(id sojourn.RunID) ([]byte, error) {
	states, err := collect(t, "run state", func(row scanner) (b []byte, err error) {
		return b, row.Scan(&b)
	}, selectRunState, id)
	if err != nil || len(states) == 0 {
		return nil, err
	}
	return states[0], nil
}

// PutRunState keeps a harness's private state until the run ends, when it is
// deleted. For a run that is over it is refused with execution_lost.
func (t *Tx) PutRunState(id sojourn.RunID, state []byte) error {
	if state == nil {
		state = []byte{}
	}
	n, err := t.exec("write run state", upsertRunState, id, state, micros(t.now))
	if err == nil && n == 0 {
		return sojourn.Errorf(sojourn.CodeExecutionLost, "Run %s is not active.", id)
	}
	return err
}
