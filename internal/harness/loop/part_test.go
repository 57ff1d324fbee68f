package loop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/internal/model"
)

func TestPinIsReadBack(t *testing.T) {
	t.Parallel()
	p := pin{ID: strings.Repeat("0f", 16), First: 3, Last: 12, Digest: chain("", []byte("x"))}
	if got, err := parsePin(p.String()); err != nil || got != p {
		t.Errorf("%s is read as %+v, %v", p, got, err)
	}
	for _, bad := range []string{
		"", "x", "ses_1", p.ID + ".3.12", p.ID + ".0.12." + p.Digest, p.ID + ".13.12." + p.Digest, p.ID + ".3.12.beef",
		"../../etc.3.12." + p.Digest, strings.ToUpper(p.ID) + ".3.12." + p.Digest, p.ID + ".3.99999999." + p.Digest,
	} {
		if got, err := parsePin(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestConversationIsCutBetweenReplies(t *testing.T) {
	t.Parallel()
	entries := func(kinds string) []entry {
		var out []entry
		for _, k := range kinds {
			out = append(out, entry{kind(k), json.RawMessage(`"1234567"`)}) // 9 bytes
		}
		return out
	}
	for _, c := range []struct {
		kinds string
		limit int
		want  int
	}{
		{"uaruar", 1000, 1}, // before the first reply
		{"uaruar", 27, 3},   // before the second prompt
		{"uaruar", 26, 4},   // before its reply
		{"uaruar", 9, 6},    // a result alone cannot stay
		{"uaaarr", 40, 6},   // a reply of several items is one
		{"saru", 9, 3},
		{"u", 1000, 1},
		{"", 1000, 0},
	} {
		if got := tailAt(entries(c.kinds), c.limit); got != c.want {
			t.Errorf("%s with %d bytes is cut at %d, want %d", c.kinds, c.limit, got, c.want)
		}
	}
}

func TestExcerptKeepsBothEnds(t *testing.T) {
	t.Parallel()
	var e excerpt
	var whole bytes.Buffer
	for n := range 20_000 {
		line := fmt.Sprintf("line %d\n", n)
		e.add(int64(whole.Len()), []byte(line))
		whole.WriteString(line)
	}
	got := e.String()
	if len(got) > maxOutputBytes+100 || !strings.HasPrefix(whole.String(), got[:outputHead]) || !strings.HasSuffix(got, "line 19999\n") {
		t.Errorf("%d bytes: %.40q … %q", len(got), got, got[len(got)-40:])
	}
	left := 0
	if _, err := fmt.Sscanf(got[strings.Index(got, "[… "):], "[… %d bytes", &left); err != nil || left != whole.Len()-maxOutputBytes {
		t.Errorf("says that %d bytes are left out of %d (%v)", left, whole.Len(), err)
	}
	short := excerpt{}
	short.add(0, []byte("a"))
	short.add(1, []byte("b"))
	if short.String() != "ab" {
		t.Errorf("a short output is %q", short.String())
	}
	late := excerpt{} // its beginning was dropped before it was read
	late.add(1000, []byte("end"))
	if !strings.Contains(late.String(), "1000 bytes left out") {
		t.Errorf("an output without its beginning is %q", late.String())
	}
}

func TestResultsAreBounded(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "short", strings.Repeat("ä", maxOutputBytes), strings.Repeat("\xff", maxOutputBytes)} {
		got := bounded(s)
		if len(got) > maxOutputBytes+100 || !utf8.ValidString(got) {
			t.Errorf("a result of %d bytes has %d, valid %v", len(s), len(got), utf8.ValidString(got))
		}
	}
}

func TestToolNamesFitEveryAPI(t *testing.T) {
	t.Parallel()
	if got := toolName("my server", "do.it"); got != "mcp__my_server__do_it" {
		t.Errorf("named %q", got)
	}
	if got := toolName(strings.Repeat("x", 80), "y"); len(got) != maxToolName {
		t.Errorf("a name of %d bytes", len(got))
	}
	for _, tool := range builtin() {
		if !json.Valid(tool.spec.Schema) {
			t.Errorf("the schema of %s is not JSON: %s", tool.spec.Name, tool.spec.Schema)
		}
		if tool.effects && tool.recover == nil {
			t.Errorf("%s has effects, and nothing finds out about them after a crash", tool.spec.Name)
		}
	}
}

// FuzzState reads states that anybody may have written.
func FuzzState(f *testing.F) {
	s := state{
		Version: stateVersion, Run: "r", Epoch: 1, Stage: stageCall, Calls: []call{{Progress: callStarted}},
		Pin: pin{ID: strings.Repeat("0f", 16), First: 1, Last: 2, Digest: chain("", nil)},
	}
	f.Add(s.encode())
	f.Add([]byte(`{"v":1,"run":"r","stage":"ended","outcome":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeState(data)
		if err != nil || s == nil {
			return
		}
		again, err := decodeState(s.encode())
		if err != nil || !bytes.Equal(again.encode(), s.encode()) {
			t.Errorf("%s is read back as %+v, %v", s.encode(), again, err)
		}
		_ = s.next("other", 2).encode()
	})
}

// FuzzSegment reads segments that a sandbox may have written.
func FuzzSegment(f *testing.F) {
	f.Add([]byte(`{"v":1,"conversation":"c","number":1,"api":"openai-chat","kinds":"ua","calls":1}` + "\n" +
		`{"role":"user"}` + "\n" + `{"role":"assistant"}` + "\n" + `{"id":"1","name":"x","input":{}}` + "\n"))
	f.Add([]byte(`{"v":1,"conversation":"c","number":1,"api":"openai-chat","kinds":"` + strings.Repeat("u", 50) + `"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := conversation{pin: pin{ID: "c", First: 1, Last: 1}}
		if c.parse(data) != nil {
			return
		}
		if !c.api.Valid() || len(c.calls) > maxCalls {
			t.Errorf("read API %q, %d calls", c.api, len(c.calls))
		}
		for _, e := range c.entries {
			if !json.Valid(e.raw) {
				t.Errorf("an item is %q", e.raw)
			}
		}
		_ = cuts(c.entries)
		_ = laterHalf(append(c.entries, entry{kindUser, json.RawMessage("{}")}))
	})
}

func TestLastRequestIsRepeatedOnlyWhenItGoes(t *testing.T) {
	t.Parallel()
	for _, api := range []model.API{model.Anthropic, model.Responses, model.Chat} {
		said, err := api.User(model.Part{Type: "text", Text: "do it"}, model.Part{Type: "image", MimeType: "image/png", Data: "aGk="})
		if err != nil {
			t.Fatal(err)
		}
		gone := []entry{{kindUser, said}, {kindReply, json.RawMessage("{}")}}
		if got := lastRequest(gone, nil); !strings.HasSuffix(got, "do it") {
			t.Errorf("%s: repeated %q", api, got)
		}
		if got := lastRequest(gone, slices.Clone(gone)); got != "" {
			t.Errorf("%s: repeated %q, which stays", api, got)
		}
	}
}
