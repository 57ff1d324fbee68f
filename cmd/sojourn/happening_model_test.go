package main

import (
	"encoding/json"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/client"
)

func TestModelCallsAreToldInALine(t *testing.T) {
	for data, want := range map[string]string{
		`{"model":"best","inputTokens":1200,"outputTokens":34,"costMicroCents":1234500,"durationNanos":1500000000}`:  "model best: 1200 tokens in, 34 out in 1.5s, 0.012345",
		`{"model":"best","inputTokens":5,"outputTokens":1,"estimated":true,"unpriced":true,"durationNanos":2000000}`: "model best: about 5 tokens in, 1 out in 2ms",
		`{"model":"best","failure":"status","status":429,"error":"slow\u001b[31m down"}`:                             "model best failed (status 429): slow␛[31m down",
		`{"model":"best","failure":"cut","error":"the answer was cut"}`:                                              "model best failed (cut): the answer was cut",
	} {
		if got := happening(client.Event{Type: string(sojourn.EventModelCalled), Data: json.RawMessage(data)}); got != want {
			t.Errorf("%s\n got %q\nwant %q", data, got, want)
		}
	}
	end := client.Event{Type: string(sojourn.EventRunCompleted), Data: json.RawMessage(`{"stopReason":"end_turn","modelError":{"status":529,"failure":"status","message":"overloaded"}}`)}
	if got, want := happening(end), "completed (end_turn); its last call of a model had failed (status 529): overloaded"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for m, want := range map[sojourn.Money]string{0: "0", 1: "0.00000001", 100 * sojourn.Cent: "1", 150 * sojourn.Cent: "1.5"} {
		if got := amount(m); got != want {
			t.Errorf("%d is shown as %s, want %s", m, got, want)
		}
	}
}
