package loop

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// bytesPerToken is how big a token is at least, on the average, for what has
// come to the conversation since it was last counted.
const bytesPerToken = 3

// step asks the model once, and takes its reply in. It returns the outcome when
// the turn is over with that.
func (d *drive) step() (*outcome, error) {
	if d.crowded() && d.st.Shrunk == 0 {
		if out, err := d.compact(); out != nil || err != nil {
			return out, err
		}
	}
	if d.resumed && d.st.Said {
		d.log("The model's reply was interrupted. It is asked for again.")
		d.st.Attempt, d.st.Said = d.st.Attempt+1, false
	}
	d.resumed = false
	reply, err := d.askPatiently(model.Request{
		System: d.opts.system(d.cfg.Instructions), Items: d.talk.items(), Tools: d.tools.offered,
	}, d.say)
	switch {
	case errors.Is(err, errEnding):
		return nil, nil // turn sees to it
	case full(err) && d.st.Shrunk < 2:
		return d.compact()
	case err != nil:
		return d.unanswered(err)
	}
	if reply.Stop == model.StopContext && len(reply.Items) == 0 && d.st.Shrunk < 2 {
		return d.compact()
	}
	return d.take(reply)
}

// take makes a reply part of the conversation, together with what follows from
// it.
func (d *drive) take(reply model.Reply) (*outcome, error) {
	if len(reply.Calls) > maxCalls {
		return failed(CodeModelError, "The model made %d calls in one reply; at most %d are done.", len(reply.Calls), maxCalls), nil
	}
	if err := d.talk.add(d.ctx, kindReply, reply.Items, reply.Calls); err != nil {
		return nil, err
	}
	d.flush()
	d.st.Pin, d.st.Usage, d.st.Grown = d.talk.pin, reply.Usage, 0
	d.tellUsage()
	d.st.Step, d.st.Attempt, d.st.Said, d.st.Shrunk = d.st.Step+1, 0, false, 0
	if len(reply.Calls) > 0 {
		d.st.Stage, d.st.Calls = stageCall, make([]call, len(reply.Calls))
		for i := range reply.Calls {
			d.st.Calls[i].Progress = callWaits
			d.announce(i)
		}
		return nil, d.commit()
	}
	steered, err := d.steer()
	if err != nil || steered {
		return nil, err
	}
	switch reply.Stop {
	case model.StopPause:
		return nil, d.commit()
	case model.StopLength, model.StopContext:
		return &outcome{State: sojourn.RunCompleted, StopReason: stopLength}, nil
	case model.StopRefusal:
		return &outcome{State: sojourn.RunCompleted, StopReason: stopRefusal}, nil
	}
	return &outcome{State: sojourn.RunCompleted, StopReason: stopEnd}, nil
}

// steer takes in what has been said to the run meanwhile, and commits it.
func (d *drive) steer() (bool, error) {
	port, ok := d.port.(harness.Steered)
	if !ok {
		return false, nil
	}
	inputs, err := port.Steering(d.ctx, d.st.Steered)
	if err != nil {
		return false, fmt.Errorf("look for more input: %w", err)
	}
	for _, in := range inputs {
		item, err := d.userItem(in.Input)
		if err != nil {
			d.log("Input that came in mid-turn cannot be given to the model: %v.", err)
		} else if err := d.append(kindUser, item); err != nil {
			return false, err
		}
		d.st.Steered = in.Number
	}
	if len(inputs) == 0 {
		return false, nil
	}
	return true, d.commit()
}

// tellUsage says how full the model's context is.
func (d *drive) tellUsage() {
	used := d.st.Usage.Input + d.st.Usage.Output
	if used == 0 {
		return
	}
	u := update{Kind: "usage_update", Used: &used, Size: new(d.endpoint.ContextTokens)}
	d.tell(u)
}

// unanswered is the outcome of a turn whose model gives no reply.
func (d *drive) unanswered(err error) (*outcome, error) {
	if d.ctx.Err() != nil {
		return nil, err
	}
	if own, ok := errors.AsType[*reportError](err); ok {
		return nil, own.error // our own trouble, which another drive may not have
	}
	if refusal, ok := errors.AsType[*admitError](err); ok {
		var typed *sojourn.Error
		if errors.As(refusal.error, &typed) {
			return failed(string(typed.Code), "%s", typed.Message), nil
		}
		return nil, refusal.error
	}
	if full(err) {
		return failed(CodeContextFull, "The conversation is too long for the model %s, even summarised: %v", d.endpoint.Model, err), nil
	}
	return failed(CodeModelError, "The model %s gave no reply: %v", d.endpoint.Model, err), nil
}

