package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// object is a JSON object on the wire.
type object = map[string]any

// fakeOperator answers like the operator contract does, from what a test puts
// into it.
type fakeOperator struct {
	*httptest.Server

	mu           sync.Mutex
	changed      chan struct{} // closed and replaced when something below changes
	sessions     []object      // newest first
	interactions []object
	runs         []object
	keys         []object
	events       []object
	calls        []string
	bodies       []object
	onTurn       func()      // called when a turn is submitted
	cuts         map[int]int // streams are cut behind these numbers, once, and so many calls after it
	down         int         // how many calls are answered by cutting the connection
	cutSubmits   int         // how many submits are carried out and not answered
	refuse       *object
	status       int // of refuse
}

const (
	fakeSession = "01f0aaaa-0000-7000-8000-00000000a001"
	fakeRun     = "01f0aaaa-0000-7000-8000-00000000b001"
	fakeTurn    = "01f0aaaa-0000-7000-8000-00000000c001"
	fakeAsk     = "01f0aaaa-0000-7000-8000-00000000d001"
	fakeKey     = "01f0aaaa-0000-7000-8000-00000000e001"
	fakeTime    = "2026-11-30T09:00:00.000Z"
)

func newFake(t *testing.T) *fakeOperator {
	t.Helper()
	f := &fakeOperator{changed: make(chan struct{}), cuts: map[int]int{}}
	f.sessions = []object{sessionObject(fakeSession)}
	mux := http.NewServeMux()
	const s = "/operator/v1/sessions"
	mux.HandleFunc("POST "+s, f.create)
	mux.HandleFunc("GET "+s, f.list)
	mux.HandleFunc("GET "+s+"/{id}", f.get)
	mux.HandleFunc("POST "+s+"/{id}/archive", f.get)
	mux.HandleFunc("POST "+s+"/{id}/turns", f.submit)
	mux.HandleFunc("GET "+s+"/{id}/runs", func(w http.ResponseWriter, r *http.Request) { reply(w, 200, object{"runs": f.runs}) })
	mux.HandleFunc("POST "+s+"/{id}/runs/{run}/cancel", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, object{"run": runObject(r.PathValue("run"), "active")})
	})
	mux.HandleFunc("GET "+s+"/{id}/events", f.log)
	mux.HandleFunc("GET "+s+"/{id}/interactions", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, object{"interactions": f.interactions})
	})
	mux.HandleFunc("PUT "+s+"/{id}/interactions/{ask}/answer", f.answer)
	mux.HandleFunc("POST /operator/v1/keys", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 201, object{"key": f.keys[0], "secret": "sjn_app_secret"})
	})
	mux.HandleFunc("GET /operator/v1/keys", func(w http.ResponseWriter, r *http.Request) { reply(w, 200, object{"keys": f.keys}) })
	mux.HandleFunc("DELETE /operator/v1/keys/{key}", func(w http.ResponseWriter, r *http.Request) { reply(w, 200, object{"key": f.keys[0]}) })
	f.Server = httptest.NewServer(f.note(mux))
	t.Cleanup(f.Close)
	return f
}

