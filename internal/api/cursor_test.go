package api

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

func TestAfterHasOneRule(t *testing.T) {
	for _, c := range []struct {
		query  string
		header []string
		want   int64
		bad    bool
	}{
		{"", nil, 0, false},
		{"after=0", nil, 0, false},
		{"after=7", nil, 7, false},
		{"", []string{"7"}, 7, false},
		{"after=7", []string{"9"}, 9, false},
		{"after=abc", []string{"9"}, 9, false},
		{"after=7", []string{"abc"}, 0, true},
		{"after=", nil, 0, true},
		{"after", nil, 0, true},
		{"", []string{""}, 0, true},
		{"after=1&after=2", nil, 0, true},
		{"", []string{"1", "2"}, 0, true},
		{"after=-1", nil, 0, true},
		{"after=%2B1", nil, 0, true},
		{"after=+1", nil, 0, true},
		{"after=1+", nil, 0, true},
		{"after=01", nil, 0, true},
		{"after=1e3", nil, 0, true},
		{"after=0x1", nil, 0, true},
		{"after=%D9%A1", nil, 0, true},
		{"after=999999999999999999", nil, 999999999999999999, false},
		{"after=9999999999999999999", nil, 0, true},
	} {
		r, err := http.NewRequest("GET", "http://h/?"+c.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.header != nil {
			r.Header["Last-Event-Id"] = c.header
		}
		got, err := After(r)
		if got != c.want || (err != nil) != c.bad || c.bad && sojourn.CodeOf(err) != sojourn.CodeInvalidCursor {
			t.Errorf("?%s with %q: %d, %v; want %d, refused: %v", c.query, c.header, got, err, c.want, c.bad)
		}
	}
}

func TestWantsStream(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/event-stream": true, "Text/Event-Stream;q=0.9": true,
		"application/json, text/event-stream": true, "text/event-streams": false, "text/*": false,
	} {
		r := &http.Request{Header: http.Header{"Accept": {accept}}}
		if got := WantsStream(r); got != want {
			t.Errorf("Accept: %s: %v, want %v", accept, got, want)
		}
	}
}

func TestIdempotencyHashesTheCommand(t *testing.T) {
	a, err := Idempotent{"k"}.Of("op", map[string]string{"b": "1", "a": "2"})
	if err != nil || a.Key != "k" {
		t.Fatal(a.Key, err)
	}
	if same, _ := (Idempotent{"other"}).Of("op", map[string]string{"a": "2", "b": "1"}); same.Hash != a.Hash {
		t.Error("the same command has another hash")
	}
	if other, _ := (Idempotent{"k"}).Of("op2", map[string]string{"a": "2", "b": "1"}); other.Hash == a.Hash {
		t.Error("another command has the same hash")
	}
	if none, err := (Idempotent{}).Of("op"); none != (sojourn.Idempotency{}) || err != nil {
		t.Errorf("without a key: %+v, %v", none, err)
	}
	for _, bad := range []string{"a b", "a\n", "ä", string(make([]byte, 256))} {
		if _, err := (Idempotent{bad}).Of("op"); sojourn.CodeOf(err) != sojourn.CodeInvalid {
			t.Errorf("key %q: %v, want invalid", bad, err)
		}
	}
}

func FuzzParseSeq(f *testing.F) {
	for _, s := range []string{"0", "1", "42", "", "-1", "+1", "01", "1 ", " 1", "1e9", "999999999999999999", "9999999999999999999", "٣", "1\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseSeq(text)
		if err == nil && (n < 0 || strconv.FormatInt(n, 10) != text) {
			t.Errorf("ParseSeq(%q) is %d", text, n)
		}
		if want, bad := strconv.ParseUint(text, 10, 63); err != nil && bad == nil && strconv.FormatUint(want, 10) == text && len(text) <= 18 {
			t.Errorf("ParseSeq(%q) is refused: %v", text, err)
		}
	})
}

func FuzzAfter(f *testing.F) {
	f.Add("after=1", "2", true)
	f.Add("after=%zz", "", false)
	f.Add("after=1;after=2", "x", true)
	f.Fuzz(func(t *testing.T, query, header string, has bool) {
		r, err := http.NewRequest("GET", "http://h/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = query
		if has {
			r.Header["Last-Event-Id"] = []string{header}
		}
		n, err := After(r)
		if err != nil && sojourn.CodeOf(err) != sojourn.CodeInvalidCursor {
			t.Errorf("After: %v", err)
		}
		if has && err == nil && strconv.FormatInt(n, 10) != header {
			t.Errorf("After with Last-Event-ID %q is %d", header, n)
		}
	})
}
