package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	turnColumns = `id, session, number, input, submitted_at`

	insertTurn = `INSERT INTO turns (` + turnColumns + `) VALUES ($1, $2, $3, $4, $5)`
	selectTurn = `SELECT ` + turnColumns + ` FROM turns WHERE id = $1`

	selectTurns = `SELECT ` + turnColumns + ` FROM turns
	WHERE session = $1 AND number > $2 ORDER BY number LIMIT $3`
)

func scanTurn(row scanner) (t sojourn.Turn, err error) {
	var input string
	var submitted int64
	if err := row.Scan(&t.ID, &t.Session, &t.Number, &input, &submitted); err != nil {
		return t, err
	}
	t.SubmittedAt = instant(submitted)
	return t, decode(input, &t.Input)
}

func (t *Tx) insertTurn(turn sojourn.Turn) error {
	input, err := encoded(turn.Input, turn.Input == nil)
	if err != nil {
		return t.fail("encode input", err)
	}
	_, err = t.exec("insert turn", insertTurn, turn.ID, turn.Session, turn.Number, input, micros(turn.SubmittedAt))
	return err
}

// Turn returns a turn.
func (t *Tx) Turn(id sojourn.TurnID) (sojourn.Turn, error) {
	return one(t, "turn", scanTurn, selectTurn, id)
}

// Turns returns turns of a session with a number above after, in order: at most
// limit (0 means 100) and about 4 MiB of input, yet at least one if there is one.
func (t *Tx) Turns(session sojourn.SessionID, after int64, limit int) ([]sojourn.Turn, error) {
	size := func(turn sojourn.Turn) (n int) {
		for _, p := range turn.Input {
			n += len(p.Text) + len(p.Data)
		}
		return n
	}
	return collectWithin(t, "turns", pageBytes, size, scanTurn, selectTurns, session, after, page(limit))
}
