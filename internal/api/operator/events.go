package operator

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/hub"
)

type eventsInput struct {
	api.SessionPath
	Limit       int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Of a page; a stream does not look at it."`
	After       string `query:"after" doc:"The sequence number of the last event that you have; 0 or absent for the whole log."`
	LastEventID string `header:"Last-Event-ID" doc:"The same; when both are sent it wins and after is not looked at."`
	Accept      string `header:"Accept" hidden:"true"`
}

// EventsBody is a page of events.
type EventsBody struct {
	Events    []Event `json:"events"`
	NextAfter *int64  `json:"nextAfter,omitempty" doc:"The after of the next page; absent when the log ends here for now."`
}

func (h *handler) events(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "listEvents", Method: http.MethodGet, Path: "/operator/v1/sessions/{sessionId}/events",
		Summary: "Read or follow the event log", Page: EventsBody{},
		Description: "With \"Accept: text/event-stream\" the answer is a stream: what is in the log behind the cursor, then what happens, each event once. " +
			"After a cut, resume with Last-Event-ID. A cursor that is no number, or beyond the end of the log, is refused.",
	}, h.listEvents)
}

func (h *handler) listEvents(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	after, err := api.After(api.HTTP(ctx))
	if err != nil {
		return nil, err
	}
	at := ref(ctx, in.SessionID)
	return api.Log(ctx, "operator", frame,
		func() (api.Cursor[hub.Frame], error) { return h.engine.Follow(ctx, at, after) },
		func() (any, error) {
			found, head, err := h.engine.Events(ctx, at, after, in.Limit)
			return page(found, head), err
		})
}

// page projects events that were read from a log that ends at head. They may be
// fewer than were asked for also when there are more: large ones are read in
// smaller pages.
func page(found []sojourn.Event, head int64) EventsBody {
	body := EventsBody{Events: []Event{}}
	for _, e := range found {
		body.Events = append(body.Events, event(e))
	}
	if n := len(body.Events); n > 0 && body.Events[n-1].Sequence < head {
		body.NextAfter = &body.Events[n-1].Sequence
	}
	return body
}

// frame encodes an event for streams.
func frame(e sojourn.Event) []byte {
	text, err := json.Marshal(event(e))
	if err != nil { // the payload is not JSON: it still has its place in the log
		e.Data = nil
		text, _ = json.Marshal(event(e))
	}
	return api.EncodeFrame(e.Seq, string(e.Type), text)
}
