package loop

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/model"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// stateDir is where conversations lie.
const stateDir = sandbox.HomePath + "/.sojourn-loop"

// kind is what an item of the conversation is, as a letter.
type kind byte

const (
	kindUser    kind = 'u' // what a person said
	kindSummary kind = 's' // of what came before
	kindReply   kind = 'a' // the model's; one reply may have several
	kindResult  kind = 'r' // of calls
)

// entry is one item of the conversation.
type entry struct {
	kind kind
	raw  json.RawMessage
}

// conversation is what the model is sent. The items are in the sandbox, a
// segment for each addition, and here as long as a drive lasts.
type conversation struct {
	link    harness.Link
	api     model.API
	pin     pin
	entries []entry
	calls   []model.Call // of the last reply
}

// header is the first line of a segment. Its items follow, a line each, and then
// the calls of a reply.
type header struct {
	Version      int       `json:"v"`
	Conversation string    `json:"conversation"`
	Number       int       `json:"number"`
	API          model.API `json:"api"`
	Kinds        string    `json:"kinds"` // of the items, a letter each
	Calls        int       `json:"calls,omitempty"`
}

// storedCall is a call as a segment keeps it.
type storedCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input,omitempty"`
	Malformed bool            `json:"malformed,omitempty"`
}

const (
	segmentVersion  = 1
	maxConversation = 256 << 20 // bytes of segments that are read back
)

// errDamaged says that the files of a conversation are not what its pin says.
var errDamaged = errors.New("its files are missing or changed")

func segmentName(id string, n int) string {
	return path.Join(stateDir, id, fmt.Sprintf("%06d.jsonl", n))
}

// newConversation begins one. Nothing is written before the first addition.
func newConversation(l harness.Link, api model.API) *conversation {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return &conversation{link: l, api: api, pin: pin{ID: hex.EncodeToString(id[:]), First: 1}}
}

// loadConversation reads one back. The error is errDamaged when it is not, to
// the byte, what p says, and the link's else.
func loadConversation(ctx context.Context, l harness.Link, p pin) (*conversation, error) {
	c := &conversation{link: l, pin: pin{ID: p.ID, First: p.First}}
	total := 0
	for n := p.First; n <= p.Last; n++ {
		data, err := l.ReadFile(ctx, segmentName(p.ID, n))
		if refused(err) {
			return nil, fmt.Errorf("%w: segment %d: %w", errDamaged, n, err)
		}
		if err != nil {
			return nil, fmt.Errorf("read the conversation: %w", err)
		}
		if total += len(data); total > maxConversation {
			return nil, fmt.Errorf("%w: over %d bytes", errDamaged, maxConversation)
		}
		c.pin.Digest, c.pin.Last = chain(c.pin.Digest, data), n
		if err := c.parse(data); err != nil {
			return nil, fmt.Errorf("%w: segment %d: %w", errDamaged, n, err)
		}
	}
	if c.pin != p {
		return nil, fmt.Errorf("%w: digest %.12s, not %.12s", errDamaged, c.pin.Digest, p.Digest)
	}
	return c, nil
}

// chain is the digest of a conversation whose digest was prev, with one more
// segment; the first has none before it.
func chain(prev string, segment []byte) string {
	h := sha256.New()
	_, _ = h.Write([]byte(prev)) // a hash takes everything
	_, _ = h.Write(segment)
	return hex.EncodeToString(h.Sum(nil))
}

// parse adds a segment's items.
func (c *conversation) parse(data []byte) error {
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	var h header
	if err := json.Unmarshal(lines[0], &h); err != nil {
		return err
	}
	if h.Version != segmentVersion || h.Conversation != c.pin.ID || h.Number != c.pin.Last || !h.API.Valid() ||
		c.api != "" && h.API != c.api || h.Calls < 0 || h.Calls > maxCalls || len(lines) != 1+len(h.Kinds)+h.Calls {
		return errors.New("its header does not fit")
	}
	c.api = h.API
	for i, line := range lines[1 : 1+len(h.Kinds)] {
		if !json.Valid(line) {
			return errors.New("an item is not JSON")
		}
		c.entries = append(c.entries, entry{kind(h.Kinds[i]), line})
	}
	c.calls = nil
	for _, line := range lines[1+len(h.Kinds):] {
		var s storedCall
		if err := json.Unmarshal(line, &s); err != nil {
			return err
		}
		c.calls = append(c.calls, model.Call{ID: s.ID, Name: s.Name, Input: s.Input, Malformed: s.Malformed})
	}
	return nil
}