func full(err error) bool {
	e, ok := errors.AsType[*model.StatusError](err)
	return ok && e.ContextFull()
}

// admitError and reportError say that the meter, not the model, is the reason.
type (
	admitError  struct{ error }
	reportError struct{ error }
)

func (e *admitError) Unwrap() error  { return e.error }
func (e *reportError) Unwrap() error { return e.error }

// askPatiently asks again when the model's server fails for a while. The error
// is errEnding when the turn is to end.
func (d *drive) askPatiently(q model.Request, say func(model.Delta)) (model.Reply, error) {
	for n := 1; ; n++ {
		reply, err := d.ask(q, say)
		if err == nil || n >= d.cfg.Attempts || d.work.Err() != nil || !worthAnother(err) {
			return reply, err
		}
		pause := min(time.Second<<(n-1), 30*time.Second)
		if e, ok := errors.AsType[*model.StatusError](err); ok && e.RetryAfter > 0 {
			pause = e.RetryAfter
		}
		if pause > d.cfg.Patience {
			return reply, err
		}
		d.log("The model %s gave no reply: %v. It is asked again in %v.", d.endpoint.Model, err, pause.Round(time.Millisecond))
		d.st.Attempt, d.st.Said = d.st.Attempt+1, false
		if _, err := await(d, func(ctx context.Context) (struct{}, error) { return struct{}{}, sleep(ctx, pause) }); err != nil {
			return reply, err
		}
	}
}

func worthAnother(err error) bool {
	if _, ok := errors.AsType[*admitError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*reportError](err); ok {
		return false
	}
	return model.Temporary(err)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask asks once. What the model says while it comes goes to say, in the pump.
func (d *drive) ask(q model.Request, say func(model.Delta)) (model.Reply, error) {
	return await(d, func(ctx context.Context) (model.Reply, error) {
		if d.cfg.Meter != nil {
			if err := d.cfg.Meter.Admit(ctx, d.job); err != nil {
				return model.Reply{}, &admitError{err}
			}
		}
		begun := time.Now()
		reply, err := d.endpoint.Ask(ctx, q, func(p model.Delta) error {
			if !d.post(ctx, func() error { say(p); return nil }) {
				return context.Cause(ctx)
			}
			return nil
		})
		if d.cfg.Meter == nil {
			return reply, err
		}
		// What was used is owed, whatever has become of the turn.
		told := d.cfg.Meter.Report(context.WithoutCancel(ctx), d.job, ModelCall{
			Model: d.endpoint.Model, API: d.endpoint.API, Usage: reply.Usage, Duration: time.Since(begun), Err: err,
		})
		if told != nil && err == nil {
			err = &reportError{told}
		}
		return reply, err
	})
}

// crowded reports whether the conversation is about to become too long.
func (d *drive) crowded() bool {
	size := d.endpoint.ContextTokens
	if size <= 0 || d.st.Usage.Input == 0 {
		return false
	}
	used := d.st.Usage.Input + d.st.Usage.Output + d.st.Grown/bytesPerToken
	return used*100 >= size*int64(d.cfg.CompactAt)
}

// userItem makes the item for what a person says.
func (d *drive) userItem(input []sojourn.Part) (json.RawMessage, error) {
	parts := make([]model.Part, 0, len(input))
	for _, p := range input {
		switch p.Type {
		case "text":
			parts = append(parts, model.Part{Type: "text", Text: p.Text})
		case "image":
			parts = append(parts, model.Part{Type: "image", MimeType: p.MimeType, Data: p.Data})
		case "file":
			content, err := base64.StdEncoding.DecodeString(p.Data)
			if err != nil || !utf8.Valid(content) {
				return nil, fmt.Errorf("the file %q is not text", clip(p.Name, 200))
			}
			name := strings.NewReplacer("<", "", ">", "", `"`, "", "\n", " ").Replace(clip(p.Name, 200))
			parts = append(parts, model.Part{Type: "text", Text: fmt.Sprintf("<file name=%q>\n%s\n</file>", name, content)})
		default:
			return nil, fmt.Errorf("%w: %q", model.ErrPart, p.Type)
		}
	}
	if len(parts) == 0 {
		return nil, errors.New("there is none")
	}
	return d.endpoint.API.User(parts...)
}
