package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

func TestToolsAreCalledWithTheirInput(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	register := func(x sojourn.Tool) error {
		_, err := s.engine().RegisterTool(s.patient(), s.ref, x)
		return err
	}
	for _, x := range []sojourn.Tool{
		{Name: "echo", Argv: []string{"cat"}, InputSchema: json.RawMessage(`{"type":"object","required":["text"]}`)},
		{Name: "any", Argv: []string{"cat"}},
		{Name: "careful", Argv: []string{"cat"}, Ask: true},
	} {
		if err := register(x); err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range map[string]sojourn.Tool{
		"ours":        {Name: "ours", Argv: []string{"sojourn:tar", "/"}},
		"endless":     {Name: "endless", Argv: []string{"cat"}, InputSchema: json.RawMessage(`{"$ref":"#"}`)},
		"with secret": {Name: "with", URL: "http://user:password@host/"},
	} {
		s.want(name, sojourn.CodeOf(register(x)), sojourn.CodeInvalid)
	}
	call := func(tool, input string) engine.ExecRequest {
		return engine.ExecRequest{Tool: tool, ToolInput: json.RawMessage(input), Spec: sojourn.ExecSpec{Timeout: patience}}
	}
	x := s.run(call("echo", ` {"text": "ü\u0000", "more": [1e3]} `))
	s.want("input", s.output(x, output.Stdout), `{"text": "ü\u0000", "more": [1e3]}`)
	s.want("tool", x.Spec.Tool, "echo")
	s.want("no input", s.output(s.run(call("any", "")), output.Stdout), "{}")
	s.want("asks", s.run(call("careful", "{}")).State, sojourn.ExecParked)
	for name, c := range map[string]struct {
		in   engine.ExecRequest
		code sojourn.Code
	}{
		"not admitted":   {call("echo", `{"tekst":1}`), sojourn.CodeInvalid},
		"no JSON":        {call("any", `{`), sojourn.CodeInvalid},
		"no such tool":   {call("nothing", `{}`), sojourn.CodeNotFound},
		"with a command": {engine.ExecRequest{Tool: "any", Spec: sojourn.ExecSpec{Argv: []string{"true"}, Timeout: patience}}, sojourn.CodeInvalid},
	} {
		_, _, err := s.engine().StartExec(s.patient(), s.ref, c.in)
		s.want(name, sojourn.CodeOf(err), c.code)
	}
}

// TestAWaitForTheEndOutlastsAnApproval: whoever waits for the end of an exec is not
// answered because that waits itself.
func TestAWaitForTheEndOutlastsAnApproval(t *testing.T) {
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	ask := sh("true")
	ask.Spec.Ask = true
	x := s.run(ask)
	s.want("state", x.State, sojourn.ExecParked)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := s.engine().WaitExecOver(short, s.ref, x.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait for the end of what is parked = %v", err)
	}
	open, err := s.engine().Interactions(t.Context(), s.ref, sojourn.InteractionOpen)
	if err != nil || len(open) != 1 {
		t.Fatalf("open: %v, %v", open, err)
	}
	if _, err := s.engine().Answer(t.Context(), s.ref, open[0].ID, sojourn.Answer{OptionID: sojourn.OptionReject}); err != nil {
		t.Fatal(err)
	}
	_, x, err = s.engine().WaitExecOver(s.patient(), s.ref, x.ID)
	if err != nil || x.State != sojourn.ExecRefused || x.Reason != sojourn.ExecRejected {
		t.Errorf("after the answer: %s (%s), %v", x.State, x.Reason, err)
	}
}
