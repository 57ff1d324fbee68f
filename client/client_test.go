package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

func newClient(t *testing.T, url, key string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: url, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// must returns v, or ends the test.
func must[T any](t *testing.T, what string) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return v
	}
}

// collect follows a session until an event of the type.
func collect(t *testing.T, c *client.Client, session string, after int64, kind string) []client.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []client.Event
	_, err := c.Follow(ctx, client.Follow{Session: session, After: after}, func(e client.Event) (bool, error) {
		all = append(all, e)
		return e.Type != kind, nil
	})
	if err != nil {
		t.Fatalf("following to %s: %v", kind, err)
	}
	return all
}

func TestLifeOfASession(t *testing.T) {
	s := servertest.Start(t, servertest.Config{})
	c, ctx := newClient(t, s.URL+"/", servertest.AdminKey), t.Context()
	made := must[client.Created](t, "create")(c.CreateSession(ctx, client.CreateSession{
		Title: "life", Metadata: map[string]string{"k": "v"}, InitialTurn: &client.TurnInput{Input: client.Text("@ask Really?")},
	}))
	id := made.Session.ID
	if made.Run == nil || made.Turn.Number != 1 || made.Session.Contract != "cloud" || made.Session.Metadata["k"] != "v" {
		t.Errorf("created %+v", made)
	}
	collect(t, c, id, 0, "interaction.requested")
	_, err := c.SubmitTurn(ctx, id, client.TurnInput{Input: client.Text("more")})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "run_active" || e.Status != 409 || e.RequestID == "" {
		t.Errorf("submit while busy: %#v, want run_active", err)
	}
	open := must[[]client.Interaction](t, "interactions")(c.Interactions(ctx, id, "open"))
	if len(open) != 1 || len(open[0].Options) == 0 {
		t.Fatalf("open interactions: %+v", open)
	}
	answered := must[client.Interaction](t, "answer")(c.AnswerInteraction(ctx, id, open[0].ID, client.Answer{OptionID: open[0].Options[0].OptionID}))
	if answered.State != "answered" || answered.Answer.OptionID != open[0].Options[0].OptionID {
		t.Errorf("answered %+v", answered)
	}
	events := collect(t, c, id, 0, "run.completed")
	got := must[client.Session](t, "show")(c.Session(ctx, id))
	if got.Lease == nil || got.Lease.Epoch != 1 || got.Lease.Driver != "fake" || got.Lease.CeilingAt == nil || got.Checkpoint == nil ||
		got.Checkpoint.RunID != made.Run.ID || got.Workspace.State != "attached" || got.Continuation.State != "live" || got.ActiveRun != nil ||
		got.LastRun.State != "completed" || got.LastSequence < int64(len(events)) {
		t.Errorf("shown %+v", got)
	}
	page, more, err := c.Events(ctx, id, 1, 2)
	if err != nil || len(page) != 2 || page[0].Sequence != 2 || !more {
		t.Errorf("events: %+v, %v, %v", page, more, err)
	}
	if runs := must[[]client.Run](t, "runs")(c.Runs(ctx, id)); len(runs) != 1 || runs[0].ID != made.Run.ID {
		t.Errorf("runs: %+v", runs)
	}
	if run := must[client.Run](t, "cancel")(c.CancelRun(ctx, id, made.Run.ID)); run.State != "completed" {
		t.Errorf("cancelling an ended run: %+v", run)
	}
	archived := must[client.Session](t, "archive")(c.ArchiveSession(ctx, id))
	if archived.ArchivedAt == nil {
		t.Errorf("archived %+v", archived)
	}
	list := must[client.SessionPage](t, "list")(c.Sessions(ctx, client.SessionQuery{Archived: new(true), Contract: "cloud", Limit: 5}))
	if len(list.Sessions) != 1 || list.Sessions[0].ID != id || list.NextCursor != "" {
		t.Errorf("list: %+v", list)
	}
	status := must[client.Status](t, "status")(c.Status(ctx))
	if status.Version != "test" || !status.Compute.Available || status.Compute.Driver != "fake" || status.Limits.HoldSeconds != 1500 {
		t.Errorf("status: %+v", status)
	}
}

func TestListsAreReadToTheirEnd(t *testing.T) {
	var pages atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := pages.Add(1)
		if cursor := r.URL.Query().Get("cursor"); (n == 1) != (cursor == "") {
			t.Errorf("page %d has cursor %q", n, cursor)
		}
		next := ""
		if n < 3 {
			next = fmt.Sprintf(`,"nextCursor":"c%d"`, n)
		}
		fmt.Fprintf(w, `{"turns":[{"number":%d}]%s}`, n, next)
	}))
	defer server.Close()
	turns, err := newClient(t, server.URL, "k").Turns(t.Context(), "s")
	if err != nil || len(turns) != 3 || turns[2].Number != 3 {
		t.Errorf("turns: %+v, %v", turns, err)
	}
}

