package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	runColumns = `id, session, turn, state, epoch,
	queued_at, started_at, active_at, sealing_at, ended_at, cancel_at, stop_reason, error, final, model_error`

	upsertRun = `INSERT INTO runs (` + runColumns + `)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
	ON CONFLICT (id) DO UPDATE SET state = excluded.state, epoch = excluded.epoch,
	started_at = excluded.started_at, active_at = excluded.active_at, sealing_at = excluded.sealing_at,
	ended_at = excluded.ended_at, cancel_at = excluded.cancel_at, stop_reason = excluded.stop_reason,
	error = excluded.error, final = excluded.final, model_error = excluded.model_error`

	selectRun       = `SELECT ` + runColumns + ` FROM runs WHERE id = $1`
	selectRunOfTurn = `SELECT ` + runColumns + ` FROM runs WHERE turn = $1 ORDER BY queued_at DESC, id DESC LIMIT 1`

	selectRuns = `SELECT ` + runColumns + ` FROM runs
	WHERE session = $1 AND (queued_at, id) > ($2, $3) ORDER BY queued_at, id LIMIT $4`

	activeRuns = `SELECT ` + runColumns + ` FROM runs
	WHERE state NOT IN ('completed', 'failed', 'crashed', 'cancelled')`

	sealingRuns = `SELECT ` + runColumns + ` FROM runs WHERE state = 'sealing'`
)

func scanRun(row scanner) (r sojourn.Run, err error) {
	var queued, started, active, sealing, ended, cancel int64
	var why, model string
	err = row.Scan(&r.ID, &r.Session, &r.Turn, &r.State, &r.Epoch,
		&queued, &started, &active, &sealing, &ended, &cancel, &r.StopReason, &why, &r.Final, &model)
	if err != nil {
		return r, err
	}
	r.QueuedAt, r.StartedAt, r.ActiveAt = instant(queued), instant(started), instant(active)
	r.SealingAt, r.EndedAt, r.CancelAt = instant(sealing), instant(ended), instant(cancel)
	if err := decode(why, &r.Error); err != nil {
		return r, err
	}
	return r, decode(model, &r.ModelError)
}

func (t *Tx) putRun(r sojourn.Run) error {
	why, err := encoded(r.Error, r.Error == nil)
	if err != nil {
		return t.fail("encode run error", err)
	}
	model, err := encoded(r.ModelError, r.ModelError == nil)
	if err != nil {
		return t.fail("encode model error", err)
	}
	_, err = t.exec("write run", upsertRun, r.ID, r.Session, r.Turn, r.State, r.Epoch,
		micros(r.QueuedAt), micros(r.StartedAt), micros(r.ActiveAt), micros(r.SealingAt), micros(r.EndedAt),
		micros(r.CancelAt), r.StopReason, why, r.Final, model)
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

// SealingRuns returns every run whose agent is done and whose checkpoint is being
// made, of all sessions, in no order.
func (t *Tx) SealingRuns() ([]sojourn.Run, error) {
	return collect(t, "runs", scanRun, sealingRuns)
}