// note keeps what was called, and answers in its place where a test said so.
func (f *fakeOperator) note(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.calls = append(f.calls, r.Method+" "+r.URL.RequestURI())
		refuse, status, down := f.refuse, f.status, f.down > 0
		if down {
			f.down--
		}
		f.mu.Unlock()
		switch {
		case down:
			panic(http.ErrAbortHandler)
		case refuse != nil:
			reply(w, status, object{"error": *refuse})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func (f *fakeOperator) create(w http.ResponseWriter, r *http.Request) {
	f.body(r)
	reply(w, 201, object{"session": f.sessions[0]})
}

// body keeps the body of a call.
func (f *fakeOperator) body(r *http.Request) {
	var v object
	json.NewDecoder(r.Body).Decode(&v)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bodies = append(f.bodies, v)
}

func (f *fakeOperator) list(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if limit == 0 {
		limit = 50
	}
	end := min(from+limit, len(f.sessions))
	page := object{"sessions": f.sessions[from:end]}
	if end < len(f.sessions) {
		page["nextCursor"] = strconv.Itoa(end)
	}
	reply(w, 200, page)
}

func (f *fakeOperator) get(w http.ResponseWriter, r *http.Request) {
	for _, s := range f.sessions {
		if s["id"] == r.PathValue("id") {
			reply(w, 200, object{"session": s})
			return
		}
	}
	reply(w, 404, object{"error": object{"code": "not_found", "message": "There is no such session."}})
}

func (f *fakeOperator) submit(w http.ResponseWriter, r *http.Request) {
	f.body(r)
	if f.cutSubmits > 0 {
		f.cutSubmits--
		panic(http.ErrAbortHandler)
	}
	reply(w, 202, object{
		"turn": object{"id": fakeTurn, "sessionId": fakeSession, "number": 1, "input": []object{}, "submittedAt": fakeTime},
		"run":  runObject(fakeRun, "queued"),
	})
	if f.onTurn != nil {
		f.onTurn()
	}
}

func (f *fakeOperator) answer(w http.ResponseWriter, r *http.Request) {
	f.body(r)
	v := object{}
	for _, i := range f.interactions {
		if i["id"] == r.PathValue("ask") {
			v = i
		}
	}
	v["state"] = "answered"
	reply(w, 200, object{"interaction": v})
}

// emit appends events: pairs of a type and its data.
func (f *fakeOperator) emit(pairs ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := 0; i < len(pairs); i += 2 {
		kind := pairs[i].(string)
		e := object{
			"sequence": len(f.events) + 1, "sessionId": fakeSession, "type": kind,
			"occurredAt": fakeTime, "data": pairs[i+1],
		}
		if !strings.HasPrefix(kind, "workspace.") && !strings.HasPrefix(kind, "session.") {
			e["turnId"], e["runId"] = fakeTurn, fakeRun
		}
		f.events = append(f.events, e)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// log answers with a page or a stream, which is cut behind the numbers in cuts,
// once each.
func (f *fakeOperator) log(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.Atoi(r.URL.Query().Get("after"))
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		after, _ = strconv.Atoi(id)
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		f.page(w, after, limit)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, ": open\n\n")
	http.NewResponseController(w).Flush()
	for {
		f.mu.Lock()
		events, changed := f.events[min(after, len(f.events)):], f.changed
		f.mu.Unlock()
		for _, e := range events {
			after++
			text, _ := json.Marshal(e)
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", after, e["type"], text)
			http.NewResponseController(w).Flush()
			if f.cut(after) {
				fmt.Fprint(w, "id: 99\nevent: half") // of an event that was never finished
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fakeOperator) cut(seq int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	down, cut := f.cuts[seq]
	if cut {
		delete(f.cuts, seq)
		f.down = down
	}
	return cut
}

func (f *fakeOperator) page(w http.ResponseWriter, after, limit int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if limit == 0 {
		limit = 100
	}
	end := min(after+limit, len(f.events))
	page := object{"events": f.events[min(after, end):end]}
	if end < len(f.events) {
		page["nextAfter"] = end
	}
	reply(w, 200, page)
}

func sessionObject(id string) object {
	return object{
		"id": id, "project": "default", "contract": "cloud", "runtime": "script", "state": "open",
		"createdAt": fakeTime, "updatedAt": fakeTime, "turns": 0, "lastSequence": 0,
		"workspace":    object{"state": "unavailable"},
		"continuation": object{"canContinue": true, "state": "fresh", "conversation": object{"fidelity": "none"}, "workspace": object{"fidelity": "none"}, "reason": "no_prior_work"},
	}
}

func runObject(id, state string) object {
	return object{"id": id, "sessionId": fakeSession, "turnId": fakeTurn, "state": state, "queuedAt": fakeTime}
}

func update(kind string, more object) object {
	u := object{"sessionUpdate": kind}
	for k, v := range more {
		u[k] = v
	}
	return object{"update": u}
}

func says(text string) object {
	return update("agent_message_chunk", object{"content": object{"type": "text", "text": text}})
}

// result is how a command line went.
type result struct {
	code     int
	out, err string
}

// lockedBuffer can be read while a command writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// run runs a command line against the fake.
func (f *fakeOperator) run(t *testing.T, args ...string) result {
	t.Helper()
	t.Setenv("SOJOURN_URL", f.URL)
	t.Setenv("SOJOURN_KEY", "sjn_admin_test")
	return runLine(t.Context(), "", args...)
}

func runLine(ctx context.Context, stdin string, args ...string) result {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out, errs lockedBuffer
	code := runCommand(ctx, stdio{strings.NewReader(stdin), &out, &errs}, args)
	return result{code, out.String(), errs.String()}
}
