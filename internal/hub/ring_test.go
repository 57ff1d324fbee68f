package hub

import (
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

// TestRingIsBoundedByBytes holds the memory of a session flat, however much is
// published and whether or not anybody reads (case EV-11).
func TestRingIsBoundedByBytes(t *testing.T) {
	const limit = 64 << 10
	h := New(Config{RingBytes: limit})
	c := h.Subscribe("s", 0)
	defer c.Close()
	data := []byte(strings.Repeat("x", 700))
	for seq := int64(1); seq <= 5000; seq++ {
		h.Publish("s", []sojourn.Event{{Session: "s", Seq: seq, Data: data}})
		r := c.ring
		total := 0
		for _, f := range r.frames {
			total += size(f.Event)
		}
		if total > limit || total != r.bytes {
			t.Fatalf("after %d events the ring holds %d bytes and counts %d, want %d at most", seq, total, r.bytes, limit)
		}
		if n := len(r.frames); seq > 100 && (n < 30 || r.frames[n-1].Event.Seq != seq) {
			t.Fatalf("after %d events the ring holds %d", seq, n)
		}
	}
	if n := cap(c.ring.frames); n > 1000 {
		t.Errorf("the ring's array has grown to %d", n)
	}
	h.Publish("s", []sojourn.Event{{Session: "s", Seq: 5001, Data: make([]byte, 2*limit)}})
	if n := len(c.ring.frames); n != 0 {
		t.Errorf("the ring holds %d frames after one that is too large", n)
	}
}
