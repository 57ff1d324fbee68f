package exec

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
}

func TestRepliesAreWhatWasPublished(t *testing.T) {
	var b bytes.Buffer
	for _, code := range sojourn.Codes {
		r := replies[code]
		fmt.Fprintf(&b, "%-24s %d  %s", code, r.Status, r.Code)
		if r.RetryAfter > 0 {
			fmt.Fprintf(&b, "  Retry-After: %d", int(r.RetryAfter.Seconds()))
		}
		b.WriteByte('\n')
	}
	golden(t, "testdata/replies.golden", b.Bytes())
}
