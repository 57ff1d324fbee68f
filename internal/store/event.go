package store

import (
	"encoding/json"

	"github.com/sojourn-dev/sojourn"
)

const (
	insertEvent = `INSERT INTO events (session, seq, at, type, turn, run, data) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	selectEvents = `SELECT session, seq, at, type, turn, run, data FROM events
	WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3`
)

// eventPageBytes bounds what one call of Events reads into memory.
const eventPageBytes = 4 << 20

// appendEvents numbers the drafts from the session's counter on, which
// writeSession has raised by as many.
func (t *Tx) appendEvents(s sojourn.Session, drafts []sojourn.EventDraft) error {
	if len(drafts) == 0 {
		return nil
	}
	events := make([]sojourn.Event, len(drafts))
	for i, d := range drafts {
		if len(d.Data) == 0 {
			d.Data = json.RawMessage("{}")
		}
		events[i] = sojourn.Event{
			Session: s.ID, Seq: s.LastSeq + 1 + int64(i), At: t.now,
			Type: d.Type, Turn: d.Turn, Run: d.Run, Data: d.Data,
		}
		e := &events[i]
		_, err := t.exec("insert event", insertEvent, e.Session, e.Seq, micros(e.At), e.Type, e.Turn, e.Run, string(e.Data))
		if err != nil {
			return err
		}
	}
	if t.publish != nil {
		t.OnCommit(func() { t.publish(s.ID, events) })
	}
	return nil
}

// Events returns the session's events behind seq after, in order: at most limit
// (0 means 100) and about 4 MiB of data, yet at least one if there is one. An
// unknown session has none.
func (t *Tx) Events(id sojourn.SessionID, after int64, limit int) ([]sojourn.Event, error) {
	rows, err := t.q.QueryContext(t.ctx, selectEvents, id, after, page(limit))
	if err != nil {
		return nil, t.fail("read events", err)
	}
	defer rows.Close()
	var all []sojourn.Event
	for bytes := 0; bytes < eventPageBytes && rows.Next(); {
		var e sojourn.Event
		var at int64
		var data string
		if err := rows.Scan(&e.Session, &e.Seq, &at, &e.Type, &e.Turn, &e.Run, &data); err != nil {
			return nil, t.fail("read events", err)
		}
		e.At, e.Data = instant(at), json.RawMessage(data)
		if bytes += len(data); bytes > eventPageBytes && len(all) > 0 {
			break
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		return nil, t.fail("read events", err)
	}
	return all, nil
}
