package acp

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// Some agents send the last updates of a turn after its answer. They are waited
// for until the agent has been silent for trailing.
const (
	trailing     = 20 * time.Millisecond
	trailingMost = time.Second
)

// begin makes the turn durable: from here it is taken up, not begun again.
func (d *drive) begin(ctx context.Context) error {
	if _, d.end = d.content(); d.end != nil {
		return nil
	}
	select {
	case <-d.port.Cancelled():
		return d.wind(ctx, byCaller)
	default:
	}
	d.durable = true
	return d.commit(ctx)
}

// turn gives the prompt, unless it is known to have arrived, and waits for the
// answer. What it sends may have been sent before, under the same write ids.
func (d *drive) turn(ctx context.Context) error {
	d.live, d.waiting = true, d.id(stepPrompt)
	if d.st.Reply == nil {
		if err := d.give(ctx); err != nil || d.end != nil {
			return err
		}
	}
	d.grace.Stop()
	return d.rest(ctx, trailing, trailingMost)
}

func (d *drive) give(ctx context.Context) error {
	if !d.st.Sent {
		if err := d.port.Activate(ctx); err != nil {
			return fmt.Errorf("activate: %w", err)
		}
		blocks, _ := d.content()
		d.send(d.waiting, encodeRequest(d.waiting, "session/prompt", map[string]any{
			"sessionId": d.st.Conversation, "prompt": blocks,
		}))
	}
	if d.st.Ending != "" {
		d.callOff()
	}
	return d.pump(ctx, func() bool { return d.st.Reply != nil })
}

// content is the job's input as ACP content blocks, or the reason why the agent
// cannot have it.
func (d *drive) content() ([]map[string]any, *outcome) {
	blocks := make([]map[string]any, 0, len(d.job.Input))
	for _, p := range d.job.Input {
		switch {
		case p.Type == "text":
			blocks = append(blocks, map[string]any{"type": "text", "text": p.Text})
		case p.Type == "image" && d.st.Image:
			blocks = append(blocks, map[string]any{"type": "image", "mimeType": p.MimeType, "data": p.Data})
		case p.Type == "file" && d.st.Embedded:
			blocks = append(blocks, map[string]any{"type": "resource", "resource": resource(p)})
		default:
			return nil, failed(CodeUnsupported, "The agent %s takes no input of type %q.", d.name(), p.Type)
		}
	}
	return blocks, nil
}

// resource embeds a file: as text when it is text, else as bytes.
func resource(p sojourn.Part) map[string]any {
	r := map[string]any{"uri": "attachment:///" + strings.TrimLeft(path.Clean("/"+p.Name), "/")}
	if p.MimeType != "" {
		r["mimeType"] = p.MimeType
	}
	text, err := base64.StdEncoding.DecodeString(p.Data)
	if err == nil && utf8.Valid(text) && strings.HasPrefix(p.MimeType, "text/") {
		r["text"] = string(text)
	} else {
		r["blob"] = p.Data
	}
	return r
}

// wind begins to end the turn from our side. Before the prompt that is all
// there is to do; after it the agent is told, and has a grace to obey.
func (d *drive) wind(ctx context.Context, by ending) error {
	if !d.live {
		d.end = d.endedBy(by)
		return nil
	}
	// Durable first, so that the agent's answer means the same to every drive.
	d.st.Ending = by
	if err := d.commit(ctx); err != nil {
		return err
	}
	d.callOff()
	return nil
}

// callOff asks the agent to end the turn. Open questions are answered before,
// as the protocol wants: some agents wait for them for ever.
func (d *drive) callOff() {
	for len(d.st.Open) > 0 {
		o := d.st.Open[0]
		d.settle(o.Number, encodeCancelled(o.ID))
	}
	d.send(d.id(stepCancel), encodeNotification("session/cancel", map[string]any{"sessionId": d.st.Conversation}))
	d.grace.Reset(or(d.job.Grace, defaultGrace))
}

