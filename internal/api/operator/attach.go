package operator

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn/internal/api"
)

type attachInput struct {
	ExecutionPath
	From   int64  `query:"from" minimum:"0" doc:"How many bytes of output the caller has, of both streams."`
	Writer string `query:"writer" maxLength:"64" pattern:"^[A-Za-z0-9]*$" doc:"Names the sender of input. With the same name and the right sent, input that is sent again after a cut is taken once."`
	Sent   int64  `query:"sent" minimum:"0" doc:"How many bytes of input this writer sent before the first that it sends now."`
}

const attachDescription = `A WebSocket. Binary frames are bytes: from the caller input, from the server output. Text frames are JSON.

The server says {"execution":{…},"approval":{…}} first and whenever its state changes; one with an outcome is the last word.
{"stream":"stdout"|"stderr","offset":N} says where the binary frames behind it belong: N counts the bytes of output of both
streams in front of them. {"taken":N} says how many bytes of input are taken, counted from the writer's first; at most 1 MiB
may be under way. {"error":{"code","message"}} says why the connection ends before the execution does.

The caller says {"resize":{"rows","cols"}}, {"signal":"SIGINT"}, and {"eof":true} for the end of input.

An execution goes on when the connection ends; attach again, from any byte. Several callers may be attached to one.`

func (h *handler) attach(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "attachExecution", Method: http.MethodGet, Path: "/operator/v1/sessions/{sessionId}/executions/{executionId}/attach", Socket: true,
		Summary: "Follow an execution and give it input", Description: attachDescription,
	}, h.attachExecution)
}

func (h *handler) attachExecution(ctx context.Context, in *attachInput) (*huma.StreamResponse, error) {
	if err := api.CheckUpgrade(api.HTTP(ctx)); err != nil {
		return nil, err
	}
	at := ref(ctx, in.SessionID)
	if _, err := h.engine.ExecByID(ctx, at, in.id()); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		conn, err := api.Upgrade(w, r)
		if err != nil { // it has been answered
			return
		}
		defer conn.CloseNow()
		lasting, end := api.Lasting(r.Context())
		defer end()
		a := &attachment{talk: newTalk(conn, r.Context(), in.Writer), h: h, at: at, id: in.id(), asks: make(chan shellAsks, 16)}
		a.serve(lasting, in.From, in.Sent)
	}}, nil
}
