package engine_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// The parts of contract C that the stories read.
type (
	session struct {
		ID        string
		Workspace struct {
			State     string
			ExpiresAt time.Time
		}
		Continuation struct {
			CanContinue   bool
			State         string
			Reason        string
			BoundaryRunID string
			Conversation  struct{ Fidelity string }
			Workspace     struct{ Fidelity string }
		}
		ActiveRun *run
		LastRun   *run
	}
	run struct {
		ID         string
		State      string
		StopReason string
		LastError  struct{ Code, Message string }
	}
	event struct {
		Sequence int64
		Type     string
		RunID    string
		Data     json.RawMessage
	}
	interaction struct {
		ID     string
		State  string
		Reason string
	}
)

// patience bounds every wait of a story. It is long because machines are noisy,
// and it is reached only when something is wrong.
const patience = time.Minute

// shortHold is the hold of leases that are to run out in a test. It is long enough for
// a busy machine to touch the lease of what is in use.
const shortHold = 3 * time.Second

// story is one session on one server.
type story struct {
	*testing.T
	*servertest.Server
	id string
}

// begin starts a server and a session.
func begin(t *testing.T, c servertest.Config) *story {
	t.Helper()
	t.Parallel()
	s := &story{T: t, Server: servertest.Start(t, c)}
	s.id = s.create()
	return s
}

func (s *story) create() string {
	s.Helper()
	var out struct{ Session session }
	s.Must(http.MethodPost, "/v1/sessions", map[string]any{"title": s.Name()}, &out)
	return out.Session.ID
}

func (s *story) path(more string) string { return "/v1/sessions/" + s.id + more }

// submit gives the session a turn of those lines and returns its run.
func (s *story) submit(lines ...string) string {
	s.Helper()
	var out struct{ Run run }
	s.Must(http.MethodPost, s.path("/turns"), map[string]any{"input": strings.Join(lines, "\n")}, &out)
	return out.Run.ID
}

// refused submits a turn that must be refused, and returns status and code.
func (s *story) refused() (int, string) {
	s.Helper()
	return s.Call(http.MethodPost, s.path("/turns"), map[string]any{"input": "@say no"}, nil)
}

func (s *story) session() session {
	s.Helper()
	var out struct{ Session session }
	s.Must(http.MethodGet, s.path(""), nil, &out)
	return out.Session
}

func (s *story) run(id string) run {
	s.Helper()
	var out struct{ Run run }
	s.Must(http.MethodGet, s.path("/runs/"+id), nil, &out)
	return out.Run
}

func (s *story) events() []event {
	s.Helper()
	var all []event
	for {
		var page struct{ Events []event }
		after := int64(len(all))
		s.Must(http.MethodGet, s.path("/events?limit=1000&after="+itoa(after)), nil, &page)
		if len(page.Events) == 0 {
			return all
		}
		for _, e := range page.Events {
			if e.Sequence != int64(len(all))+1 {
				s.Fatalf("event %d follows event %d", e.Sequence, len(all))
			}
			all = append(all, e)
		}
	}
}

func itoa(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// until waits until ok is true.
func (s *story) until(what string, ok func() bool) {
	s.Helper()
	pause := 5 * time.Millisecond
	for deadline := time.Now().Add(patience); !ok(); pause = min(pause+time.Millisecond/4, 50*time.Millisecond) { // the key's rate is limited
		if time.Now().After(deadline) {
			s.Fatalf("waited %v for %s; the log:\n%s", patience, what, s.log())
		}
		time.Sleep(pause)
	}
}

// ended waits for a run's end.
func (s *story) ended(id string) run {
	s.Helper()
	var r run
	s.until("the end of run "+id, func() bool {
		r = s.run(id)
		return slices.Contains([]string{"completed", "failed", "crashed", "cancelled"}, r.State)
	})
	return r
}

// completes submits a turn and wants it completed.
func (s *story) completes(lines ...string) string {
	s.Helper()
	id := s.submit(lines...)
	if r := s.ended(id); r.State != "completed" {
		s.Fatalf("run is %s (%s: %s), want completed; the log:\n%s", r.State, r.LastError.Code, r.LastError.Message, s.log())
	}
	return id
}

func (s *story) log() string {
	var b strings.Builder
	for _, e := range s.events() {
		b.WriteString(itoa(e.Sequence) + " " + e.Type + " " + string(e.Data) + "\n")
	}
	return b.String()
}

// said is what the agent said in a run, a line each.
func (s *story) said(id string) []string {
	s.Helper()
	var said []string
	for _, e := range s.events() {
		var d struct {
			Update struct {
				SessionUpdate string
				Content       json.RawMessage
			}
		}
		if e.RunID == id && e.Type == "wamp.agent.update" && json.Unmarshal(e.Data, &d) == nil && d.Update.SessionUpdate == "agent_message_chunk" {
			var c struct{ Text string }
			if err := json.Unmarshal(d.Update.Content, &c); err != nil {
				s.Fatal(err)
			}
			said = append(said, c.Text)
		}
	}
	return said
}

// speaks waits until the agent has said text in a run.
func (s *story) speaks(id, text string) {
	s.Helper()
	s.until("the agent to say "+text, func() bool { return slices.Contains(s.said(id), text) })
}

// count returns how many events of a type there are.
func (s *story) count(kind string) int {
	n := 0
	for _, e := range s.events() {
		if e.Type == kind {
			n++
		}
	}
	return n
}

func (s *story) interactions() []interaction {
	s.Helper()
	var out struct{ Interactions []interaction }
	s.Must(http.MethodGet, s.path("/interactions"), nil, &out)
	return out.Interactions
}

// asked waits for an open interaction.
func (s *story) asked() string {
	s.Helper()
	id := ""
	s.until("a question", func() bool {
		for _, i := range s.interactions() {
			if i.State == "open" {
				id = i.ID
			}
		}
		return id != ""
	})
	return id
}

// answer answers an interaction and returns status and code.
func (s *story) answer(id, option string) (int, string) {
	s.Helper()
	return s.Call(http.MethodPut, s.path("/interactions/"+id+"/answer"), map[string]any{"optionId": option}, nil)
}

// want fails unless got is want.
func (s *story) want(what string, got, want any) {
	s.Helper()
	if got != want {
		s.Errorf("%s is %v, want %v; the log:\n%s", what, got, want, s.log())
	}
}

// oneEnd checks that each run has exactly one terminal event (G1).
func (s *story) oneEnd() {
	s.Helper()
	ends := map[string]int{}
	for _, e := range s.events() {
		switch e.Type {
		case "wamp.run.queued":
			ends[e.RunID] += 0
		case "wamp.run.completed", "wamp.run.failed", "wamp.run.crashed", "wamp.run.cancelled":
			ends[e.RunID]++
		}
	}
	for id, n := range ends {
		if n != 1 {
			s.Errorf("run %s has %d ends", id, n)
		}
	}
}