// add appends items of one kind, and the calls of a reply. It is durable only
// with the state that holds the new pin: without it, the segment is written over.
func (c *conversation) add(ctx context.Context, k kind, items []json.RawMessage, calls []model.Call) error {
	entries := make([]entry, len(items))
	for i, it := range items {
		entries[i] = entry{k, it}
	}
	p := c.pin
	p.Last = max(p.Last, p.First-1) + 1
	if err := c.write(ctx, &p, entries, calls); err != nil {
		return err
	}
	c.pin, c.calls = p, calls
	c.entries = append(c.entries, entries...)
	return nil
}

// replace puts other items in the place of all. The old segments stay until
// forget: the state may not yet know of the new one.
func (c *conversation) replace(ctx context.Context, entries []entry) error {
	p := pin{ID: c.pin.ID, First: c.pin.Last + 1, Last: c.pin.Last + 1}
	if err := c.write(ctx, &p, entries, nil); err != nil {
		return err
	}
	c.pin, c.entries, c.calls = p, entries, nil
	return nil
}

// write makes segment p.Last and takes it into p's digest.
func (c *conversation) write(ctx context.Context, p *pin, entries []entry, calls []model.Call) error {
	h := header{Version: segmentVersion, Conversation: p.ID, Number: p.Last, API: c.api, Calls: len(calls)}
	for _, e := range entries {
		h.Kinds += string(rune(e.kind))
	}
	var b bytes.Buffer
	line := func(v any) {
		raw, _ := json.Marshal(v) // plain data, and JSON that was checked before
		b.Write(raw)
		b.WriteByte('\n')
	}
	line(h)
	for _, e := range entries {
		b.Write(e.raw) // not through package json: it would change bytes
		b.WriteByte('\n')
	}
	for _, x := range calls {
		line(storedCall{ID: x.ID, Name: x.Name, Input: x.Input, Malformed: x.Malformed})
	}
	if p.Last == p.First {
		if err := c.link.CreateDirectory(ctx, path.Join(stateDir, p.ID), true); err != nil {
			return fmt.Errorf("make the conversation's directory: %w", err)
		}
	}
	// The keeper answers when the file has been written, which is what a
	// checkpoint of the living sandbox needs; should the sandbox die, its disk
	// dies with it.
	if err := c.link.WriteFile(ctx, segmentName(p.ID, p.Last), b.Bytes()); err != nil {
		return fmt.Errorf("write the conversation: %w", err)
	}
	p.Digest = chain(p.Digest, b.Bytes())
	return nil
}

// forget removes the segments that the pin no longer names. What cannot be
// removed stays: nobody reads it.
func (c *conversation) forget(ctx context.Context, from int) error {
	for n := from; n < c.pin.First; n++ {
		err := c.link.RemovePath(ctx, segmentName(c.pin.ID, n), false, true)
		if err != nil && !refused(err) {
			return fmt.Errorf("remove an old segment: %w", err)
		}
	}
	return nil
}

// items are the raw items, in order.
func (c *conversation) items() []json.RawMessage { return rawOf(c.entries) }

func rawOf(entries []entry) []json.RawMessage {
	out := make([]json.RawMessage, len(entries))
	for i, e := range entries {
		out[i] = e.raw
	}
	return out
}

// cuts are the places where the conversation may be cut in two: no result is
// parted from its call, no reply in itself.
func cuts(entries []entry) []int {
	var out []int
	for i := 1; i < len(entries); i++ {
		k := entries[i].kind
		if k == kindUser || k == kindReply && entries[i-1].kind != kindReply {
			out = append(out, i)
		}
	}
	return out
}

// tailAt is the earliest cut that leaves at most limit bytes behind it; all of
// it when there is none.
func tailAt(entries []entry, limit int) int {
	size := 0
	at := len(entries)
	possible := cuts(entries)
	for i, e := range slices.Backward(entries) {
		if size += len(e.raw); size > limit {
			break
		}
		if slices.Contains(possible, i) {
			at = i
		}
	}
	return at
}

// refused reports whether err is the far side's own no, which it would repeat,
// rather than trouble on the way to it.
func refused(err error) bool {
	if err == nil || errors.Is(err, link.ErrStaleEpoch) || errors.Is(err, link.ErrUnknownSession) || errors.Is(err, link.ErrGone) {
		return false
	}
	_, ok := errors.AsType[*link.Error](err)
	return ok || errors.Is(err, fs.ErrNotExist) || errors.Is(err, link.ErrLimit)
}
