package acp

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// drive is one call of Drive. Its fields belong to the goroutine that called.
type drive struct {
	h    Harness
	job  harness.Job
	port harness.Port
	link harness.Link

	conversation string          // to go on with; "" for a new one
	info         *link.Info      // of the sandbox, once it was asked
	row          harness.Runtime // the job's with its templates filled, once the agent is started
	st           *state
	caps         initialized
	lines        lines
	errLine      []byte // unfinished line of stderr

	// The helpers of the process that is attached, and how they report.
	box      *outbox
	reads    chan reading
	answers  chan answered
	waiters  map[int64]context.CancelFunc // of open questions
	stop     context.CancelFunc           // ends the helpers; nil while none run
	helpers  sync.WaitGroup
	asking   sync.WaitGroup
	pending  []link.Chunk // read and not yet looked at
	caughtUp bool
	exit     *exit

	// What has been learned.
	live     bool      // the prompt may have been given: updates become events
	reusing  bool      // the agent of an earlier run is being looked at
	replayed bool      // an update came before the prompt
	lastRead time.Time // when the agent last said something
	waiting  string    // the id of the response that is waited for
	reply    *message  // that response
	end      *outcome  // the run cannot go on
	killing  bool      // the agent was told to go

	// What is to be committed.
	durable  bool          // the state says more than that nothing has begun
	batch    harness.Batch // its State is made at the commit
	batchLen int           // bytes of events in it
	asked    []open        // questions in it
	consumed int           // bytes of output since the last commit
	writes   int           // messages written since the last commit
	acked    int64         // the last chunk that the keeper was allowed to forget

	alarm    *time.Timer // when what is waited for has to be looked at again
	due      *time.Timer // when the batch is to be committed; stopped while it is empty
	batchAt  time.Time   // when the last batch with events was committed
	grace    *time.Timer // when the agent is killed, or given up; stopped unless it has to end
	startup  *time.Timer // when the handshake has taken too long; stopped outside it
	deadline *time.Timer // when the turn has taken too long; stopped if it may take for ever
}

// ending says why a turn is being ended from our side.
type ending string

const (
	byCaller   ending = "caller"
	byDeadline ending = "deadline"
	byDeafness ending = "deafness" // the agent takes no input any more; never stored
)

// answered is what came of a question.
type answered struct {
	number int64
	answer sojourn.Answer
	ok     bool
	err    error
}

func newDrive(h Harness, job harness.Job, port harness.Port) *drive {
	d := &drive{
		h: h, job: job, port: port, link: port.Link(),
		st: &state{}, answers: make(chan answered), waiters: map[int64]context.CancelFunc{},
		alarm: stoppedTimer(), due: stoppedTimer(), grace: stoppedTimer(), startup: stoppedTimer(), deadline: stoppedTimer(),
	}
	if !job.Deadline.IsZero() {
		d.deadline.Reset(time.Until(job.Deadline))
	}
	return d
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// attach starts the helpers for the process in d.st, at its cursor.
func (d *drive) attach(ctx context.Context) {
	d.detach()
	ctx, d.stop = context.WithCancel(ctx)
	d.box, d.reads = newOutbox(d.link, d.st.Process), make(chan reading)
	d.lines.resume(d.st.Cursor)
	d.errLine = append([]byte(nil), d.st.Cursor.ErrPartial...)
	d.pending, d.caughtUp, d.exit, d.acked = nil, false, nil, 0
	box, reads, from := d.box, d.reads, d.st.Cursor
	d.helpers.Go(func() { box.run(ctx) })
	d.helpers.Go(func() { read(ctx, d.link, box.process, from, reads) })
}

// detach ends the helpers and waits for them.
func (d *drive) detach() {
	if d.stop != nil {
		d.stop()
		d.stop = nil
	}
	d.helpers.Wait()
}

// close ends everything that the drive has started.
func (d *drive) close() {
	for n := range d.waiters {
		d.forget(n)
	}
	d.detach()
	d.asking.Wait()
	for _, t := range []*time.Timer{d.alarm, d.due, d.grace, d.startup, d.deadline} {
		t.Stop()
	}
}

// name is how people call the agent.
func (d *drive) name() string { return or(or(d.job.Runtime.Label, d.job.Runtime.ID), "agent") }

// await waits for the answer to a question, beside the pump.
func (d *drive) await(ctx context.Context, o open) {
	ctx, cancel := context.WithCancel(ctx)
	d.waiters[o.Number] = cancel
	d.asking.Go(func() {
		a, ok, err := d.port.Answer(ctx, o.ref())
		if ctx.Err() != nil {
			return // nobody wants to know any more
		}
		select {
		case d.answers <- answered{o.Number, a, ok, err}:
		case <-ctx.Done():
		}
	})
}

// forget ends the wait for an answer.
func (d *drive) forget(number int64) {
	if cancel := d.waiters[number]; cancel != nil {
		cancel()
		delete(d.waiters, number)
	}
}

// id names a request of ours; the same step has the same name in every drive of
// the run.
func (d *drive) id(step string) string { return string(d.job.Run) + "/" + step }

// send queues a message that does not need to be remembered: a drive that takes
// the run up makes it again.
func (d *drive) send(id string, line []byte) { d.box.put(outgoing{WriteID: id, Data: line}) }

// respond queues the reply to the agent's request number n. The state remembers
// it until it has arrived.
func (d *drive) respond(n int64, line []byte) {
	m := outgoing{WriteID: replyID(d.st.Process, n), Data: line}
	d.st.Out = append(d.st.Out, m)
	d.box.put(m)
}

// call makes a request of the handshake and waits for the response. Without an
// error, a nil result means that the run has ended or the agent has refused;
// refusal then says what it said.
func (d *drive) call(ctx context.Context, step, method string, params any) (result json.RawMessage, refusal *rpcError, err error) {
	d.reply, d.waiting = nil, d.id(step)
	d.send(d.waiting, encodeRequest(d.waiting, method, params))
	err = d.pump(ctx, func() bool { return d.reply != nil })
	if err != nil || d.end != nil {
		return nil, nil, err
	}
	if d.reply.err != nil {
		return nil, d.reply.err, nil
	}
	return d.reply.result, nil, nil
}
