package operator

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

func TestEveryCodeHasAReply(t *testing.T) {
	if missing := contract.Missing(); len(missing) > 0 {
		t.Errorf("codes without a reply: %v", missing)
	}
	if len(replies) != len(sojourn.Codes) {
		t.Errorf("%d replies for %d codes", len(replies), len(sojourn.Codes))
	}
	for code, r := range replies {
		if r.Code != string(code) {
			t.Errorf("%s is called %s here", code, r.Code)
		}
	}
}

func TestRepliesAreWhatWasPublished(t *testing.T) {
	var b bytes.Buffer
	for _, code := range sojourn.Codes {
		fmt.Fprintf(&b, "%-24s %d", code, replies[code].Status)
		if r := replies[code].RetryAfter; r > 0 {
			fmt.Fprintf(&b, "  Retry-After: %d", int(r.Seconds()))
		}
		b.WriteByte('\n')
	}
	golden(t, "testdata/replies.golden", b.Bytes())
}
