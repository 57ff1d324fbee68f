package exec

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/hub"
)

// Event is an appended fact of a session.
type Event struct {
	Seq       int64           `json:"seq" doc:"Starts at 1 in each session and has no gap."`
	Type      string          `json:"type"`
	Timestamp api.Time        `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
}

type eventsInput struct {
	api.SessionPath
	Limit       int      `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Of a page; a stream does not look at it."`
	After       string   `query:"after" doc:"The seq of the last event that you have; 0 or absent for the whole log."`
	Type        []string `query:"type,explode" doc:"Only events of these types, separated by commas or repeated."`
	LastEventID string   `header:"Last-Event-ID" doc:"The same as after; when both are sent it wins and after is not looked at."`
	Accept      string   `header:"Accept" hidden:"true"`
}

// EventsBody is a page of events.
type EventsBody struct {
	Events    []Event `json:"events"`
	NextAfter *int64  `json:"nextAfter,omitempty" doc:"The after of the next page; absent when the log ends here for now."`
	LastSeq   int64   `json:"lastSeq" doc:"The number of the session's last event."`
}

func (h *handler) events(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "listEvents", Method: http.MethodGet, Path: sessionPath + "/events",
		Scope: ScopeRead, Summary: "Read or follow the event history", Page: EventsBody{},
		Description: "With \"Accept: text/event-stream\" the answer is a stream: what is in the log behind the cursor, then what happens, each event once. " +
			"After a cut, resume with Last-Event-ID. A cursor that is no number, or beyond the end of the log, is refused.",
	}, h.listEvents)
}

// renamed are the types that the contract has another word for.
var renamed = map[sojourn.EventType]string{sojourn.EventBudgetReached: "budget.exhausted"}

func typeOf(t sojourn.EventType) string {
	if name, ok := renamed[t]; ok {
		return name
	}
	return string(t)
}

// typesOf reads a filter; nil selects all.
func typesOf(given []string) (types []sojourn.EventType, err error) {
	for _, list := range given {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.TrimSpace(name)
			i := slices.IndexFunc(sojourn.EventTypes, func(t sojourn.EventType) bool { return typeOf(t) == name })
			if i < 0 {
				return nil, sojourn.Errorf(sojourn.CodeInvalid, "type: there are no events of type %.64q.", name)
			}
			types = append(types, sojourn.EventTypes[i])
		}
	}
	return types, nil
}

func (h *handler) listEvents(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	after, err := api.After(api.HTTP(ctx))
	if err != nil {
		return nil, err
	}
	types, err := typesOf(in.Type)
	if err != nil {
		return nil, err
	}
	at, snake := ref(ctx, in.SessionID), api.Snake(ctx)
	name, encode := frames(snake)
	return api.Log(ctx, name, encode,
		func() (api.Cursor[hub.Frame], error) {
			cursor, err := h.engine.Follow(ctx, at, after)
			return filtered{cursor, types}, err
		},
		func() (any, error) {
			found, last, err := h.engine.EventsOf(ctx, at, after, in.Limit, types)
			return page(found, last, snake), err
		})
}

// filtered is a cursor that shows some types.
type filtered struct {
	*hub.Cursor
	types []sojourn.EventType // nil for all
}

// Next implements [api.Cursor]. It may return none when there were others.
func (c filtered) Next(ctx context.Context) ([]hub.Frame, error) {
	all, err := c.Cursor.Next(ctx)
	if err != nil || c.types == nil {
		return all, err
	}
	var some []hub.Frame // all is shared
	for _, f := range all {
		if slices.Contains(c.types, f.Event.Type) {
			some = append(some, f)
		}
	}
	return some, nil
}

// page projects events of a log that ends at last. They may be fewer than were
// asked for also when there are more: large ones are read in smaller pages.
func page(found []sojourn.Event, last int64, snake bool) EventsBody {
	body := EventsBody{Events: []Event{}, LastSeq: last}
	for _, e := range found {
		body.Events = append(body.Events, eventOf(e, snake))
	}
	if n := len(body.Events); n > 0 && body.Events[n-1].Seq < last {
		body.NextAfter = &body.Events[n-1].Seq
	}
	return body
}

// eventOf projects an event.
func eventOf(e sojourn.Event, snake bool) Event {
	return Event{Seq: e.Seq, Type: typeOf(e.Type), Timestamp: api.Instant(e.At), Data: payload(e, snake)}
}

// projected are the payloads that hold a budget, by the type of their event: the
// same name says something else elsewhere.
var projected = map[sojourn.EventType]struct {
	name    string
	project func(sojourn.Limits) any
}{
	sojourn.EventBudgetChanged: {"limits", func(l sojourn.Limits) any { return budgetOf(l) }},
	sojourn.EventBudgetWarning: {"remaining", func(l sojourn.Limits) any { return leftOf(l) }},
}

// payload projects what an event says. Its names are all ours.
func payload(e sojourn.Event, snake bool) json.RawMessage {
	var data map[string]json.RawMessage
	if len(e.Data) == 0 || json.Unmarshal(e.Data, &data) != nil {
		return json.RawMessage("{}")
	}
	inOurNames(e.Type, data)
	if p, ok := projected[e.Type]; ok {
		var l sojourn.Limits
		if raw, ok := data[p.name]; ok && json.Unmarshal(raw, &l) == nil {
			data[p.name], _ = json.Marshal(p.project(l)) // plain numbers
		}
	}
	out, err := json.Marshal(data)
	if err != nil {
		return json.RawMessage("{}")
	}
	if snake {
		out = api.SnakeCase(out)
	}
	return out
}

// inOurNames gives what an event says the names of this contract, and takes away what
// it has no word for: its sessions have no agent and no conversation.
func inOurNames(t sojourn.EventType, data map[string]json.RawMessage) {
	switch t {
	case sojourn.EventSessionCreated:
		if name, ok := data["title"]; ok {
			data["name"] = name
		}
		delete(data, "title")
		delete(data, "runtime")
	case sojourn.EventCheckpointSealed, sojourn.EventCheckpointFailed:
		for _, name := range []string{"conversation", "conversationReason", "conversationDetail", "boundaryRunId"} {
			delete(data, name)
		}
	}
}

// Left is what an event says of a remaining budget.
type Left struct {
	CostCents       int64   `json:"costCents,omitempty"`
	CostMicroCents  int64   `json:"costMicroCents,omitempty"`
	Iterations      int64   `json:"iterations,omitempty"`
	DurationSeconds float64 `json:"durationSeconds,omitempty"`
}

// leftOf shows what is left, and nothing of what is used up or not limited.
func leftOf(l sojourn.Limits) Left {
	return Left{
		CostCents: int64(l.Cost / sojourn.Cent), CostMicroCents: int64(l.Cost), Iterations: l.Iterations, DurationSeconds: seconds(l.Duration),
	}
}

// frames returns how events are encoded for a stream, and the name of that form.
func frames(snake bool) (name string, encode func(sojourn.Event) []byte) {
	name = "exec"
	if snake {
		name = "exec.snake"
	}
	return name, func(e sojourn.Event) []byte {
		text, err := json.Marshal(eventOf(e, snake))
		if err != nil { // the payload is not JSON: it still has its place in the log
			e.Data = nil
			text, _ = json.Marshal(eventOf(e, snake))
		}
		return api.EncodeFrame(e.Seq, typeOf(e.Type), text)
	}
}
