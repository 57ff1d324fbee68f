package store

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/sojourn-dev/sojourn"
)

const (
	insertEvent = `INSERT INTO events (session, seq, at, type, turn, run, data) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	raiseSeq = `UPDATE sessions SET last_seq = last_seq + $2, updated_at = $3 WHERE id = $1 RETURNING last_seq`

	selectEvents = `SELECT session, seq, at, type, turn, run, data FROM events
	WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3`

	selectEventsOf = `SELECT session, seq, at, type, turn, run, data FROM events
	WHERE session = $1 AND seq > $2 AND type IN (` // and so on
)

// AppendEvents appends events that change nothing else, and returns the number
// of the last. It is what applying [sojourn.Decision.Note] does, without reading
// the session's facts first: for the many small events of an agent at work.
func (t *Tx) AppendEvents(id sojourn.SessionID, drafts ...sojourn.EventDraft) (int64, error) {
	last, err := one(t, "session", func(row scanner) (seq int64, err error) {
		return seq, row.Scan(&seq)
	}, raiseSeq, id, int64(len(drafts)), micros(t.now))
	if err != nil {
		return 0, err
	}
	return last, t.insertEvents(id, last-int64(len(drafts)), drafts)
}

// insertEvents numbers the drafts from behind seq after on: the caller has raised
// the session's counter by as many.
func (t *Tx) insertEvents(id sojourn.SessionID, after int64, drafts []sojourn.EventDraft) error {
	if len(drafts) == 0 {
		return nil
	}
	events := make([]sojourn.Event, len(drafts))
	for i, d := range drafts {
		if len(d.Data) == 0 {
			d.Data = json.RawMessage("{}")
		}
		e := sojourn.Event{
			Session: id, Seq: after + 1 + int64(i), At: t.now,
			Type: d.Type, Turn: d.Turn, Run: d.Run, Data: d.Data,
		}
		_, err := t.exec("insert event", insertEvent, e.Session, e.Seq, micros(e.At), e.Type, e.Turn, e.Run, string(e.Data))
		if err != nil {
			return err
		}
		events[i] = e
	}
	if t.publish != nil {
		t.OnCommit(func() { t.publish(id, events) })
	}
	return nil
}

func scanEvent(row scanner) (e sojourn.Event, err error) {
	var at int64
	var data string
	err = row.Scan(&e.Session, &e.Seq, &at, &e.Type, &e.Turn, &e.Run, &data)
	e.At, e.Data = instant(at), json.RawMessage(data)
	return e, err
}

// Events returns the session's events behind seq after, in order: at most limit
// (0 means 100) and about 4 MiB of data, yet at least one if there is one. With types
// it returns those of these types only. An unknown session has none.
func (t *Tx) Events(id sojourn.SessionID, after int64, limit int, types ...sojourn.EventType) ([]sojourn.Event, error) {
	size := func(e sojourn.Event) int { return len(e.Data) }
	query, args := selectEvents, []any{id, after, page(limit)}
	if len(types) > 0 {
		var places strings.Builder
		for i, of := range types {
			if i > 0 {
				places.WriteByte(',')
			}
			args = append(args, of)
			places.WriteString("$" + strconv.Itoa(len(args)))
		}
		query = selectEventsOf + places.String() + `) ORDER BY seq LIMIT $3`
	}
	return collectWithin(t, "events", pageBytes, size, scanEvent, query, args...)
}
