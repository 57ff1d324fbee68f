package keeper_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

const helloPayload = `{"id":0,"method":"initialize","params":{"clientName":"x","sojourn":{"epoch":0,"revision":1}}}`

// ask sends a call with a payload, nil for none, and returns the answer.
func (r raw) ask(method, params string, payload []byte) link.Message {
	r.t.Helper()
	data, err := link.EncodeMessage(link.Message{
		ID: json.RawMessage("1"), Method: method, Params: json.RawMessage(params), Payload: payload,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.say(string(data))
	return r.hear()
}

// TestPayloadsOnTheWire: bytes come and go as they are where both sides know how,
// and as base64 where one does not.
func TestPayloadsOnTheWire(t *testing.T) {
	k := keeper.New(keeper.Config{})
	t.Cleanup(func() { k.Close() })
	name := filepath.Join(t.TempDir(), "f")
	body := []byte("\x00\xff}\"" + strings.Repeat("x", 100))
	at := fmt.Sprintf(`{"path":%q,"dataBase64":""}`, name)

	r := dialRaw(t, k)
	r.say(helloPayload)
	if m := r.hear(); string(link.Field(m.Result, "sojourn")) != `{"epoch":0,"revision":1}` {
		t.Fatalf("initialize answered %s", m.Result)
	}
	if m := r.ask(link.MethodWriteFile, at, body); m.Error != nil {
		t.Fatal(m.Error)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, body) {
		t.Fatalf("the file has %q, %v", got, err)
	}
	if m := r.ask(link.MethodReadFile, at, nil); m.Error != nil || !bytes.Equal(m.Payload, body) || string(m.Result) != `{"dataBase64":""}` {
		t.Fatalf("read = %s with %q, %v", m.Result, m.Payload, m.Error)
	}
	for name, m := range map[string]link.Message{
		"no payload expected": r.ask(link.MethodStats, `{}`, []byte("x")),
		"bytes twice":         r.ask(link.MethodWriteFile, fmt.Sprintf(`{"path":%q,"dataBase64":"aGk="}`, name), []byte("x")),
		"run takes none":      r.ask(link.MethodRun, `{"start":{"processId":"p","argv":["true"]},"read":{}}`, []byte("x")),
	} {
		if m.Error == nil || m.Error.Code != link.CodeInvalidParams {
			t.Errorf("%s: %s, %v", name, m.Result, m.Error)
		}
	}

	old := dialRaw(t, k)
	old.say(helloOld)
	old.hear()
	m := old.ask(link.MethodReadFile, at, nil)
	if want, _ := json.Marshal(link.ReadFileResult{Data: body}); m.Payload != nil || !bytes.Equal(m.Result, want) {
		t.Fatalf("read = %s with %q", m.Result, m.Payload)
	}
	if m := old.ask(link.MethodWriteFile, at, body); m.Error == nil || m.Error.Code != link.CodeInvalidParams {
		t.Fatalf("a payload was taken from a client that knows none: %s, %v", m.Result, m.Error)
	}
}

// helloOld is the introduction of the first clients of ours.
const helloOld = `{"id":0,"method":"initialize","params":{"clientName":"x","sojourn":{"epoch":0}}}`

// TestLargeOutputIsEachProcessOwn: many large outputs at once, of processes that
// are read slowly, fast, twice or not at all, are never mixed up, though the memory
// that they pass through is used again and again.
func TestLargeOutputIsEachProcessOwn(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	const size = 6 << 20
	var wg sync.WaitGroup
	for i, retain := range []string{link.RetainAck, link.RetainRing, link.RetainFollow, link.RetainAck, link.RetainRing, link.RetainAck} {
		id, word := fmt.Sprint(i), fmt.Sprintf("%07d\n", i)
		wg.Go(func() {
			err := c.Start(t.Context(), link.StartParams{
				ProcessID: id, Argv: []string{"sh", "-c", fmt.Sprintf(`yes "$0" | dd bs=64k iflag=fullblock count=%d 2>/dev/null`, size>>16), word[:7]},
				Env: env(), Cwd: "/", Retain: retain,
			})
			if err == nil {
				err = checkWords(t, c, id, word, retain)
			}
			if err != nil {
				t.Errorf("%s %s: %v", retain, id, err)
			}
		})
	}
	wg.Wait()
}

// checkWords reads a process that repeats a word of 8 bytes.
func checkWords(t *testing.T, c *link.Client, id, word, retain string) error {
	want := []byte(strings.Repeat(word, 64<<10/len(word)+1))
	var after, total int64
	for {
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Ack: after, Wait: link.MaxWait})
		if err != nil {
			return err
		}
		again, err := c.Read(t.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, MaxBytes: 1})
		if err != nil {
			return err
		}
		for _, chunks := range [][]link.Chunk{again.Chunks, r.Chunks} {
			for _, ch := range chunks {
				if shift := ch.Offset % int64(len(word)); !bytes.Equal(ch.Data, want[shift:shift+int64(len(ch.Data))]) {
					return fmt.Errorf("chunk %d at %d has bytes of somebody else", ch.Seq, ch.Offset)
				}
			}
		}
		for _, ch := range r.Chunks {
			total += int64(len(ch.Data))
		}
		after = r.NextSeq - 1
		closed, dropped := r.Closed, r.DroppedBytes
		r.Release()
		again.Release()
		switch {
		case !closed:
			continue
		case total+dropped < 6<<20 || retain != link.RetainRing && dropped > 0:
			return fmt.Errorf("%d bytes came and %d were dropped", total, dropped)
		}
		return c.Remove(t.Context(), id)
	}
}

// TestReleaseTakesTheChunks: what has been given back cannot be used by mistake.
func TestReleaseTakesTheChunks(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	r, err := c.Run(t.Context(), link.StartParams{ProcessID: "p", Argv: []string{"head", "-c", "200000", "/dev/zero"}, Env: env()}, short)
	if err != nil || len(r.Chunks) == 0 {
		t.Fatal(errors.Join(err, errors.New("no output")))
	}
	r.Release()
	r.Release()
	if r.Chunks != nil || !r.Closed {
		t.Fatalf("released: %+v", r)
	}
}
