package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	logTextBytes  = 4 << 10   // of one agent.log event
	logEvents     = 1000      // agent.log events of a run
	logBytes      = 256 << 10 // bytes of text in them
	tailBytes     = 8 << 10   // of stderr that a crash shows
	errLineBytes  = 4 << 10   // a longer line of stderr is cut
	firstWait     = 2 * time.Millisecond
	maxNesting    = 128 // levels in what the log takes over; readers have parsers with a stack
	methodUpdate  = "session/update"
	methodAsk     = "session/request_permission"
	methodRetract = "$/cancel_request"
)

// line handles one line of the agent's standard output.
func (d *drive) line(line []byte) error {
	m, k := parse(line)
	if k == noise && d.waiting == d.id(stepInitialize) {
		m, k, line = d.greeted(m, line)
	}
	switch k {
	case blank:
	case noise:
		d.noise(line)
	case response:
		if d.waiting == "" || !is(m.id, d.waiting) {
			d.noise(line)
			break
		}
		d.waiting, d.reply = "", &m
		if d.live {
			d.st.Reply = newReply(m)
		}
	case request:
		d.request(m)
	case notification:
		d.notified(m, line)
	}
	return nil
}

// greeted finds the answer to initialize behind a greeting that has no line end
// of its own, as a shell's profile may print. Only there: later on, a message
// inside a line is a log's account of one.
func (d *drive) greeted(m message, line []byte) (message, kind, []byte) {
	i := bytes.IndexByte(line, '{')
	if i <= 0 {
		return m, noise, line
	}
	answer, k := parse(line[i:])
	if k != response || !is(answer.id, d.waiting) {
		return m, noise, line
	}
	d.noise(line[:i])
	return answer, response, line[i:]
}

// notified handles a notification. Unknown ones mean nothing to us.
func (d *drive) notified(m message, line []byte) {
	switch m.method {
	case methodUpdate:
		var p updateParams
		if json.Unmarshal(m.params, &p) != nil || len(p.Update) == 0 || p.Update[0] != '{' || nests(p.Update, maxNesting) {
			d.noise(line)
			return
		}
		d.update(p)
	case methodRetract:
		var p cancelledRequest
		if json.Unmarshal(m.params, &p) == nil {
			d.retract(p.RequestID)
		}
	}
}

// nests reports whether arrays and objects of valid JSON nest deeper than limit.
func nests(data []byte, limit int) bool {
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// update records an update of the turn. Before the prompt it is the replay of
// a loaded conversation, or late news of an earlier turn.
func (d *drive) update(p updateParams) {
	if !d.live {
		d.replayed = d.replayed || p.history()
		return
	}
	data := make([]byte, 0, len(p.Update)+64)
	data = append(data, '{')
	if p.SessionID != d.st.Conversation {
		id, _ := json.Marshal(clip(p.SessionID, 200)) // a string always marshals
		data = append(append(append(data, `"sessionId":`...), id...), ',')
	}
	data = append(append(append(data, `"update":`...), p.Update...), '}')
	d.emit(sojourn.EventAgentUpdate, data)
}

// emit adds an event to the batch. After a pause the first one hardly waits for
// others, so that what somebody is waiting for shows at once; in a stream the
// batches come at their pace.
func (d *drive) emit(t sojourn.EventType, data json.RawMessage) {
	if len(d.batch.Events) == 0 {
		d.due.Reset(max(firstWait, d.h.BatchEvery-time.Since(d.batchAt)))
	}
	d.batch.Events = append(d.batch.Events, harness.Event{Type: t, Data: data})
	d.batchLen += len(data)
}

// noise records standard output outside the protocol, and ends a flood of it.
func (d *drive) noise(line []byte) {
	b := &d.st.Budget
	b.Noise += int64(len(line)) + 1
	d.log(link.Stdout, line)
	if b.Noise > d.h.MaxNoiseBytes && d.end == nil {
		d.end = failed(CodeAgentProtocol, "The agent %s wrote more than %d bytes to its standard output that are not messages of its protocol.", d.name(), d.h.MaxNoiseBytes)
		d.end.Killed = true
	}
}

// stderr records a chunk of standard error, cut into lines.
func (d *drive) stderr(data []byte) {
	d.st.Tail = lastBytes(d.st.Tail+string(data), tailBytes)
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n')
		room := errLineBytes - len(d.errLine)
		switch {
		case i >= 0 && i <= room:
			d.log(link.Stderr, append(d.errLine, data[:i]...))
			d.errLine, data = nil, data[i+1:]
		case len(data) > room:
			d.log(link.Stderr, append(d.errLine, data[:room]...))
			d.errLine, data = nil, data[room:]
		default:
			d.errLine, data = append(d.errLine, data...), nil
		}
	}
}

