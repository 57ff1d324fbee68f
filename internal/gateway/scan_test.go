package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// scanned reads text in pieces of n bytes.
func scanned(text []byte, n int) (*scanner, error) {
	s := &scanner{}
	for p := text; len(p) > 0; {
		piece := p[:min(n, len(p))]
		if err := s.write(piece); err != nil {
			return s, err
		}
		p = p[len(piece):]
	}
	if !s.done() {
		return s, errIncomplete
	}
	return s, nil
}

// FuzzScanner: what it takes is a JSON object as the standard library sees it, and it
// finds the one model in it, however the bytes come.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"model":"m"}`, ` { "a" : [ 1 , -0.5e+10, true,false,null, {"model":"x"} ], "model" : "m" , "stream":true } `,
		`{"model":"a","model":"b"}`, `{"MODEL":"a"}`, `{"model":null}`, `{"model":1,"b":2}`, `{"model":["x",{"y":"}"}]}`,
		`{"\u006dodel":"\ud83d\ude00\\"}`, `{"a":01}`, `{"a":1.}`, `{"a":-}`, `{"a":1e}`, `{"a":"\x"}`, `{"a":tru}`, `{"a":[1,]}`, `{"a":1,}`,
		"{\"a\":\"\x01\"}", `{"a":1}x`, `{"stream_options":{"include_usage":true},"stream":false}`, `[{}]`, "{\"\xff\":1}", `{"a":{}}`, `{"a":[]}`,
	} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		s, err := scanned(text, 1+(n&0x3f))
		again, errAgain := scanned(text, len(text)+1)
		if err != errAgain || err == nil && !bytes.Equal(s.members.model.raw, again.members.model.raw) {
			t.Fatalf("in pieces %v, at once %v", err, errAgain)
		}
		var object map[string]json.RawMessage
		valid := json.Unmarshal(text, &object) == nil && object != nil
		switch err {
		case nil:
			if !valid {
				t.Fatalf("%q is taken for an object", text)
			}
		case errTwice, errKeys, errTooNested:
			return
		default:
			if valid {
				t.Fatalf("%q is refused: %v", text, err)
			}
			return
		}
		raw, there := object["model"]
		if m := s.members.model; m.seen != there || there && !m.tooLong && (!bytes.Equal(m.raw, raw) || !bytes.Equal(text[m.start:m.end], raw)) {
			t.Fatalf("%q: model %q at %d to %d, want %q", text, m.raw, m.start, m.end, raw)
		}
	})
}

// FuzzRewrite: only the model's name changes, and everybody reads the new one.
func FuzzRewrite(f *testing.F) {
	f.Add(`{"model":"m","a":[1, 2]}`, "upstream/x-1")
	f.Add(`{"a":"é\n","model" : "\u006d" ,"z":{"model":"m"}}`, "m")
	f.Fuzz(func(t *testing.T, text, upstream string) {
		if !validModel(upstream) {
			return
		}
		e, err := openEnvelope(strings.NewReader(text), int64(len(text)), true, func(int64) bool { return true })
		if err != nil {
			return
		}
		body, size := e.rewrite(upstream, "")
		got, err := io.ReadAll(body)
		if err != nil || size != int64(len(got)) {
			t.Fatalf("%d bytes, %d announced, %v", len(got), size, err)
		}
		var was, is map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &was) != nil || json.Unmarshal(got, &is) != nil {
			t.Fatalf("%q becomes %q", text, got)
		}
		var model string
		if json.Unmarshal(is["model"], &model) != nil || model != upstream || len(was) != len(is) {
			t.Fatalf("%q becomes %q, want the model %s", text, got, upstream)
		}
		if e.model == upstream {
			if string(got) != text {
				t.Fatalf("%q becomes %q without need", text, got)
			}
			return
		}
		m := e.scan.members.model
		if name, _ := json.Marshal(upstream); string(got) != text[:m.start]+string(name)+text[m.end:] {
			t.Fatalf("%q becomes %q", text, got)
		}
	})
}

