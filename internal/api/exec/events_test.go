package exec

import (
	"encoding/json"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

// TestPayloadsKeepTheirMeaning: names that two kinds of events share are projected
// as what they are in each.
func TestPayloadsKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind sojourn.EventType
		data map[string]any
		want string
	}{
		{
			sojourn.EventWorkspaceLimit,
			map[string]any{"epoch": 1, "limits": map[string]int64{"memory": 1, "processes": 3}},
			`{"epoch":1,"limits":{"memory":1,"processes":3}}`,
		},
		{
			sojourn.EventBudgetChanged,
			map[string]any{"limits": sojourn.Limits{Cost: 5 * sojourn.Cent}},
			`{"limits":{"costCapCents":5,"iterationLimit":null,"durationLimitSeconds":null}}`,
		},
		{
			sojourn.EventBudgetWarning,
			map[string]any{"percent": 80, "remaining": sojourn.Limits{Iterations: 2}},
			`{"percent":80,"remaining":{"iterations":2}}`,
		},
		{sojourn.EventRotationStarted, map[string]any{"remaining": "x"}, `{"remaining":"x"}`},
	} {
		data, err := json.Marshal(c.data)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(payload(sojourn.Event{Type: c.kind, Data: data}, false)); got != c.want {
			t.Errorf("%s: %s, want %s", c.kind, got, c.want)
		}
	}
}
