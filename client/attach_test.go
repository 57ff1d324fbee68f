package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn/client"
)

// execServer is one execution that echoes its input, over connections that it
// cuts.
type execServer struct {
	t        *testing.T
	cuts     []int // behind how many frames of output each connection is cut; then never
	taken    []byte
	replayed int // bytes of input that came twice
	dials    int
}

func (s *execServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("from"))
	at, _ := strconv.Atoi(q.Get("sent"))
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer ws.CloseNow()
	cut := -1
	if s.dials < len(s.cuts) {
		cut = s.cuts[s.dials]
	}
	s.dials++
	ctx := r.Context()
	s.say(ctx, ws, `{"execution":{"id":"x","state":"running"}}`)
	if from < len(s.taken) {
		s.show(ctx, ws, from)
	}
	for frames := 0; ; frames++ {
		if frames == cut {
			return
		}
		kind, data, err := ws.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			if strings.Contains(string(data), `"eof"`) {
				s.say(ctx, ws, `{"execution":{"id":"x","state":"ended","outcome":"exit","exitCode":7}}`)
				ws.Read(ctx)
				return
			}
			continue
		}
		if known := len(s.taken) - at; known > 0 { // what this writer sent before
			s.replayed += min(known, len(data))
			at += min(known, len(data))
			data = data[min(known, len(data)):]
		}
		before := len(s.taken)
		s.taken = append(s.taken, data...)
		at += len(data)
		if len(data) > 0 {
			s.show(ctx, ws, before)
		}
		if frames%2 == 0 { // what was taken is not always told
			s.say(ctx, ws, fmt.Sprintf(`{"taken":%d}`, at))
		}
	}
}

// show sends what was taken from an offset on: even bytes are stdout.
func (s *execServer) show(ctx context.Context, ws *websocket.Conn, from int) {
	s.say(ctx, ws, fmt.Sprintf(`{"stream":"stdout","offset":%d}`, from))
	ws.Write(ctx, websocket.MessageBinary, s.taken[from:])
}

func (s *execServer) say(ctx context.Context, ws *websocket.Conn, text string) {
	ws.Write(ctx, websocket.MessageText, []byte(text))
}

func TestAttachGoesOnAtTheByte(t *testing.T) {
	s := &execServer{t: t, cuts: []int{0, 1, 3, 2, 5}}
	srv := httptest.NewServer(s)
	defer srv.Close()
	c, err := client.New(client.Config{URL: srv.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	in := strings.Repeat("0123456789abcdef", 40<<10/16*8) // more than one window's pieces
	var out strings.Builder
	cuts, states := 0, []string{}
	x, err := c.Attach(t.Context(), client.Attach{
		Session: "s", Execution: "x", Stdin: strings.NewReader(in), Stdout: &out,
		OnCut:   func(error) { cuts++ },
		OnState: func(x client.StartedExecution) { states = append(states, x.Execution.State) },
	})
	if err != nil || x.ExitCode == nil || *x.ExitCode != 7 {
		t.Fatalf("ended with %+v, %v", x, err)
	}
	if out.String() != in {
		t.Errorf("%d bytes of output for %d of input, or others", out.Len(), len(in))
	}
	if string(s.taken) != in {
		t.Errorf("the program got %d bytes of %d, or others", len(s.taken), len(in))
	}
	if cuts != len(s.cuts) || s.replayed == 0 || states[len(states)-1] != "ended" {
		t.Errorf("%d cuts of %d, %d bytes sent again, states %v", cuts, len(s.cuts), s.replayed, states)
	}
}

func TestAttachEndsWithTheCallerAndNotTheExecution(t *testing.T) {
	srv := httptest.NewServer(&execServer{t: t})
	defer srv.Close()
	c, err := client.New(client.Config{URL: srv.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	x, err := c.Attach(ctx, client.Attach{Session: "s", Execution: "x", OnState: func(client.StartedExecution) { cancel() }})
	if !errors.Is(err, context.Canceled) || x.Over() {
		t.Errorf("ended with %+v, %v", x, err)
	}
}

func TestOutputIsCopiedOverCuts(t *testing.T) {
	text := strings.Repeat("0123456789", 100<<10)
	calls := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		q := r.URL.Query()
		from, _ := strconv.Atoi(q.Get("offset"))
		if q.Get("stream") != "stderr" || q.Get("follow") != "true" {
			t.Errorf("asked for %s", r.URL.RawQuery)
		}
		part := text[from:min(len(text), from+300<<10)]
		w.WriteHeader(http.StatusOK)
		w.Write([]byte(part))
		if from+len(part) < len(text) {
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	c, err := client.New(client.Config{URL: srv.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	n, err := c.CopyOutput(t.Context(), client.OutputQuery{Session: "s", Execution: "x", Stream: "stderr", Offset: 7, Follow: true}, &out)
	if err != nil || out.String() != text[7:] || n != int64(out.Len()) || calls < 3 {
		t.Errorf("%d bytes of %d over %d calls, %v", out.Len(), len(text)-7, calls, err)
	}
}

func TestExecutionsAreStartedOnce(t *testing.T) {
	keys, tries := map[string]bool{}, 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in map[string]any
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || fmt.Sprint(in["command"]) != "[echo a b  ]" || in["rows"] != nil {
			t.Errorf("body %v, %v", in, err)
		}
		keys[r.Header.Get("Idempotency-Key")] = true
		if tries++; tries == 1 {
			panic(http.ErrAbortHandler) // carried out, not answered
		}
		w.WriteHeader(http.StatusAccepted)
		w.Write([]byte(`{"execution":{"id":"x","state":"queued","queuedAt":"2026-11-30T09:00:00.000Z"}}`))
	}))
	defer srv.Close()
	c, err := client.New(client.Config{URL: srv.URL, Key: "k", Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.StartExecution(t.Context(), "s", client.StartExecution{Command: []string{"echo", "a b", " "}})
	if err != nil || got.Execution.ID != "x" || got.Execution.Over() || tries != 2 || len(keys) != 1 {
		t.Errorf("%+v, %v; %d tries with %d keys", got, err, tries, len(keys))
	}
}
