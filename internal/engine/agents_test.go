package engine_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// These tests are what agents do to the log and to the session: too much, too large,
// twice, too late.

// TestFloodIsInTheLogWhole: 5,000 updates in a row, each once and in order.
func TestFloodIsInTheLogWhole(t *testing.T) {
	s := begin(t, servertest.Config{})
	said := s.said(s.completes("@flood 5000 100"))
	s.want("updates", len(said), 5000)
	for i, text := range said {
		if number, padding, _ := strings.Cut(text, "."); number != fmt.Sprint(i) || len(padding) != 99 {
			t.Fatalf("update %d is %q", i, text)
		}
	}
	s.completes("@say next")
}

// TestHugeUpdateIsInTheLogWhole is EV-09: 20 MB in one line, and what comes after it.
func TestHugeUpdateIsInTheLogWhole(t *testing.T) {
	s := begin(t, servertest.Config{})
	const size = 20 << 20
	said := s.said(s.completes("@say before", fmt.Sprint("@big ", size), "@say after"))
	s.want("updates", len(said), 3)
	if len(said[1]) != size || strings.Trim(said[1], "x") != "" {
		t.Errorf("the large update has %d bytes, want %d of x", len(said[1]), size)
	}
	s.want("last", said[2], "after")
	s.Restart()
	s.want("updates after a restart", len(s.said(s.session().LastRun.ID)), 3)
	s.completes("@say next")
}

// TestReplayIsNeitherLoggedNorCharged is AG-09: an agent that loads a conversation
// sends it again, with numbers of usage in it, before its answer or after it.
func TestReplayIsNeitherLoggedNorCharged(t *testing.T) {
	for _, replay := range []string{"40", "late:40"} {
		t.Run(replay, func(t *testing.T) {
			s := begin(t, servertest.Config{Env: map[string]string{
				"SCRIPT_AGENT_NO_RESUME": "1", "SCRIPT_AGENT_REPLAY": replay,
			}})
			s.completes("@remember harbour Vlissingen")
			s.Fake.Kill(s.id)
			s.until("the loss to show", func() bool { return s.session().Workspace.State != "attached" })
			run := s.completes("@recall harbour")
			var updates []string
			for _, e := range s.events() {
				if e.Type == "wamp.agent.update" && e.RunID == run {
					updates = append(updates, string(e.Data))
				}
			}
			if len(updates) != 1 || !strings.Contains(updates[0], "Vlissingen") {
				t.Errorf("the log of the second run has %q, want what was recalled", updates)
			}
			s.want("model calls", s.count("wamp.model.called"), 0)
		})
	}
}

// TestQuestionOutlastsTheHold: nobody is connected and nobody answers, for longer than
// an idle sandbox lives.
func TestQuestionOutlastsTheHold(t *testing.T) {
	s := begin(t, servertest.Config{Terms: sojourn.Terms{Hold: shortHold}})
	run := s.submit("@ask may I?")
	question := s.asked()
	first := s.session().Workspace.ExpiresAt
	s.until("the first hold to be over", func() bool { return time.Now().After(first.Add(200 * time.Millisecond)) })
	s.want("run", s.run(run).State, "awaiting_interaction")
	s.answer(question, s.options(question)[0])
	s.want("run", s.ended(run).State, "completed")
	s.want("sandboxes made", len(s.Fake.Created()), 1)
}

// TestQuestionOfALostSandboxExpires: the sandbox is lost while no server runs, and
// the next one says so to whoever was asked.
func TestQuestionOfALostSandboxExpires(t *testing.T) {
	s := begin(t, servertest.Config{})
	run := s.submit("@ask may I?")
	question := s.asked()
	option := s.options(question)[0]
	s.Stop()
	s.Fake.Kill(s.id)
	s.Start()
	s.want("stopReason", s.ended(run).StopReason, "workspace_lost")
	i := s.interactions()[0]
	s.want("interaction", i.State, "expired")
	s.want("reason", i.Reason, "workspace_lost")
	status, code := s.answer(question, option)
	s.want("late answer", status, http.StatusConflict)
	s.want("late answer", code, "cloud_interaction_expired")
	s.oneEnd()
}

// TestDecisionAfterTheAnswer is AG-21: the agent asks, and ends its turn without
// waiting. Whoever decides then is told that it is too late, and no later turn hears
// of it.
func TestDecisionAfterTheAnswer(t *testing.T) {
	s := begin(t, servertest.Config{})
	request, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": "hasty", "method": "session/request_permission", "params": map[string]any{
			"sessionId": "x", "toolCall": map[string]any{"toolCallId": "call_1", "title": "May I?"},
			"options": []any{map[string]any{"optionId": "yes", "name": "Allow", "kind": "allow_once"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.completes("@raw "+string(request), "@say did it anyway")
	s.want("questions", len(s.interactions()), 1)
	i := s.interactions()[0]
	s.want("interaction", i.State, "expired")
	status, code := s.answer(i.ID, "yes")
	s.want("late answer", status, http.StatusConflict)
	s.want("late answer", code, "cloud_interaction_expired")
	before := s.count("wamp.interaction.answered")
	next := s.completes("@say next")
	s.want("next turn", s.run(next).StopReason, "end_turn")
	s.want("answers", s.count("wamp.interaction.answered"), before)
	s.oneEnd()
}
