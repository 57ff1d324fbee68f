package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/model"
)

const (
	maxTogether    = 8        // calls that are done at once
	maxOutputBytes = 32 << 10 // of a result
	outputHead     = 12 << 10 // of that, from the beginning; the rest is from the end
)

// The results that are not a tool's own.
const (
	saidCancelled = "The call was cancelled by the person."
	saidRejected  = "The person did not allow this call. Do not try to get round that."
	saidUnasked   = "Nobody decided in time whether this call is allowed. It was not done."
	saidUnknown   = "The outcome of this call is unknown: the system was interrupted while it was being done. It may have " +
		"had effects, all, some or none. Find out before you do it again."
	saidMalformed = "The input of this call is not a JSON object; the call was not done. The reply may have been cut off."
)

// result is what a call came to.
type result struct {
	output string
	failed bool
	shown  []shown         // for people, in place of the output
	plan   json.RawMessage // the entries of a new plan
}

func refusal(format string, args ...any) result {
	return result{output: fmt.Sprintf(format, args...), failed: true}
}

// callName is the name of call i outside, and of its process.
func (d *drive) callName(i int) string { return fmt.Sprintf("loop/%s/%d.%d", d.job.Run, d.st.Step, i) }

// announce shows call i before it is done.
func (d *drive) announce(i int) {
	c := d.talk.calls[i]
	t := d.tools.find(c.Name)
	u := update{
		Kind: "tool_call", CallID: d.callName(i), Title: clip(c.Name, 200), ToolKind: "other", Status: "pending",
		RawInput: shownInput(c.Input),
	}
	if t != nil {
		u.ToolKind = t.kind
		title, where := t.describe(c.Input)
		u.Title = clip(or(title, c.Name), 200)
		if where != "" {
			u.Locations = []location{{where}}
		}
	}
	d.tell(u)
}

// shownInput is a call's input as people see it.
func shownInput(in json.RawMessage) json.RawMessage {
	if len(in) > maxShownBytes {
		return json.RawMessage(`{"truncated":true}`)
	}
	return in
}

// doCalls brings the calls of the last reply to their results, in groups that
// may be done at once, and gives the results to the conversation.
func (d *drive) doCalls() error {
	if d.resumed {
		for i, c := range d.st.Calls {
			if c.Progress == callDone {
				d.drop = append(d.drop, d.callName(i)) // the last drive may not have got to it
			}
		}
	}
	for i := 0; i < len(d.st.Calls); {
		n := d.group(i)
		if err := d.doGroup(i, i+n); err != nil {
			return err
		}
		i += n
	}
	d.resumed = false
	results := make([]model.Result, len(d.st.Calls))
	for i, c := range d.st.Calls {
		results[i] = model.Result{ID: d.talk.calls[i].ID, Output: c.Output, Failed: c.Failed}
	}
	if err := d.append(kindResult, d.endpoint.API.Results(results...)...); err != nil {
		return err
	}
	d.st.Stage, d.st.Calls = stageAsk, nil
	if steered, err := d.steer(); err != nil || steered {
		return err
	}
	return d.commit()
}

// group is how many calls from i on may be done at once.
func (d *drive) group(i int) int {
	n := 0
	for ; i+n < len(d.st.Calls) && n < maxTogether; n++ {
		if t := d.tools.find(d.talk.calls[i+n].Name); t != nil && t.alone {
			return max(n, 1)
		}
	}
	return n
}

// doGroup does the calls from to up to.
func (d *drive) doGroup(from, to int) error {
	for i := from; i < to; i++ {
		if err := d.settle(i); err != nil {
			return err
		}
	}
	if err := d.consent(from, to); err != nil {
		return err
	}
	tasks, err := d.prepare(from, to)
	if err != nil {
		return err
	}
	pending := len(tasks)
	for _, t := range tasks {
		d.helpers.Go(func() {
			r, err := t.do(d.work)
			d.post(d.ctx, func() error {
				pending--
				if err != nil {
					return err
				}
				return d.done(t, r)
			})
		})
	}
	return d.pump(func() bool { return pending == 0 })
}

// settle gives call i the result that needs no tool, if there is one.
func (d *drive) settle(i int) error {
	c, p := d.talk.calls[i], d.st.Calls[i].Progress
	switch t := d.tools.find(c.Name); {
	case p == callDone || p == callStarted && t != nil:
		return nil
	case p == callStarted: // the tool has gone since, with an MCP server
		d.conclude(i, result{output: saidUnknown, failed: true})
	case d.st.Ending != "":
		d.conclude(i, result{output: saidCancelled, failed: true})
	case t == nil:
		d.conclude(i, refusal("There is no tool %q. The tools are: %s.", clip(c.Name, 200), d.tools.names()))
	case c.Malformed:
		d.conclude(i, refusal(saidMalformed))
	}
	return nil
}

// conclude gives call i its result, in the batch.
func (d *drive) conclude(i int, r result) {
	c := &d.st.Calls[i]
	c.Progress, c.Output, c.Failed = callDone, bounded(r.output), r.failed
	u := update{Kind: "tool_call_update", CallID: d.callName(i), Status: "completed", Content: r.shown}
	if r.failed {
		u.Status = "failed"
	}
	if r.shown == nil {
		u.Content = []shown{{Type: "content", Content: &text{"text", clip(c.Output, maxShownBytes)}}}
	}
	d.tell(u)
	if r.plan != nil {
		d.tell(update{Kind: "plan", Entries: r.plan})
	}
}

