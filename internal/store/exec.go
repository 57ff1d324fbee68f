package store

import (
	"math"

	"github.com/sojourn-dev/sojourn"
)

const (
	execColumns = `id, session, number, state, spec, epoch, queued_at, started_at, ended_at,
	ending, killed, reason, result, rate, cost`

	upsertExec = `INSERT INTO execs (` + execColumns + `, detached)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
	ON CONFLICT (id) DO UPDATE SET state = excluded.state, epoch = excluded.epoch,
	started_at = excluded.started_at, ended_at = excluded.ended_at, ending = excluded.ending, killed = excluded.killed,
	reason = excluded.reason, result = excluded.result, rate = excluded.rate, cost = excluded.cost`

	selectExec = `SELECT ` + execColumns + ` FROM execs WHERE id = $1`

	selectExecs = `SELECT ` + execColumns + ` FROM execs
	WHERE session = $1 AND number < $2 ORDER BY number DESC LIMIT $3`

	// ofOpen is true of the rows in the index of those that are not over, and names
	// them as the index does: only then is it used.
	ofOpen = `session = $1 AND state IN ('parked', 'queued', 'running')`

	// Detached ones come first: they wait for nobody. Of either kind there are some,
	// so that those which wait for a place never hide the others.
	selectOpenExecs = `SELECT ` + execColumns + ` FROM execs
	WHERE ` + ofOpen + ` AND (state <> 'queued'
	OR number IN (SELECT number FROM execs WHERE ` + ofOpen + ` AND state = 'queued' AND detached = 1 ORDER BY number LIMIT $2)
	OR number IN (SELECT number FROM execs WHERE ` + ofOpen + ` AND state = 'queued' AND detached = 0 ORDER BY number LIMIT $2))
	ORDER BY detached DESC, number`

	countOpenExecs = `SELECT COUNT(*) FROM execs WHERE ` + ofOpen

	insertExecInput = `INSERT INTO exec_inputs (exec, data) VALUES ($1, $2)`
	selectExecInput = `SELECT data FROM exec_inputs WHERE exec = $1`
	deleteExecInput = `DELETE FROM exec_inputs WHERE exec = $1`

	upsertExecOutput = `INSERT INTO exec_outputs (exec, data) VALUES ($1, $2)
	ON CONFLICT (exec) DO UPDATE SET data = excluded.data`
	selectExecOutput = `SELECT data FROM exec_outputs WHERE exec = $1`
)

// queuedInFacts is how many queued execs of either kind facts hold: those that may
// start next.
const queuedInFacts = 4

func scanExec(row scanner) (x sojourn.Exec, err error) {
	var spec, result, rate string
	var queued, started, ended, killed int64
	err = row.Scan(&x.ID, &x.Session, &x.Number, &x.State, &spec, &x.Epoch, &queued, &started, &ended,
		&x.Ending, &killed, &x.Reason, &result, &rate, &x.Cost)
	if err != nil {
		return x, err
	}
	x.QueuedAt, x.StartedAt, x.EndedAt, x.Kill = instant(queued), instant(started), instant(ended), killed != 0
	if err := decode(spec, &x.Spec); err != nil {
		return x, err
	}
	if err := decode(rate, &x.Rate); err != nil {
		return x, err
	}
	return x, decode(result, &x.Result)
}

func (t *Tx) putExec(x sojourn.Exec) error {
	spec, err := encoded(x.Spec, false)
	if err != nil {
		return t.fail("encode an exec", err)
	}
	result, err := encoded(x.Result, x.Result == sojourn.ExecResult{})
	if err != nil {
		return t.fail("encode the result of an exec", err)
	}
	rate, err := encoded(x.Rate, x.Rate == sojourn.ExecRate{})
	if err != nil {
		return t.fail("encode the rate of an exec", err)
	}
	_, err = t.exec("write exec", upsertExec, x.ID, x.Session, x.Number, x.State, spec, x.Epoch,
		micros(x.QueuedAt), micros(x.StartedAt), micros(x.EndedAt), x.Ending, flag(x.Kill), x.Reason, result, rate,
		x.Cost, flag(x.Spec.Detached))
	if err == nil && x.State.Terminal() && x.Spec.Stdin == sojourn.StdinGiven {
		_, err = t.exec("delete the input of an exec", deleteExecInput, x.ID)
	}
	return err
}

// Exec returns an exec.
func (t *Tx) Exec(id sojourn.ExecID) (sojourn.Exec, error) {
	return one(t, "exec", scanExec, selectExec, id)
}

// Execs returns execs of a session with a number below before (0 for the newest),
// newest first, at most limit (0 means 100).
func (t *Tx) Execs(session sojourn.SessionID, before int64, limit int) ([]sojourn.Exec, error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	size := func(x sojourn.Exec) (n int) {
		for _, a := range x.Spec.Argv {
			n += len(a)
		}
		return n
	}
	return collectWithin(t, "execs", pageBytes, size, scanExec, selectExecs, session, before, page(limit))
}

// CountOpenExecs returns how many execs of a session are not terminal.
func (t *Tx) CountOpenExecs(session sojourn.SessionID) (int, error) {
	return one(t, "execs", scanInt, countOpenExecs, session)
}

// ExecInput returns what an exec that has not ended is to read; nil for nothing.
func (t *Tx) ExecInput(id sojourn.ExecID) ([]byte, error) {
	return t.blobOf("input of an exec", selectExecInput, id)
}

// ExecOutput returns what [Tx.PutExecOutput] kept; nil for nothing.
func (t *Tx) ExecOutput(id sojourn.ExecID) ([]byte, error) {
	return t.blobOf("output of an exec", selectExecOutput, id)
}

// PutExecOutput keeps the little that an exec has written.
func (t *Tx) PutExecOutput(id sojourn.ExecID, data []byte) error {
	_, err := t.exec("write the output of an exec", upsertExecOutput, id, data)
	return err
}

func (t *Tx) blobOf(what, query string, args ...any) ([]byte, error) {
	found, err := collect(t, what, func(row scanner) (b []byte, err error) {
		return b, row.Scan(&b)
	}, query, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

func scanInt(row scanner) (n int, err error) { return n, row.Scan(&n) }
