package loop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/model"
)

const (
	agentName     = "sojourn-loop"
	maxChunkBytes = 16 << 10 // of text in one event
	maxShownBytes = 16 << 10 // of a call's input, output or diff in an event
)

// update is the part of an ACP session/update that the loop has use for, so that
// clients see one form from all agents.
type update struct {
	Kind      string          `json:"sessionUpdate,omitempty"`
	MessageID string          `json:"messageId,omitempty"`
	CallID    string          `json:"toolCallId,omitempty"`
	Title     string          `json:"title,omitempty"`
	ToolKind  string          `json:"kind,omitempty"`
	Status    string          `json:"status,omitempty"`
	Content   any             `json:"content,omitempty"`
	Locations []location      `json:"locations,omitempty"`
	RawInput  json.RawMessage `json:"rawInput,omitempty"`
	Entries   json.RawMessage `json:"entries,omitempty"`
	Used      *int64          `json:"used,omitempty"`
	Size      *int64          `json:"size,omitempty"`
}

type location struct {
	Path string `json:"path"`
}

// text is a content block.
type text struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// shown is an element of a tool call's content: text, or the change of a file.
type shown struct {
	Type    string  `json:"type"` // "content" or "diff"
	Content *text   `json:"content,omitempty"`
	Path    string  `json:"path,omitempty"`
	OldText *string `json:"oldText,omitempty"`
	NewText *string `json:"newText,omitempty"`
}

// tell adds an update to the batch.
func (d *drive) tell(u update) {
	d.flush()
	d.emit(sojourn.EventAgentUpdate, struct {
		Update update `json:"update"`
	}{u})
}

// log adds a line about the loop itself.
func (d *drive) log(format string, args ...any) {
	d.flush()
	d.emit(sojourn.EventAgentLog, map[string]string{"stream": "loop", "text": clip(fmt.Sprintf(format, args...), 4<<10)})
}

// emit adds an event to the batch. After a pause the first one hardly waits for
// others, so that what somebody is waiting for shows at once; in a stream the
// batches come at their pace.
func (d *drive) emit(t sojourn.EventType, v any) {
	d.hasten()
	data := encode(v)
	d.batch.Events = append(d.batch.Events, harness.Event{Type: t, Data: data})
	d.batchLen += len(data)
}

// encode is v as JSON, without the escapes that only HTML needs.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // plain data always encodes
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// hasten sees to it that what is now being added to an empty batch will be
// committed.
func (d *drive) hasten() {
	if len(d.batch.Events) == 0 && len(d.text) == 0 {
		d.due.Reset(max(firstWait, d.cfg.BatchEvery-time.Since(d.batchAt)))
	}
}

// say adds a piece of the model's stream. Pieces become one event as long as
// they wait for the same commit.
func (d *drive) say(p model.Delta) {
	if p.Text == "" {
		return
	}
	if p.Thought != d.thought {
		d.flush()
	}
	d.hasten()
	d.thought = p.Thought
	d.text = append(d.text, p.Text...)
	if len(d.text) >= maxChunkBytes {
		d.flush()
	}
}

// flush makes an event of the text that has come.
func (d *drive) flush() {
	if len(d.text) == 0 {
		return
	}
	u := update{
		Kind: "agent_message_chunk", Content: text{"text", string(d.text)},
		MessageID: fmt.Sprintf("%s/%d.%d", d.job.Run, d.st.Step, d.st.Attempt),
	}
	if d.thought {
		u.Kind = "agent_thought_chunk"
	}
	d.text, d.st.Said = d.text[:0], true
	d.emit(sojourn.EventAgentUpdate, struct {
		Update update `json:"update"`
	}{u})
}

// clip bounds text for people to n bytes, at a character, as valid UTF-8
// without control characters.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
