package operator

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

type shellInput struct {
	api.SessionPath
	Name     string   `query:"name" maxLength:"64" doc:"How the shell is found again; one is made up when absent."`
	Reattach bool     `query:"reattach" doc:"Go on with the shell of this name instead of starting one."`
	From     int64    `query:"from" default:"-1" doc:"With reattach: how many bytes of output the caller has; absent for all that is still held."`
	Argv     []string `query:"argv,explode" maxItems:"256" doc:"The program and its arguments, in order; a login shell when absent."`
	Dir      string   `query:"dir" maxLength:"4096" doc:"Where it starts; the workspace when absent."`
	TTY      bool     `query:"tty" default:"true" doc:"Whether it has a terminal."`
	Rows     int      `query:"rows" minimum:"1" maximum:"65535" default:"24"`
	Cols     int      `query:"cols" minimum:"1" maximum:"65535" default:"80"`
	Term     string   `query:"term" maxLength:"64" doc:"The kind of terminal, as TERM says it."`
	Writer   string   `query:"writer" maxLength:"64" pattern:"^[A-Za-z0-9]*$" doc:"Names the sender of input. With the same name and the right sent, input that is sent again after a cut is taken once."`
	Sent     int64    `query:"sent" minimum:"0" doc:"How many bytes of input this writer sent before the first that it sends now."`
}

const shellDescription = `A WebSocket. Binary frames are bytes: from the caller input, from the server output. Text frames are JSON.

The server says {"started":{"name","tty","reattached"}} first. {"stream":"stdout"|"stderr","offset":N} says where the binary
frames behind it belong: N counts the bytes of output of both streams in front of them. {"taken":N} says how many bytes of
input are taken, counted from the writer's first; at most 1 MiB may be under way. {"gap":N} says that N bytes of output were
not kept. The last is {"exit":{"code"|"signal"|"failure"}}, {"detached":true,"reason"} or {"error":{"code","message"}}.

The caller says {"resize":{"rows","cols"}}, {"signal":"SIGINT"}, {"eof":true} for the end of input, {"detach":true}, and
{"taken":N}: the count of output bytes that it has for good. Without a terminal what was not taken is kept, and the program
waits once 1 MiB is; with one the newest 1 MiB is kept.

A shell goes on when the connection ends, and until its sandbox does. Its name is free again when its end was told and the
caller closed the connection. While a shell is attached the sandbox is in use. Whoever reattaches takes the shell over.`

func (h *handler) shells(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "openShell", Method: http.MethodGet, Path: "/operator/v1/sessions/{sessionId}/shell", Socket: true,
		Summary: "Open a shell in the sandbox, or go on with one", Description: shellDescription,
	}, h.openShell)
}

func (h *handler) openShell(ctx context.Context, in *shellInput) (*huma.StreamResponse, error) {
	if err := api.CheckUpgrade(api.HTTP(ctx)); err != nil {
		return nil, err
	}
	v, err := h.visit(ctx, in.SessionID)
	if err != nil {
		return nil, err
	}
	sh, err := v.Shell(ctx, engine.OpenShell{
		Name: in.Name, Reattach: in.Reattach, From: in.From, Argv: in.Argv, Dir: in.Dir,
		TTY: in.TTY, Rows: uint16(in.Rows), Cols: uint16(in.Cols), Term: in.Term,
	})
	if err != nil {
		v.Close()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer v.Close()
		r, w := humago.Unwrap(hc)
		conn, err := api.Upgrade(w, r)
		if err != nil { // it has been answered; what was there before stays
			if sh.Leave(); !sh.Reattached {
				sh.Forget()
			}
			return
		}
		defer conn.CloseNow()
		lasting, end := api.Lasting(r.Context())
		defer end()
		t := &terminal{talk: newTalk(conn, r.Context(), in.Writer), sh: sh, sent: in.Sent}
		if t.serve(lasting, uint16(in.Rows), uint16(in.Cols)) {
			sh.Forget()
		} else {
			sh.Leave()
		}
	}}, nil
}
