package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/model"
)

const (
	maxMessageBytes = 12 << 10 // of a run's error
	maxBatchEvents  = 256
	maxBatchBytes   = 1 << 20
	firstWait       = 2 * time.Millisecond
	defaultGrace    = 10 * time.Second
)

// drive is one call of Drive. Its fields belong to the goroutine that called,
// but for those of helpers.
type drive struct {
	cfg  Config
	job  harness.Job
	port harness.Port
	link harness.Link
	opts options

	outer   context.Context // the caller's
	ctx     context.Context // ends with the drive, too: whatever is being done is left as it is
	stop    context.CancelFunc
	work    context.Context // ends when the turn is to end, too: whatever is being done is ended
	endWork context.CancelCauseFunc
	helpers sync.WaitGroup
	news    chan func() error // from helpers, to be done by the owner

	st       *state
	resumed  bool // this run was driven before
	endpoint model.Endpoint
	talk     *conversation
	tools    toolset
	servers  []*server

	// What is to be committed.
	batch    harness.Batch
	batchLen int       // bytes of events in it
	batchAt  time.Time // when the last batch with events was committed
	text     []byte    // of the stream, not yet an event
	thought  bool      // of the text: it is reasoning
	drop     []string  // processes that nobody needs once the batch is durable
	old      int       // the first segment that nobody needs then; 0 for none

	due      *time.Timer // when the batch is to be committed; stopped while it is empty
	deadline *time.Timer // when the turn has taken too long; stopped if it may take for ever
}

// errEnding ends the work of a turn that is to end.
var errEnding = errors.New("the turn is being ended")

func newDrive(ctx context.Context, cfg Config, job harness.Job, port harness.Port) *drive {
	d := &drive{
		cfg: cfg, job: job, port: port, link: port.Link(), opts: readOptions(job), news: make(chan func() error),
		due: time.NewTimer(time.Hour), deadline: time.NewTimer(time.Hour),
	}
	d.due.Stop()
	d.deadline.Stop()
	d.outer = ctx
	d.ctx, d.stop = context.WithCancel(ctx)
	d.work, d.endWork = context.WithCancelCause(d.ctx)
	if !job.Deadline.IsZero() {
		d.deadline.Reset(time.Until(job.Deadline))
	}
	return d
}

// close ends the drive's helpers, and waits for them. Commands go on in the
// sandbox; MCP servers, which nobody could go on with, end.
func (d *drive) close() {
	d.stop()
	d.helpers.Wait()
	for _, s := range d.servers {
		s.close()
	}
	d.endWork(nil)
	d.due.Stop()
	d.deadline.Stop()
}

// run brings the run to an outcome, and makes that durable.
func (d *drive) run(old *state) (*outcome, error) {
	out, err := d.open(old)
	if err == nil && out == nil {
		out, err = d.turn()
	}
	if err != nil {
		if !d.unwritten(err) {
			return nil, err
		}
		out = crashed(CodeNotStored, "The conversation could not be kept in the sandbox: %v.", err)
	}
	return out, d.finish(out)
}

// unwritten reports whether err is the sandbox's refusal to keep what has to be
// kept there.
func (d *drive) unwritten(err error) bool { return d.ctx.Err() == nil && refused(err) }

// open brings the drive to where the run stands: a new one to its prompt, one
// that was driven before to what it did last.
func (d *drive) open(old *state) (*outcome, error) {
	d.resumed = old != nil && old.Run == string(d.job.Run)
	if d.resumed {
		d.st = old
	} else {
		if old == nil {
			old = &state{}
		}
		d.st = old.next(string(d.job.Run), d.job.Epoch)
	}
	endpoint, err := d.cfg.Models(or(d.job.Model, d.opts.model))
	if err != nil {
		return failed(CodeModelUnknown, "%v", err), nil
	}
	d.endpoint = endpoint
	if out, err := d.recollect(); out != nil || err != nil {
		return out, err
	}
	if !d.resumed {
		if out, err := d.begin(); out != nil || err != nil {
			return out, err
		}
	}
	if err := d.port.Activate(d.ctx); err != nil {
		return nil, fmt.Errorf("activate: %w", err)
	}
	return nil, d.equip()
}

// recollect reads the conversation, or begins one.
func (d *drive) recollect() (*outcome, error) {
	p := d.st.Pin
	if p == (pin{}) && d.job.Conversation != "" {
		var err error
		if p, err = parsePin(d.job.Conversation); err != nil {
			return d.lost(err), nil
		}
	}
	if p == (pin{}) {
		d.talk = newConversation(d.link, d.endpoint.API)
		return nil, nil
	}
	talk, err := loadConversation(d.ctx, d.link, p)
	if errors.Is(err, errDamaged) {
		return d.lost(err), nil
	}
	if err != nil {
		return nil, err
	}
	if talk.api != d.endpoint.API {
		return failed(CodeModelChanged, "The conversation was held over the API %q, the model %s speaks %q.", talk.api, d.endpoint.Model, d.endpoint.API), nil
	}
	if d.st.Stage == stageCall && len(d.st.Calls) != len(talk.calls) {
		return crashed(string(sojourn.CodeInternal), "The run's state does not fit its conversation."), nil
	}
	d.talk = talk
	return nil, nil
}

// lost is the outcome of a run whose conversation cannot be read. In mid-turn
// there is nothing to begin again with: that would repeat what was done.
func (d *drive) lost(err error) *outcome {
	if d.resumed {
		o := crashed(CodeNotRestorable, "The conversation was lost in mid-turn: %v.", err)
		o.Killed = true
		return o
	}
	o := failed(CodeNotRestorable, "The conversation cannot be restored: %v.", err)
	o.ConversationLost = true
	return o
}