// lastBytes returns the end of s, at most n bytes of it.
func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }

// log records a line of output outside the protocol while the run's budget for
// that lasts; then it says so, once.
func (d *drive) log(stream string, line []byte) {
	b := &d.st.Budget
	text := strings.TrimRight(clip(string(line[:min(len(line), 2*logTextBytes)]), logTextBytes), " \t\n")
	if strings.TrimSpace(text) == "" || b.Full {
		return
	}
	event := map[string]any{"stream": stream, "text": text}
	if len(line) > 2*logTextBytes {
		event["truncated"] = true
	}
	b.Events++
	b.Bytes += len(text)
	if b.Events >= logEvents || b.Bytes > logBytes {
		b.Full = true
		event = map[string]any{
			"stream": stream, "truncated": true,
			"text": fmt.Sprintf("Further output of the agent outside its protocol is not recorded (after %d lines, %d bytes).", b.Events-1, b.Bytes-len(text)),
		}
	}
	data, _ := json.Marshal(event) // strings and booleans always marshal
	d.emit(sojourn.EventAgentLog, data)
}

// request answers what the agent asks, or asks it outside.
func (d *drive) request(m message) {
	d.st.Requests++
	o := open{Number: d.st.Requests, ID: m.id}
	if m.method != methodAsk {
		d.respond(o.Number, encodeError(m.id, codeNoMethod, "method not found: "+clip(m.method, 100)))
		return
	}
	var p permissionParams
	if json.Unmarshal(m.params, &p) != nil || len(m.params) == 0 || m.params[0] != '{' || nests(m.params, maxNesting) {
		d.respond(o.Number, encodeError(m.id, codeInvalidParams, "invalid params"))
		return
	}
	var options []sojourn.Option
	for _, op := range p.Options[:min(len(p.Options), maxOptions)] {
		if op.OptionID != "" {
			options = append(options, sojourn.Option{ID: op.OptionID, Name: op.Name, Kind: op.Kind})
		}
	}
	if !d.live || d.st.Ending != "" || d.st.Reply != nil || len(options) == 0 || len(d.st.Open) >= maxOpenQuestions {
		d.respond(o.Number, encodeCancelled(m.id)) // nobody can be asked now
		return
	}
	if len(m.params) > maxQuestionBytes {
		m.params = json.RawMessage(`{"truncated":true}`)
	}
	d.st.Open = append(d.st.Open, o)
	d.asked = append(d.asked, o)
	d.batch.Asked = append(d.batch.Asked, harness.Question{
		Ref: o.ref(), Kind: "permission", Request: m.params, Options: options,
	})
}

// retract withdraws the question that the agent no longer asks.
func (d *drive) retract(id json.RawMessage) {
	for _, o := range d.st.Open {
		if bytes.Equal(o.ID, id) {
			d.settle(o.Number, encodeCancelled(o.ID))
			d.batch.Withdrawn = append(d.batch.Withdrawn, o.ref())
			return
		}
	}
}

// answer passes on what came of a question.
func (d *drive) answer(a answered) error {
	if a.err != nil {
		return fmt.Errorf("wait for an answer: %w", a.err)
	}
	for _, o := range d.st.Open {
		if o.Number != a.number {
			continue
		}
		line := encodeCancelled(o.ID)
		if a.ok && a.answer.OptionID != "" {
			line = encodeResult(o.ID, map[string]any{
				"outcome": map[string]any{"outcome": "selected", "optionId": a.answer.OptionID},
			})
		}
		d.settle(o.Number, line)
		return nil
	}
	return nil
}

// settle replies to an open question and closes it.
func (d *drive) settle(number int64, line []byte) {
	d.forget(number)
	for i, o := range d.st.Open {
		if o.Number == number {
			d.st.Open = append(d.st.Open[:i:i], d.st.Open[i+1:]...)
			break
		}
	}
	d.respond(number, line)
}

func encodeCancelled(id json.RawMessage) []byte {
	return encodeResult(id, map[string]any{"outcome": map[string]any{"outcome": "cancelled"}})
}