func TestRevokedKeyLosesItsStream(t *testing.T) {
	s := servertest.Start(t, servertest.Config{})
	admin, ctx := newClient(t, s.URL, servertest.AdminKey), t.Context()
	made := must[client.CreatedKey](t, "create key")(admin.CreateKey(ctx, client.CreateKey{Kind: "admin", Name: "second"}))
	if !strings.HasPrefix(made.Secret, "sjn_admin_") {
		t.Errorf("secret %q", made.Secret)
	}
	session := must[client.Created](t, "create")(admin.CreateSession(ctx, client.CreateSession{})).Session.ID
	second := newClient(t, s.URL, made.Secret)
	revoked := make(chan struct{})
	last, err := second.Follow(ctx, client.Follow{Session: session}, func(e client.Event) (bool, error) {
		if e.Sequence == 1 {
			if err := admin.RevokeKey(ctx, made.Key.ID); err != nil {
				t.Errorf("revoke: %v", err)
			}
			close(revoked)
			if _, err := admin.SubmitTurn(ctx, session, client.TurnInput{Input: client.Text("later")}); err != nil {
				t.Errorf("submit: %v", err)
			}
		}
		return true, nil
	})
	<-revoked
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != 401 {
		t.Errorf("after %d events: %v, want unauthenticated", last, err)
	}
	keys := must[[]client.Key](t, "keys")(admin.Keys(ctx))
	i := slices.IndexFunc(keys, func(k client.Key) bool { return k.ID == made.Key.ID })
	if i < 0 || keys[i].RevokedAt == nil || keys[i].Hint == "" {
		t.Errorf("keys: %+v", keys)
	}
}

func TestFollowGoesOnOverARestart(t *testing.T) {
	s := servertest.Start(t, servertest.Config{})
	c := newClient(t, s.URL, servertest.AdminKey)
	made := must[client.Created](t, "create")(c.CreateSession(t.Context(), client.CreateSession{
		InitialTurn: &client.TurnInput{Input: client.Text("@work 1500 20")},
	}))
	var seen []client.Event
	cut := 0
	follow := client.Follow{Session: made.Session.ID, OnCut: func(error) { cut++ }}
	restarted := sync.OnceFunc(func() { s.Restart() })
	_, err := c.Follow(t.Context(), follow, func(e client.Event) (bool, error) {
		seen = append(seen, e)
		if e.Type == "agent.update" {
			restarted()
		}
		return e.Type != "run.completed" && e.Type != "run.crashed", nil
	})
	if err != nil || cut == 0 {
		t.Fatalf("%v after %d cuts, want at least one", err, cut)
	}
	var log []client.Event
	for more := true; more; {
		page, next, err := c.Events(t.Context(), made.Session.ID, int64(len(log)), 1000)
		if err != nil {
			t.Fatal(err)
		}
		log, more = append(log, page...), next
	}
	for i, e := range seen { // nothing delivered is later missing or different
		if a, b := asJSON(t, e), asJSON(t, log[i]); a != b {
			t.Errorf("event %d was delivered as %s and is %s", i+1, a, b)
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestManyFollowersEachGetEverything(t *testing.T) {
	s := servertest.Start(t, servertest.Config{})
	c := newClient(t, s.URL, servertest.AdminKey)
	made := must[client.Created](t, "create")(c.CreateSession(t.Context(), client.CreateSession{}))
	var followers sync.WaitGroup
	counts := make([]int, 20)
	for i := range counts {
		followers.Go(func() {
			_, err := c.Follow(t.Context(), client.Follow{Session: made.Session.ID, After: int64(i % 2)}, func(e client.Event) (bool, error) {
				counts[i]++
				return e.Type != "run.completed", nil
			})
			if err != nil {
				t.Errorf("follower %d: %v", i, err)
			}
		})
	}
	must[client.Submitted](t, "submit")(c.SubmitTurn(t.Context(), made.Session.ID, client.TurnInput{Input: client.Text("@flood 200")}))
	followers.Wait()
	for i, n := range counts {
		if want := counts[0] - i%2; n != want {
			t.Errorf("follower %d got %d events, want %d", i, n, want)
		}
	}
}

func TestLargeEventsArriveWhole(t *testing.T) {
	s := servertest.Start(t, servertest.Config{})
	c := newClient(t, s.URL, servertest.AdminKey)
	for _, n := range []int{65_535, 65_537, 1_100_000, 5_000_000} {
		made := must[client.Created](t, "create")(c.CreateSession(t.Context(), client.CreateSession{
			InitialTurn: &client.TurnInput{Input: client.Text(fmt.Sprintf("@big %d\n@say after", n))},
		}))
		largest, after := 0, false
		for _, e := range collect(t, c, made.Session.ID, 0, "run.completed") {
			largest = max(largest, len(e.Data))
			after = after || strings.Contains(string(e.Data), `"after"`)
		}
		if !after {
			t.Errorf("behind an update of %d bytes nothing came", n)
		}
		if largest < n && n <= 1_100_000 {
			t.Errorf("the update of %d bytes came as %d", n, largest)
		}
	}
}

func TestFollowRefusesAGap(t *testing.T) {
	server := scriptedStream(t, "data: {\"sequence\":1}\n\ndata: {\"sequence\":3}\n\n")
	last, err := newClient(t, server.URL, "k").Follow(t.Context(), client.Follow{Session: "s"}, func(client.Event) (bool, error) { return true, nil })
	if !errors.Is(err, client.ErrGap) || last != 1 {
		t.Errorf("%d, %v, want a gap behind 1", last, err)
	}
}

// scriptedStream serves one text as every stream.
func scriptedStream(t *testing.T, text string) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestFollowReadsEveryFormOfTheProtocol(t *testing.T) {
	server := scriptedStream(t, ": hello\r\n\r\nid: 1\r\nevent: x\r\ndata: {\"sequence\":1,\r\ndata: \"type\":\"a\"}\r\n\r\n"+
		"retry: 5\n\ndata:{\"sequence\":2}\n\nevent: only\n\nunknown: x\ndata: {\"sequence\":3}\n\ndata: {\"sequence\":4}")
	var got []int64
	_, err := newClient(t, server.URL, "k").Follow(t.Context(), client.Follow{Session: "s"}, func(e client.Event) (bool, error) {
		got = append(got, e.Sequence)
		return e.Sequence < 3, nil
	})
	if err != nil || !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("%v, %v, want 1 2 3", got, err)
	}
}

func TestFollowResumesBehindWhatItHas(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		n := len(asked)
		if n == 2 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(503)
			return
		}
		if n == 1 { // the last message is cut in two: it was not delivered
			fmt.Fprint(w, "data: {\"sequence\":1}\n\ndata: {\"sequence\":2}\n\ndata: {\"sequ")
			return
		}
		fmt.Fprint(w, "data: {\"sequence\":2}\n\ndata: {\"sequence\":3}\n\n") // one again
	}))
	defer server.Close()
	var got []int64
	_, err := newClient(t, server.URL, "k").Follow(t.Context(), client.Follow{Session: "s"}, func(e client.Event) (bool, error) {
		got = append(got, e.Sequence)
		return e.Sequence < 3, nil
	})
	if err != nil || !slices.Equal(got, []int64{1, 2, 3}) || !slices.Equal(asked, []string{"", "2", "2"}) {
		t.Errorf("%v, %v, asked %q; want 1 2 3 after asking behind 2 twice", got, err, asked)
	}
}