// done takes in what a task came to, and makes it durable at once.
func (d *drive) done(t *task, r result) error {
	if t.process {
		d.drop = append(d.drop, t.name)
	}
	d.st.Unsure = d.st.Unsure || t.unsure
	d.conclude(t.index, r)
	return d.commit()
}

// prepare makes the tasks of the calls that are to be done, and notes durably
// that those with effects are being started.
func (d *drive) prepare(from, to int) ([]*task, error) {
	var tasks []*task
	for i := from; i < to; i++ {
		if d.st.Calls[i].Progress == callDone {
			continue
		}
		c := d.talk.calls[i]
		tasks = append(tasks, &task{
			tool: d.tools.find(c.Name), index: i, name: d.callName(i), input: c.Input, call: d.st.Calls[i],
			again: d.st.Calls[i].Progress == callStarted, drive: d,
		})
	}
	durable := true
	for _, t := range slices.Clone(tasks) {
		if t.again || !t.tool.effects {
			continue
		}
		early, err := d.lookAhead(t)
		if err != nil {
			return nil, err
		}
		if early != nil {
			d.conclude(t.index, *early)
			tasks = slices.DeleteFunc(tasks, func(o *task) bool { return o == t })
			continue
		}
		t.call.Progress, t.call.Started = callStarted, time.Now().UnixMilli()
		d.st.Calls[t.index], durable = t.call, false
		d.tell(update{Kind: "tool_call_update", CallID: t.name, Status: "in_progress"})
	}
	if durable {
		return tasks, nil
	}
	return tasks, d.commit()
}

// lookAhead prepares a call that has effects. A result says that the call ends
// with that.
func (d *drive) lookAhead(t *task) (early *result, err error) {
	if t.tool.prepare != nil {
		early, err = await(d, func(ctx context.Context) (*result, error) { return t.tool.prepare(ctx, t) })
	}
	if d.st.Ending != "" && (err == nil || d.ended(err)) {
		return new(refusal(saidCancelled)), nil
	}
	return early, err
}

// ended reports whether err only says that the turn is being ended.
func (d *drive) ended(err error) bool {
	return d.ctx.Err() == nil && d.work.Err() != nil && (errors.Is(err, errEnding) || errors.Is(err, context.Canceled))
}

// consent asks a person about the calls that need it, all at once, and waits for
// the answers.
func (d *drive) consent(from, to int) error {
	pending := 0
	for i := from; i < to; i++ {
		c := &d.st.Calls[i]
		t := d.tools.find(d.talk.calls[i].Name)
		if c.Progress == callWaits && d.needsConsent(t) {
			c.Progress = callAsked
			d.batch.Asked = append(d.batch.Asked, d.question(i, t))
		}
		if c.Progress == callAsked {
			pending++
		}
	}
	if pending == 0 {
		return nil
	}
	if err := d.commit(); err != nil {
		return err
	}
	for i := from; i < to; i++ {
		if d.st.Calls[i].Progress != callAsked {
			continue
		}
		ref := d.ref(i)
		d.helpers.Go(func() {
			a, ok, err := d.port.Answer(d.work, ref)
			d.post(d.ctx, func() error {
				pending--
				return d.decided(i, a, ok, err)
			})
		})
	}
	return d.pump(func() bool { return pending == 0 })
}

// ref names the question about call i outside.
func (d *drive) ref(i int) string { return fmt.Sprintf("call-%d.%d", d.st.Step, i) }

// The options of a question.
var consentOptions = []sojourn.Option{
	{ID: "allow", Name: "Allow", Kind: "allow_once"},
	{ID: "always", Name: "Always allow this tool", Kind: "allow_always"},
	{ID: "reject", Name: "Reject", Kind: "reject_once"},
}

// question asks about call i, in the form of ACP's permission requests.
func (d *drive) question(i int, t *tool) harness.Question {
	c := d.talk.calls[i]
	title, where := t.describe(c.Input)
	u := update{
		CallID: d.callName(i), Title: clip(or(title, c.Name), 2000), ToolKind: t.kind, Status: "pending", RawInput: shownInput(c.Input),
	}
	if where != "" {
		u.Locations = []location{{where}}
	}
	request := encode(map[string]any{"toolCall": u, "options": consentOptions})
	return harness.Question{Ref: d.ref(i), Kind: "permission", Request: request, Options: slices.Clone(consentOptions)}
}

// decided takes in what a person said about call i.
func (d *drive) decided(i int, a sojourn.Answer, ok bool, err error) error {
	c := &d.st.Calls[i]
	switch {
	case d.st.Ending != "":
		d.batch.Withdrawn = append(d.batch.Withdrawn, d.ref(i))
		d.conclude(i, result{output: saidCancelled, failed: true})
	case err != nil:
		return fmt.Errorf("wait for an answer: %w", err)
	case !ok:
		d.conclude(i, refusal(saidUnasked))
	case a.OptionID == "always":
		d.st.Allowed = append(d.st.Allowed, d.talk.calls[i].Name)
		c.Progress = callAllowed
	case a.OptionID == "allow":
		c.Progress = callAllowed
	default:
		d.conclude(i, refusal(saidRejected))
	}
	return nil
}

// bounded bounds a result: its beginning and its end stay.
func bounded(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxOutputBytes {
		return s
	}
	head, tail := s[:outputHead], s[len(s)-(maxOutputBytes-outputHead):]
	left := len(s) - maxOutputBytes
	return strings.ToValidUTF8(head, "") + fmt.Sprintf("\n[… %d bytes left out …]\n", left) + strings.ToValidUTF8(tail, "")
}
