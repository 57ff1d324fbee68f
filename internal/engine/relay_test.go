package engine_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/gateway"
	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

const providerKey = "sk-provider-0123456789abcdef"

// The prices of a million tokens are such that each token shows in the cost.
var relayPrice = gateway.Price{Input: 3_000_000, Output: 5_000_000_000}

// relayed begins a session whose agent calls a model through the gateway, as it would
// from any sandbox. mock is that model.
func relayed(t *testing.T, mock *modeltest.Server, c servertest.Config) *story {
	t.Helper()
	g, err := gateway.New(gateway.Config{Providers: []gateway.Provider{{
		Name: "mock", API: gateway.OpenAI, BaseURL: mock.Start(t) + "/v1", Key: providerKey,
		Models: []gateway.Model{{Name: "best", Price: &relayPrice}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := egress.New(egress.Config{})
	if err != nil {
		t.Fatal(err)
	}
	way := server.NewWay(e, g, []byte("the key of the tokens"))
	row := harnesstest.RelayRow("relay")
	row.Env["RELAY_SOCKET"] = "1"
	c.Egress, c.Models, c.Runtimes = way, way, []harness.Runtime{row}
	c.Programs = map[string]keeper.Program{"relay": harnesstest.Relay}
	return begin(t, c)
}

// modelCalls are the calls of models that the log has.
func (s *story) modelCalls() (calls []map[string]any) {
	s.Helper()
	for _, e := range s.events() {
		if e.Type == "wamp.model.called" {
			var d map[string]any
			if err := json.Unmarshal(e.Data, &d); err != nil {
				s.Fatal(err)
			}
			calls = append(calls, d)
		}
	}
	return calls
}

// modelError is what the end of the only run says of its model.
func (s *story) modelError(end string) map[string]any {
	s.Helper()
	why, _ := s.data(end)["modelError"].(map[string]any)
	return why
}

// TestCostsComeFromTheGatewayOnly: the agent says that it has used one token.
func TestCostsComeFromTheGatewayOnly(t *testing.T) {
	s := relayed(t, &modeltest.Server{Key: providerKey}, servertest.Config{})
	s.completes("@mock usage 1000 200", "@mock say hello")
	if log := s.log(); !strings.Contains(log, `"used":1`) {
		t.Errorf("the agent's own words are not in the log: %s", log)
	}
	calls := s.modelCalls()
	s.want("calls", len(calls), 1)
	s.want("input tokens", calls[0]["inputTokens"], 1000.0)
	s.want("output tokens", calls[0]["outputTokens"], 200.0)
	s.want("cost", calls[0]["costMicroCents"], 1000.0*3+200*5000)
	s.want("failure", s.modelError("wamp.run.completed") == nil, true)
}

// TestFailuresThatAgentsHide: the agent ends each of these turns with end_turn, and
// the run says what its model has done.
func TestFailuresThatAgentsHide(t *testing.T) {
	long := "@mock say " + strings.Repeat("one two three four ", 40)
	for name, c := range map[string]struct {
		key     string // that the provider wants
		script  []string
		failure string
		status  float64
	}{
		"wrong key":     {"another", []string{"@mock say hello"}, "status", 401},
		"cut stream":    {providerKey, []string{"@mock cut", long}, "cut", 200},
		"short stream":  {providerKey, []string{"@mock short", long}, "cut", 200},
		"error in it":   {providerKey, []string{"@mock fail the service is full", long}, "error_event", 200},
		"out of credit": {providerKey, []string{"@mock error 402"}, "status", 402},
	} {
		t.Run(name, func(t *testing.T) {
			s := relayed(t, &modeltest.Server{Key: c.key}, servertest.Config{})
			run := s.completes(c.script...)
			s.want("stop reason", s.run(run).StopReason, "end_turn")
			why := s.modelError("wamp.run.completed")
			s.want("failure", why["failure"], c.failure)
			s.want("status", why["status"], c.status)
			s.want("calls", len(s.modelCalls()), 1)
			if log := s.log(); strings.Contains(log, providerKey) {
				t.Errorf("the log holds the provider's key: %s", log)
			}
		})
	}
}

// TestBusyModelDoesNotOutlastTheTurn: the provider is busy for a minute, the agent
// waits as it is told, and the turn ends at its deadline.
func TestBusyModelDoesNotOutlastTheTurn(t *testing.T) {
	s := relayed(t, &modeltest.Server{Key: providerKey}, servertest.Config{TurnDeadline: 5 * time.Second})
	run := s.submit("@mock retry 60", "@mock error 429")
	r := s.ended(run)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "turn_deadline")
	s.want("said", slices.Contains(s.said(run), "The model is busy for 1m0s."), true)
	s.want("calls", len(s.modelCalls()), 1)
	s.want("status", s.modelError("wamp.run.crashed")["status"], 429.0)
}

// TestBusyModelIsWaitedFor: where the turn has the time, a 429 is a pause.
func TestBusyModelIsWaitedFor(t *testing.T) {
	s := relayed(t, &modeltest.Server{Key: providerKey}, servertest.Config{})
	run := s.submit("@mock retry 1", "@mock error 429")
	s.until("a second call", func() bool { return len(s.modelCalls()) == 2 })
	s.cancel(run)
	s.want("run", s.ended(run).State, "cancelled")
	for _, c := range s.modelCalls() {
		s.want("status", c["status"], 429.0)
		s.want("tokens", c["inputTokens"], 0.0)
	}
}

// TestCancelEndsTheModelCall: nobody pays for what nobody reads.
func TestCancelEndsTheModelCall(t *testing.T) {
	s := relayed(t, &modeltest.Server{Key: providerKey}, servertest.Config{})
	run := s.submit("@mock pace 50", "@mock say "+strings.Repeat("one two three four ", 4000))
	s.until("the first words", func() bool { return len(s.said(run)) > 0 })
	s.cancel(run)
	s.want("run", s.ended(run).State, "cancelled")
	s.until("the end of the call", func() bool { return len(s.modelCalls()) == 1 })
	s.want("failure", s.modelCalls()[0]["failure"], "cancelled")
	s.want("failure of the run", s.modelError("wamp.run.cancelled") == nil, true)
}
