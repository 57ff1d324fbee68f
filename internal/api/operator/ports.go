package operator

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

type portInput struct {
	api.SessionPath
	Port int `path:"port" minimum:"1" maximum:"65535"`
}

func (h *handler) ports(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "connectPort", Method: http.MethodGet, Path: "/operator/v1/sessions/{sessionId}/ports/{port}", Socket: true,
		Summary: "Connect to a port in the sandbox",
		Description: "A WebSocket to a TCP port that something in the sandbox listens on, at its loopback address. Binary frames are the bytes, either way. " +
			"An empty text frame from the caller is the end of what it sends (a half close); the server closes the WebSocket when the port has said all. " +
			"A port that nobody listens on is answered 404 before the upgrade.",
	}, h.connectPort)
}

func (h *handler) connectPort(ctx context.Context, in *portInput) (*huma.StreamResponse, error) {
	if err := api.CheckUpgrade(api.HTTP(ctx)); err != nil {
		return nil, err
	}
	v, err := h.visit(ctx, in.SessionID)
	if err != nil {
		return nil, err
	}
	p, err := v.Dial(ctx, in.Port)
	if err != nil {
		v.Close()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer v.Close()
		defer p.Drop()
		r, w := humago.Unwrap(hc)
		conn, err := api.Upgrade(w, r)
		if err != nil {
			return // it has been answered
		}
		defer conn.CloseNow()
		lasting, end := api.Lasting(r.Context())
		defer end()
		tunnel(lasting, r.Context(), conn, p)
	}}, nil
}

// tunnel carries bytes between a WebSocket and a port until either has ended.
func tunnel(lasting, request context.Context, conn *websocket.Conn, p *engine.Port) {
	ctx, cancel := context.WithCancel(lasting)
	// Ending a read breaks the connection, over which the reason is still to go.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	var busy sync.WaitGroup
	defer busy.Wait()
	defer stopReading()
	defer cancel()
	busy.Go(func() { api.KeepAlive(ctx, conn) })
	busy.Go(func() {
		defer cancel() // the caller is gone
		upstream(reading, ctx, conn, p)
	})
	for {
		out, err := p.Next(ctx)
		if errors.Is(err, io.EOF) {
			conn.Close(websocket.StatusNormalClosure, "")
			return
		}
		if err != nil && ctx.Err() != nil && lasting.Err() == nil {
			return // the caller is gone
		}
		if err != nil {
			api.CloseSocket(request, lasting, conn, err)
			return
		}
		for _, o := range out {
			if o.Stderr { // a last word about a connection that broke
				continue
			}
			if err := conn.Write(ctx, websocket.MessageBinary, o.Data); err != nil {
				return
			}
		}
	}
}

// upstream gives what the caller sends to the port, until the caller is gone.
func upstream(reading, ctx context.Context, conn *websocket.Conn, p *engine.Port) {
	over := false
	for at := int64(0); ; {
		kind, data, err := conn.Read(reading)
		if err != nil {
			return
		}
		switch {
		case over:
		case kind == websocket.MessageText:
			over = true
			err = p.CloseInput(ctx)
		case len(data) > 0:
			err = p.Write(ctx, "in", at, data)
			at += int64(len(data))
		}
		if err != nil { // the other direction says why
			over = true
		}
	}
}
