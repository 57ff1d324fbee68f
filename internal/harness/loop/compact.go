package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/model"
)

const (
	// summaryRequest asks for what the model needs to go on without the rest.
	summaryRequest = "The conversation has become too long and will be cut here. Write a summary that lets you go on " +
		"with the work without what came before: the person's requests and wishes, word for word where it matters; " +
		"what was done, found out and decided, with the names of files, commands and their outcomes; what failed and why; " +
		"the present state and the next steps. Call no tools. Write only the summary."
	summaryIntro = "What was said and done before this point, summarised:\n\n"
	requestIntro = "\n\nThe person's last request, word for word:\n\n"

	// keepShare of the conversation, in percent, stays as it is behind the summary.
	keepShare       = 25
	maxRequestBytes = 32 << 10 // of a request that is repeated word for word
	summaryTries    = 4
)

// compact puts a summary, by the same model, in the place of all but the end of
// the conversation.
func (d *drive) compact() (*outcome, error) {
	entries := d.talk.entries
	size := 0
	for _, e := range entries {
		size += len(e.raw)
	}
	at := tailAt(entries, size*keepShare/100)
	if d.st.Shrunk > 0 {
		at = len(entries) // the end alone was still too long
	}
	summary, out, err := d.summarise(entries[:at])
	if errors.Is(err, errEnding) {
		return nil, nil
	}
	if out != nil || err != nil {
		return out, err
	}
	item, err := d.endpoint.API.User(model.Part{Type: "text", Text: summaryIntro + summary + lastRequest(entries[:at], entries[at:])})
	if err != nil {
		return nil, err
	}
	first := d.talk.pin.First
	if err := d.talk.replace(d.ctx, append([]entry{{kindSummary, item}}, entries[at:]...)); err != nil {
		return nil, err
	}
	before := d.st.Usage
	d.st.Pin, d.st.Usage, d.st.Grown, d.old = d.talk.pin, model.Usage{}, 0, first
	d.st.Shrunk++
	d.log("The conversation was compacted: it had %d tokens in %d items; a summary stands for the first %d of them.",
		before.Input+before.Output, len(entries), at)
	return nil, d.commit()
}

// summarise asks for the summary of entries. Those that are too long for that
// are summarised without their beginning.
func (d *drive) summarise(entries []entry) (summary string, _ *outcome, _ error) {
	request, err := d.endpoint.API.User(model.Part{Type: "text", Text: summaryRequest})
	if err != nil {
		return "", nil, err
	}
	for n := 1; ; n++ {
		var text strings.Builder
		attempt := d.st.Attempt
		_, err := d.askPatiently(model.Request{
			System: d.opts.system(d.cfg.Instructions), Items: append(rawOf(entries), request),
			Tools: d.tools.offered, NoCalls: true,
		}, func(p model.Delta) {
			if attempt != d.st.Attempt { // what an attempt that failed had said
				attempt = d.st.Attempt
				text.Reset()
			}
			if !p.Thought {
				text.WriteString(p.Text)
			}
		})
		switch {
		case err == nil && strings.TrimSpace(text.String()) != "":
			return strings.TrimSpace(text.String()), nil, nil
		case err == nil:
			return "", failed(CodeContextFull, "The conversation is too long, and the model %s gave no summary of it.", d.endpoint.Model), nil
		case errors.Is(err, errEnding):
			return "", nil, err
		case full(err) && n < summaryTries && len(entries) > 1:
			entries = laterHalf(entries)
		default:
			out, err := d.unanswered(err)
			return "", out, err
		}
	}
}

// laterHalf leaves out what came first, from a place where that is possible.
func laterHalf(entries []entry) []entry {
	possible := cuts(entries)
	for _, at := range possible {
		if at >= len(entries)/2 {
			return entries[at:]
		}
	}
	if len(possible) > 0 {
		return entries[possible[len(possible)-1]:]
	}
	return entries[:1]
}

// lastRequest repeats the last thing that the person said, if it is in the part
// that goes: a summary may not be exact about it.
func lastRequest(gone, kept []entry) string {
	said := func(e entry) bool { return e.kind == kindUser }
	if slices.ContainsFunc(kept, said) {
		return ""
	}
	for _, e := range slices.Backward(gone) {
		if !said(e) {
			continue
		}
		said := strings.TrimSpace(textOf(e.raw))
		if said == "" || len(said) > maxRequestBytes {
			return ""
		}
		return requestIntro + said
	}
	return ""
}

// textOf is the text of a user's item, in any of the APIs.
func textOf(raw json.RawMessage) string {
	var m struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return ""
	}
	if bytes.HasPrefix(m.Content, []byte(`"`)) {
		var s string
		_ = json.Unmarshal(m.Content, &s)
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(m.Content, &parts) // what is no list has no text
	var texts []string
	for _, p := range parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}