// kill ends an agent that has not obeyed. One that survives it is given up.
func (d *drive) kill(ctx context.Context) error {
	if d.killing {
		d.end = d.endedBy(or(d.st.Ending, byDeafness))
		return nil
	}
	d.killing = true
	_, err := d.link.Terminate(ctx, d.st.Process, d.h.KillAfter)
	if err != nil && !errors.Is(err, link.ErrUnknownProcess) {
		return fmt.Errorf("kill the agent: %w", err)
	}
	d.grace.Reset(d.h.KillAfter + 5*time.Second)
	return nil
}

// exited handles the end of the agent's process.
func (d *drive) exited(e *exit) error {
	d.exit = e
	if err := d.line(d.lines.rest()); err != nil {
		return err
	}
	if len(d.errLine) > 0 {
		d.log(link.Stderr, d.errLine)
		d.errLine = nil
	}
	d.lines.at.Partial, d.lines.at.ErrPartial = nil, nil
	d.st.Unfit = true
	if d.reusing || d.st.Reply != nil || d.end != nil {
		return nil
	}
	switch {
	case d.st.Ending != "" || d.killing:
		d.end = d.endedBy(or(d.st.Ending, byDeafness))
	case !d.live && e.missing():
		d.end = failed(CodeUnavailable, "The runtime %s is not available in the sandbox: %s.%s", d.name(), e.text(d.job.Runtime.Command), d.install())
	case e.missed:
		d.end = crashed(CodeOutputLost, "Output of the agent %s was lost before it was read.", d.name())
	default:
		d.end = crashed(CodeAgentExited, "The agent %s ended in mid-turn: %s.%s", d.name(), e.text(d.job.Runtime.Command), d.tail())
	}
	d.end.Killed = true
	return nil
}

// install says how the agent comes into the sandbox, as part of a message.
func (d *drive) install() string {
	if d.job.Runtime.Install == "" {
		return ""
	}
	return " Install it with: " + d.job.Runtime.Install
}

// tail is the end of stderr as part of a message.
func (d *drive) tail() string {
	t := strings.TrimSpace(clip(d.st.Tail, 2*tailBytes))
	if t == "" {
		return ""
	}
	return "\n" + t
}

// endedBy is the outcome of a turn that was ended from our side.
func (d *drive) endedBy(by ending) *outcome {
	o := &outcome{State: sojourn.RunCancelled, StopReason: sojourn.StopCancelled}
	switch by {
	case byDeadline:
		o = crashed(CodeTurnDeadline, "The turn took longer than it may.")
	case byDeafness:
		o = crashed(CodeAgentExited, "The agent %s closed its standard input in mid-turn.%s", d.name(), d.tail())
	}
	o.Killed = d.killing
	return o
}

// concluded is the outcome that the agent's answer to the prompt makes.
func (d *drive) concluded() *outcome {
	r := d.st.Reply
	if d.st.Ending != "" && r.Stop != "cancelled" {
		// The cancel may have come too late and would end the next turn.
		d.st.Unfit = true
	}
	var o *outcome
	switch {
	case d.st.Ending != "":
		o = d.endedBy(d.st.Ending)
	case r.Error != "":
		o = failed(CodeAgentError, "The agent %s ended the turn with an error: %s", d.name(), r.Error)
	default:
		o = &outcome{State: sojourn.RunCompleted, StopReason: r.Stop}
	}
	o.Killed = d.killing
	return o
}

// finish makes the outcome durable.
func (d *drive) finish(ctx context.Context) error {
	if d.end == nil {
		d.end = d.concluded()
	}
	if r := d.st.Reply; r != nil && r.Error == "" && d.st.Conversation != d.job.Conversation {
		d.batch.Conversation = d.st.Conversation
	}
	if d.end.Killed {
		d.st.Unfit = true
		if d.exit == nil && !d.killing {
			if err := d.kill(ctx); err != nil {
				return err
			}
		}
	}
	for len(d.st.Open) > 0 {
		o := d.st.Open[0]
		d.settle(o.Number, encodeCancelled(o.ID))
	}
	d.end.Agent = d.st.Agent
	d.st.Stage, d.st.Outcome, d.durable = stageEnded, d.end, true
	return d.commit(ctx)
}