// begin takes the prompt into the conversation. From its commit on, the run is
// taken up, not begun again.
func (d *drive) begin() (*outcome, error) {
	item, err := d.userItem(d.job.Input)
	if err != nil {
		return failed(CodeUnsupported, "The model cannot be given this input: %v.", err), nil
	}
	select {
	case <-d.port.Cancelled():
		return endedBy(byCaller), nil
	default:
	}
	if err := d.mend(); err != nil {
		return nil, err
	}
	if err := d.append(kindUser, item); err != nil {
		return nil, err
	}
	return nil, d.commit()
}

// mend answers calls that an earlier run has left open when it crashed: no API
// takes a conversation in which a call has no result.
func (d *drive) mend() error {
	if len(d.talk.calls) == 0 {
		return nil
	}
	results := make([]model.Result, len(d.talk.calls))
	for i, c := range d.talk.calls {
		results[i] = model.Result{ID: c.ID, Output: saidUnknown, Failed: true}
	}
	return d.append(kindResult, d.endpoint.API.Results(results...)...)
}

// append adds items to the conversation, durably so with the next commit.
func (d *drive) append(k kind, items ...json.RawMessage) error {
	for _, it := range items {
		d.st.Grown += int64(len(it))
	}
	err := d.talk.add(d.ctx, k, items, nil)
	d.st.Pin = d.talk.pin
	return err
}

// turn goes through the steps of the run.
func (d *drive) turn() (*outcome, error) {
	for {
		if d.st.Ending != "" {
			d.endWork(errEnding)
		}
		if d.st.Stage == stageCall {
			if err := d.doCalls(); err != nil {
				return nil, err
			}
			continue
		}
		if d.st.Ending != "" {
			return endedBy(d.st.Ending), nil
		}
		if d.st.Step >= d.cfg.MaxSteps {
			return &outcome{State: sojourn.RunCompleted, StopReason: stopSteps}, nil
		}
		if out, err := d.step(); out != nil || err != nil {
			return out, err
		}
	}
}

// endedBy is the outcome of a turn that was ended from our side.
func endedBy(by ending) *outcome {
	if by == byDeadline {
		return crashed(CodeTurnDeadline, "The turn took longer than it may.")
	}
	return &outcome{State: sojourn.RunCancelled, StopReason: sojourn.StopCancelled}
}

// finish makes the outcome durable, with the name that the conversation now has.
func (d *drive) finish(out *outcome) error {
	out.Agent = agentName
	if p := d.st.Pin; p.valid() && !out.ConversationLost && p.String() != d.job.Conversation {
		d.batch.Conversation = p.String()
	}
	out.Killed = out.Killed || d.st.Unsure
	d.st.Stage, d.st.Outcome, d.st.Calls = stageEnded, out, nil
	return d.commit()
}

// pump does what helpers report until done says that it is enough. It is the
// only place that waits.
func (d *drive) pump(done func() bool) error {
	for !done() {
		cancelled, deadline := d.port.Cancelled(), d.deadline.C
		if d.st.Ending != "" {
			cancelled, deadline = nil, nil
		}
		var err error
		select {
		case <-d.ctx.Done():
			err = context.Cause(d.ctx)
		case f := <-d.news:
			err = f()
		case <-cancelled:
			err = d.wind(byCaller)
		case <-deadline:
			err = d.wind(byDeadline)
		case <-d.due.C:
			err = d.commit()
		}
		if err == nil && (len(d.batch.Events) >= maxBatchEvents || d.batchLen+len(d.text) >= maxBatchBytes) {
			err = d.commit()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wind begins to end the turn from our side: durable first, so that what work
// now comes to means the same to every drive.
func (d *drive) wind(by ending) error {
	d.st.Ending = by
	if err := d.commit(); err != nil {
		return err
	}
	d.endWork(errEnding)
	return nil
}

// post gives the owner something to do. It reports false when ctx ended first.
func (d *drive) post(ctx context.Context, f func() error) bool {
	select {
	case d.news <- f:
		return true
	case <-ctx.Done():
		return false
	}
}

// await runs f beside the pump, which goes on, and returns what f returned. The
// error may be the pump's instead.
func await[T any](d *drive, f func(ctx context.Context) (T, error)) (T, error) {
	var result T
	var failure error
	done := false
	d.helpers.Go(func() {
		v, err := f(d.work)
		d.post(d.ctx, func() error { result, failure, done = v, err, true; return nil })
	})
	if err := d.pump(func() bool { return done }); err != nil {
		failure = err
	}
	return result, failure
}

// commit makes the batch durable, and then lets go of what was kept for it.
func (d *drive) commit() error {
	d.flush()
	d.due.Stop()
	d.batch.State = d.st.encode()
	if err := d.port.Commit(d.ctx, d.batch); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if len(d.batch.Events) > 0 {
		d.batchAt = time.Now()
	}
	d.batch, d.batchLen = harness.Batch{}, 0
	for _, p := range d.drop {
		if err := d.link.Remove(d.ctx, p); err != nil && !refused(err) {
			return fmt.Errorf("forget the process %s: %w", p, err)
		}
	}
	d.drop = nil
	if from := d.old; from > 0 {
		d.old = 0
		return d.talk.forget(d.ctx, from)
	}
	return nil
}
