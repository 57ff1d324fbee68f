package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/client"
)

// What an agent calls its options must not become shell commands of whoever
// pastes the line that answers.
func TestAnswerCommandsCanBePasted(t *testing.T) {
	ids := []string{
		"plain", "two words", "$(touch owned)", "`touch owned`", "'; touch owned; '", `"; touch owned`, "-rf", "--json",
		"a\\b", "#x", "~", "*", "!!", "日本", "",
	}
	options := make([]client.Option, len(ids))
	for i, id := range ids {
		options[i] = client.Option{OptionID: id, Name: "x", Kind: "other"}
	}
	for i, c := range choices(fakeSession, fakeAsk, options) {
		dir := t.TempDir()
		sh := exec.Command("/bin/sh", "-c", `sojourn() { printf '%s\n' "$@" | tail -n +1; }; `+c.command)
		sh.Dir = dir
		out, err := sh.CombinedOutput()
		words := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if err != nil || len(words) < 5 || words[len(words)-1] != ids[i] {
			t.Errorf("%q becomes %q, which a shell reads as %q (%v)", ids[i], c.command, words, err)
		}
		if len(words) == 6 && words[4] != "--" || len(words) > 6 {
			t.Errorf("%q becomes %d words: %q", ids[i], len(words), words)
		}
	}
}

func TestOptionsAreNamedByKindWhereThatIsEnough(t *testing.T) {
	options := []client.Option{
		{OptionID: "a", Kind: "allow_once"},
		{OptionID: "b", Kind: "allow_always"},
		{OptionID: "c", Kind: "allow_always"},
		{OptionID: "d", Kind: "reject_once"},
		{OptionID: "reject_always", Kind: "x"},
		{OptionID: "e", Kind: "reject_always"},
	}
	var got []string
	for _, o := range options {
		got = append(got, shortest(o, options))
		if id, err := chosen(client.Interaction{Options: options}, shortest(o, options)); err != nil || id != o.OptionID {
			t.Errorf("%s chooses %q, %v; want %q", shortest(o, options), id, err, o.OptionID)
		}
	}
	if text := strings.Join(got, " "); text != "allow_once b c reject_once reject_always e" {
		t.Errorf("got %s", text)
	}
}

func TestHostilePayloadsAreNarrated(t *testing.T) {
	payloads := []string{
		``, `null`, `1`, `"x"`, `[]`, `{}`, `{"update":null}`, `{"update":[]}`, `{"update":{"sessionUpdate":7}}`,
		`{"update":{"sessionUpdate":"agent_message_chunk"}}`, `{"update":{"sessionUpdate":"agent_message_chunk","content":[1]}}`,
		`{"update":{"sessionUpdate":"plan","entries":{}}}`, `{"update":{"sessionUpdate":"tool_call","toolCallId":{},"title":3}}`,
		`{"error":"x","epoch":"y","expiresAt":1,"options":{},"answer":[],"request":"r","entries":-1,"bytes":-5}`,
		`{"options":[1,null,{"optionId":null}],"kind":null}`,
	}
	kinds := []string{
		"session.created", "session.updated", "session.archived", "turn.submitted", "run.queued", "run.started", "run.active",
		"run.recovered", "run.completed", "run.failed", "run.crashed", "run.cancelled", "run.cancel_requested",
		"workspace.attached", "workspace.expired", "workspace.lost", "workspace.released", "workspace.restored",
		"checkpoint.sealed", "checkpoint.failed", "interaction.requested", "interaction.answered", "interaction.expired",
		"interaction.withdrawn", "agent.update", "agent.log", "of.the.future", "",
	}
	var b strings.Builder
	n := newNarrator(newPrinter(&b, false), fakeSession)
	for _, kind := range kinds {
		for _, data := range payloads {
			e := client.Event{Sequence: 1, Type: kind, OccurredAt: time.Unix(1, 0), Data: json.RawMessage(data)}
			n.tell(e)
			happening(e)
		}
	}
}

func TestEveryEventTypeHasALine(t *testing.T) {
	for _, kind := range sojournEventTypes() {
		if got := happening(client.Event{Type: kind, Data: json.RawMessage(`{}`)}); got == kind || got == "" {
			t.Errorf("%s is told as %q", kind, got)
		}
	}
}

func sojournEventTypes() (kinds []string) {
	for _, t := range sojourn.EventTypes {
		kinds = append(kinds, string(t))
	}
	return kinds
}