func TestFollowGivesASilentStreamUp(t *testing.T) {
	var streams atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if streams.Add(1) > 1 {
			fmt.Fprint(w, "data: {\"sequence\":1}\n\n")
			return
		}
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL, Key: "k", Stall: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Follow(t.Context(), client.Follow{Session: "s"}, func(client.Event) (bool, error) { return false, nil }); err != nil || streams.Load() != 2 {
		t.Errorf("%v after %d streams, want the second to serve", err, streams.Load())
	}
}

func TestFollowLosesPatience(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	begun := time.Now()
	_, err := newClient(t, server.URL, "k").Follow(t.Context(), client.Follow{Session: "s", Patience: 50 * time.Millisecond}, nil)
	if err == nil || time.Since(begun) > 30*time.Second {
		t.Errorf("%v after %v, want an error soon", err, time.Since(begun))
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	server := scriptedStream(t, "data: {\"sequence\":1}\n\n")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := newClient(t, server.URL, "k").Follow(ctx, client.Follow{Session: "s"}, func(client.Event) (bool, error) {
		cancel()
		return true, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}

func TestLostCallIsRepeatedAsTheSameCall(t *testing.T) {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) == 1 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, `{"session":{"id":"s"}}`)
	}))
	defer server.Close()
	made, err := newClient(t, server.URL, "k").CreateSession(t.Context(), client.CreateSession{})
	if err != nil || made.Session.ID != "s" || len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("%+v, %v with keys %q, want the same key twice", made, err, keys)
	}
}

func TestErrorsOfOtherServersAreErrorsToo(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(502)
		fmt.Fprint(w, "<html>bad gateway</html>")
	}))
	defer server.Close()
	_, err := newClient(t, server.URL, "k").Status(t.Context())
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != 502 || e.Code != "http_502" || e.RetryAfter != 7*time.Second || e.Message == "" {
		t.Errorf("%#v, want the status", err)
	}
}

func TestNewRefusesWhatIsNoAddress(t *testing.T) {
	for _, c := range []client.Config{
		{URL: "", Key: "k"},
		{URL: "localhost:7600", Key: "k"},
		{URL: "ftp://h", Key: "k"},
		{URL: "http://", Key: "k"},
		{URL: "http://h?q=1", Key: "k"},
		{URL: "http://h", Key: "line\nend"},
	} {
		if _, err := client.New(c); err == nil || strings.Contains(err.Error(), "line") {
			t.Errorf("New(%+v): %v, want a refusal without the key", c, err)
		}
	}
}
