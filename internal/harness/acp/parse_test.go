package acp

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// parseSeeds are lines of every kind, and what has been mistaken for them.
var parseSeeds = map[string]kind{
	``:     blank,
	" \r":  blank,
	`text`: noise,
	`{}`:   noise,
	`[]`:   noise,
	`null`: noise,
	`{"jsonrpc":"2.0","method":"session/update","params":{}}`:               notification,
	`{"jsonrpc":"2.0","method":"x","id":null}`:                              notification,
	`{"jsonrpc":"2.0","method":"x","id":1}`:                                 request,
	`{"jsonrpc":"2.0","method":"x","id":"a\/b"}`:                            request,
	`{"jsonrpc":"2.0","method":"x","id":{}}`:                                noise,
	`{"jsonrpc":"2.0","method":"x","id":true}`:                              noise,
	`{"jsonrpc":"2.0","method":""}`:                                         noise,
	`{"jsonrpc":"2.0","method":7}`:                                          noise,
	`{"jsonrpc":"2.0","id":1,"result":null}`:                                response,
	`{"jsonrpc":"2.0","id":1,"result":{},"error":null}`:                     response,
	`{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1}}`:            response,
	`{"jsonrpc":"2.0","id":1,"error":"text"}`:                               response,
	`{"jsonrpc":"2.0","id":1,"error":null}`:                                 noise,
	`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`:                       noise,
	`{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}`:                   noise,
	`{"jsonrpc":"2.0","result":{}}`:                                         noise,
	`{"jsonrpc":"1.0","id":1,"result":{}}`:                                  noise,
	`{"JSONRPC":"2.0","id":1,"result":{}}`:                                  noise,
	`{"jsonrpc":"2.0","id":1,"result":{}`:                                   noise,
	`{"jsonrpc":"2.0","id":1,"result":{}}{}`:                                noise,
	"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xff\"}":                    response,
	"\x1b[32m{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\x1b[0m":           noise,
	`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 5000) + `","result":1}`: noise,
}

func TestParseTellsMessagesFromNoise(t *testing.T) {
	for line, want := range parseSeeds {
		if _, got := parse([]byte(line)); got != want {
			t.Errorf("parse(%.80q) is of kind %d, want %d", line, got, want)
		}
	}
}

func TestIDsMatchHoweverTheyAreEscaped(t *testing.T) {
	m, k := parse([]byte(`{"jsonrpc":"2.0","id":"run\/prompt","result":{}}`))
	if k != response || !is(m.id, "run/prompt") || is(m.id, "run/promp") {
		t.Errorf("id %s of kind %d, want a response to run/prompt alone", m.id, k)
	}
}

func FuzzParse(f *testing.F) {
	for line := range parseSeeds {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, k := parse(line)
		for _, raw := range []json.RawMessage{m.id, m.params, m.result} {
			if raw != nil && (!json.Valid(raw) || !utf8.Valid(raw)) {
				t.Errorf("part %q is not valid", raw)
			}
		}
		if (k == request || k == response) != (m.id != nil) && k != noise && k != notification {
			t.Errorf("kind %d with id %q", k, m.id)
		}
		if k == response && m.err == nil && m.result == nil {
			t.Error("a response without either half")
		}
		if m.err != nil && len(m.err.text()) > 6<<10 {
			t.Errorf("an error of %d bytes", len(m.err.text()))
		}
		if k == response {
			newReply(m)
		}
	})
}

// feedAll cuts chunks into lines, taking the cutting up anew from a stored
// cursor wherever restart says so.
func feedAll(chunks []link.Chunk, restart func() bool) (out []string, last lines) {
	var l lines
	for i := 0; i < len(chunks); i++ {
		c := chunks[i]
		if c.Seq <= l.at.Seq {
			continue
		}
		err := l.stdout(c, func(line []byte) error {
			out = append(out, string(line))
			if restart() {
				return errStopLines
			}
			return nil
		})
		if err != nil || restart() {
			stored := l.at
			l = lines{}
			l.resume(stored)
			i = -1 // the keeper gives all chunks after the cursor again
		}
	}
	return out, l
}

func FuzzLinesSurviveARestartAnywhere(f *testing.F) {
	f.Add([]byte("one\ntwo\n\nthree"), uint64(1), 2)
	f.Add([]byte(strings.Repeat("x", 40000)+"\ny\n"), uint64(2), 700)
	f.Add([]byte("\n\n\n"), uint64(3), 1)
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, most int) {
		if most < 1 || len(data) > 1<<17 || len(data)/most > 2000 {
			t.Skip("more chunks than a test should have")
		}
		random := rand.New(rand.NewPCG(seed, 0))
		var chunks []link.Chunk
		seq := int64(0)
		for off := 0; off < len(data); {
			n := min(1+random.IntN(most), len(data)-off)
			seq += 1 + random.Int64N(2) // exits take numbers too
			chunks = append(chunks, link.Chunk{Seq: seq, Data: data[off : off+n], Offset: int64(off)})
			off += n
		}
		calm, l := feedAll(chunks, func() bool { return false })
		want := slices.Collect(strings.SplitSeq(string(data), "\n"))
		if got := append(slices.Clone(calm), string(l.rest())); !slices.Equal(got, want) {
			t.Fatalf("lines %q, want %q", got, want)
		}
		left := 20
		torn, l := feedAll(chunks, func() bool {
			left--
			return left > 0 && random.IntN(3) == 0
		})
		if got := append(torn, string(l.rest())); !slices.Equal(got, want) {
			t.Fatalf("lines over restarts %q, want %q", got, want)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	whole := state{
		Version: stateVersion, Run: "r", Stage: stagePrompt, Process: "agent-1", Generation: 1, Conversation: "c",
		Cursor: cursor{Seq: 3, Off: 4, Partial: []byte("x")}, Open: []open{{1, json.RawMessage(`"a"`)}},
		Out: []outgoing{{"w", []byte("{}")}}, Reply: &reply{Stop: "end_turn"},
	}
	f.Add(whole.encode())
	whole.Stage, whole.Outcome = stageEnded, failed(CodeAgentError, "no")
	f.Add(whole.encode())
	f.Add([]byte(`{"v":1,"run":"r","stage":"ended","process":"p","generation":1}`))
	f.Add([]byte(`{"v":1,"run":"r","stage":"prompt","process":"p","generation":1,"open":[{"n":1,"id":{}}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeState(data)
		if err != nil || s == nil {
			return
		}
		again, err := decodeState(s.encode())
		if err != nil {
			t.Fatalf("its own encoding is refused: %v", err)
		}
		if !bytes.Equal(again.encode(), s.encode()) {
			t.Error("the state changes by being stored")
		}
		s.next("other")
	})
}

func TestNextRunForgetsTheTurn(t *testing.T) {
	s := state{
		Version: stateVersion, Run: "r1", Stage: stageEnded, Process: "agent-1", Generation: 1, Conversation: "c",
		Sent: true, Ending: byCaller, Reply: &reply{}, Open: []open{{}}, Budget: budget{Full: true}, Tail: "t",
		Outcome: &harness.Outcome{}, Requests: 7, Out: []outgoing{{"w", nil}},
	}
	want := state{
		Version: stateVersion, Run: "r2", Stage: stagePrompt, Process: "agent-1", Generation: 1, Conversation: "c",
		Requests: 7, Out: []outgoing{{"w", nil}},
	}
	if got := s.next("r2"); !bytes.Equal(got.encode(), want.encode()) {
		t.Errorf("next is %s, want %s", got.encode(), want.encode())
	}
}