// FuzzEvents: a stream means the same however it is cut, and no meter trips.
func FuzzEvents(f *testing.F) {
	for _, seed := range []string{
		"event: a\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":3}}\n\ndata: [DONE]\n\n",
		"data: a\r\ndata: b\r\n\r\ndata: c\r\rdata:d\n\n", ": comment\n\nevent:x\n\ndata\n\n", "data: {\"usage\":{\"prompt_tokens\":1e99}}\n\ndata: no end",
		"event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":-5}}}\n\n",
		"data: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":7}}\n\n", "\r\n\r\n\n\r",
	} {
		f.Add([]byte(seed), 2)
	}
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		read := func(n int) (log strings.Builder, tallies map[dialect]*tally) {
			tallies = map[dialect]*tally{}
			for d := range meters {
				tallies[d] = &tally{}
			}
			s := &events{each: func(name string, data []byte, _ bool) {
				log.WriteString(name + "|" + string(data) + "\n")
				for d, m := range meters {
					m.event(tallies[d], name, data)
				}
			}}
			for p := text; len(p) > 0; {
				piece := p[:min(n, len(p))]
				s.write(piece)
				p = p[len(piece):]
			}
			s.finish()
			return log, tallies
		}
		whole, want := read(len(text) + 1)
		pieces, got := read(1 + (n & 0x1f))
		if whole.String() != pieces.String() {
			t.Fatalf("%q: at once %q, in pieces %q", text, whole.String(), pieces.String())
		}
		for d := range meters {
			if *want[d] != *got[d] {
				t.Fatalf("%q: at once %+v, in pieces %+v", text, want[d], got[d])
			}
			u := &Call{RequestBytes: int64(len(text))}
			got[d].fill(u, true)
			if min(u.InputTokens, u.CachedTokens, u.OutputTokens, u.ReasoningTokens) < 0 || u.CachedTokens > u.InputTokens {
				t.Fatalf("%q: %+v", text, u)
			}
			meters[d].whole(&tally{}, text)
		}
	})
}

// FuzzMask: no secret comes through, in whatever pieces, and no length changes.
func FuzzMask(f *testing.F) {
	f.Add("xx secret-key yy secret-secret-key", 3)
	f.Add("secret-kesecret-keysecret-key-long", 1)
	f.Fuzz(func(t *testing.T, text string, n int) {
		secrets := []string{"secret-key", "secret-key-long", "ababac"}
		m := masker{mask: newMask(Provider{Key: secrets[0], Headers: map[string]string{"X-Token": secrets[1], "Authorization": "Bearer " + secrets[2], "Version": "2026-01-01"}})}
		var got []byte
		for p := []byte(text); len(p) > 0; {
			piece := p[:min(1+(n&0xf), len(p))]
			p = p[len(piece):]
			got = append(got, m.pass(bytes.Clone(piece))...)
		}
		got = append(got, m.rest()...)
		if len(got) != len(text) {
			t.Fatalf("%q becomes %q", text, got)
		}
		for _, s := range secrets {
			if bytes.Contains(got, []byte(s)) {
				t.Fatalf("%q comes through as %q", text, got)
			}
		}
		for i := range got {
			if got[i] != text[i] && got[i] != '*' {
				t.Fatalf("%q becomes %q", text, got)
			}
		}
	})
}

func TestFirstEvent(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a": "", "a\n": "", "a\n\n": "a\n\n", "a\nb\n\nc\n\n": "a\nb\n\n", "a\r\n\r\nb": "a\r\n\r\n", "\n\nx": "\n\n", "a\r\n\r": "",
	} {
		if got := string(firstEvent([]byte(text))); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestQueryKeepsWhatIsHarmless(t *testing.T) {
	for query, want := range map[string]string{
		"": "", "alt=sse": "alt=sse", "beta=true&key=x&alt=sse": "beta=true&alt=sse", "%6bey=x": "", "KEY=x&$access_token=y": "",
		"a=1;key=x": "", "a=%zz&b=%41": "a=%zz&b=%41", "%zz=1": "",
	} {
		if got := harmless(query); got != want {
			t.Errorf("%q becomes %q, want %q", query, got, want)
		}
	}
}

func TestErrorTextInEveryForm(t *testing.T) {
	for body, want := range map[string]string{
		`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`: "Overloaded",
		`{"error":{"message":"","type":"server_error"}}`:                              "server_error",
		`{"error":"plain"}`: "plain",
		`[{"error":{"code":400,"message":"m","status":"INVALID"}}]`: "m",
		`{"message":"m"}`:                     "m",
		`{"detail":"d"}`:                      "d",
		`{"detail":[{"loc":1}]}`:              "Bad Gateway",
		`<html>bad gateway</html>`:            "Bad Gateway",
		`{"error":{"message":"a\nb\u0007c"}}`: "a b c",
	} {
		if got := errorText([]byte(body), 502); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
	if got := errorText([]byte(`{"error":"`+strings.Repeat("é", 1000)+`"}`), 400); len(got) > maxErrorText+len("…") || !strings.HasSuffix(got, "é…") {
		t.Errorf("a long text becomes %d bytes: %q", len(got), got)
	}
}
