package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	// maxCalls bounds the calls of one connection that are under way.
	maxCalls = 4096
	// maxCallBytes bounds the parameters of those calls together.
	maxCallBytes = 64 << 20
	// handOver is how long a new epoch waits for the calls of the old one.
	handOver = 5 * time.Second
)

// conn is one connection.
type conn struct {
	k      *Keeper
	t      link.Transport
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	done   chan struct{} // closed when nothing of the connection runs any more
	calls  atomic.Int64  // calls under way
	bytes  atomic.Int64  // of their parameters

	// Set by initialize, on the reading goroutine, before any other call runs.
	ready    bool
	foreign  bool // the client does not know our extensions
	revision int  // of our extensions, that both sides know

	// Guarded by k.mu.
	epoch  int64
	notify bool // the client wants notifications

	mu       sync.Mutex
	tails    map[string]chan struct{} // by process: closed when the last ordered call is done
	followed map[*process]bool        // processes whose notifications are being sent
	ended    bool                     // wg takes no more
}

// Serve answers one connection until it ends, ctx ends, or the keeper closes.
// It returns nil when the far side ended it.
func (k *Keeper) Serve(ctx context.Context, t link.Transport) error {
	c := &conn{
		k: k, t: t, done: make(chan struct{}),
		tails: make(map[string]chan struct{}), followed: make(map[*process]bool),
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	defer close(c.done)
	if !k.admit(c) {
		return errors.Join(errors.New("serve link: the keeper is closed"), t.Close())
	}
	stop := context.AfterFunc(c.ctx, func() { _ = t.Close() }) // the read below says why
	defer stop()
	err := c.read()
	c.close()
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.wg.Wait()
	k.mu.Lock()
	delete(k.conns, c) // not before its calls are over: others wait for them
	k.mu.Unlock()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("serve link: %w", err)
}

// admit registers the connection with the keeper.
func (k *Keeper) admit(c *conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

// close makes the connection end; done says when it has.
func (c *conn) close() {
	c.cancel()
	_ = c.t.Close() // whoever reads or writes learns of it
}

// read takes messages until the connection ends.
func (c *conn) read() error {
	for {
		data, err := c.t.Read()
		if err != nil {
			return err
		}
		m, err := link.DecodeMessage(data)
		switch {
		case err != nil:
			c.refuse(m.ID, err)
		case m.Request():
			c.accept(m)
		case m.Method == link.MethodProcessDrop && c.revision > 0:
			c.forget(m)
		default:
			// Notifications need no answer, and answers have no question here.
		}
	}
}

// forget removes a process for a client that wants no answer. It is done before
// the next message is read, so that what is heard after it confirms it.
func (c *conn) forget(m link.Message) {
	_, err := c.dispatch(&request{Message: m, next: func() {}})
	if e, ok := errors.AsType[*link.Error](err); err != nil && !(ok && e.Code == link.CodeUnknownProcess) {
		c.k.log.Warn("forget process", "err", err)
	}
}

// refuse answers what is not a message.
func (c *conn) refuse(id json.RawMessage, err error) {
	code := link.CodeInvalidRequest
	if id == nil {
		id = json.RawMessage("null")
		code = link.CodeParse
	}
	c.send(link.Message{ID: id, Error: &link.Error{Code: code, Message: err.Error()}}, nil)
}

// send sends m with a payload, nil for none.
func (c *conn) send(m link.Message, payload [][]byte) {
	encode := link.EncodeMessage
	if payload != nil {
		encode = link.EncodeHead
	}
	data, err := encode(m)
	if err != nil {
		c.k.log.Error("encode answer", "err", err)
		return
	}
	if err := link.WriteParts(c.t, append([][]byte{data}, payload...)...); err != nil {
		c.close() // the reading side reports it
	}
}

// accept runs a request beside the others. initialize runs at once, because
// it decides about all that follow.
func (c *conn) accept(m link.Message) {
	if m.Method == link.MethodInitialize {
		c.answer(m, func() (any, error) { return c.initialize(m.Params) })
		return
	}
	if !c.ready {
		c.answer(m, func() (any, error) {
			return nil, &link.Error{Code: link.CodeInvalidRequest, Message: "initialize comes first"}
		})
		return
	}
	size := int64(len(m.Params) + len(m.Payload))
	done := func() { c.calls.Add(-1); c.bytes.Add(-size) }
	calls, bytes := c.calls.Add(1), c.bytes.Add(size)
	if calls > maxCalls || bytes > maxCallBytes {
		defer done()
		c.answer(m, func() (any, error) {
			return nil, &link.Error{Code: link.CodeLimit, Message: "too many or too large calls are under way"}
		})
		return
	}
	turn, next := c.order(m)
	rq := &request{Message: m, next: next}
	c.wg.Go(func() {
		defer done()
		defer rq.next()
		turn()
		c.answer(m, func() (any, error) { return c.dispatch(rq) })
	})
}

// request is a call under way.
type request struct {
	link.Message
	// next lets go the call that waits for this one to keep the order. It may be
	// called again, by the goroutine of the call.
	next func()
}

// ordered are the methods that keep their order: for each process, and a freeze
// and its thaw among themselves, since a thaw that overtook it would be lost.
var ordered = map[string]bool{
	link.MethodProcessStart: true, link.MethodProcessWrite: true, link.MethodCloseStdin: true,
	link.MethodRun: true, link.MethodFreeze: true, link.MethodThaw: true,
}

// order makes a call wait for its turn: turn blocks until the calls before it
// are done, next lets the following one go.
func (c *conn) order(m link.Message) (turn, next func()) {
	if !ordered[m.Method] {
		return func() {}, func() {}
	}
	params := []byte(m.Params)
	if m.Method == link.MethodRun {
		params = link.Field(params, "start")
	}
	id := string(link.Field(params, "processId"))
	mine := make(chan struct{})
	c.mu.Lock()
	before := c.tails[id]
	c.tails[id] = mine
	c.mu.Unlock()
	turn = func() {
		if before == nil {
			return
		}
		<-before
	}
	over := false
	next = func() {
		if over {
			return
		}
		over = true
		c.mu.Lock()
		if c.tails[id] == mine {
			delete(c.tails, id)
		}
		c.mu.Unlock()
		close(mine)
	}
	return turn, next
}

// answer runs a call and sends what came of it. A panic in a call is a fault
// of ours that must not end the sandbox.
func (c *conn) answer(m link.Message, call func() (any, error)) {
	result, err := func() (result any, err error) {
		defer func() {
			if v := recover(); v != nil {
				c.k.log.Error("call panicked", "method", m.Method, "panic", v, "stack", string(debug.Stack()))
				err = &link.Error{Code: link.CodeInternal, Message: "internal error"}
			}
		}()
		return call()
	}()
	out := link.Message{ID: m.ID}
	if a, ok := result.(answerThen); ok && err == nil {
		result = a.result
		defer a.then()
	}
	var payload [][]byte
	if s, ok := result.(link.Shipper); ok && err == nil && c.revision > 0 {
		payload = s.Ship()
	}
	if err == nil {
		out.Result, err = encodeResult(result, payload)
	}
	if err != nil {
		out.Result, out.Error, payload = nil, wireError(err), nil
	}
	c.send(out, payload)
}

// answerSlack is what a message has around its result.
const answerSlack = 1 << 10

func encodeResult(result any, payload [][]byte) (json.RawMessage, error) {
	if result == nil {
		return json.RawMessage("{}"), nil
	}
	var data []byte
	var err error
	if r, ok := result.(*link.ProcessReadResult); ok {
		data, err = r.AppendJSON(make([]byte, 0, r.SizeHint()))
	} else {
		data, err = json.Marshal(result)
	}
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	size := len(data)
	for _, part := range payload {
		size += len(part)
	}
	if size > link.MaxFrameBytes-answerSlack {
		return nil, &link.Error{Code: link.CodeLimit, Message: fmt.Sprintf("the result has %d bytes", size)}
	}
	return data, nil
}

// wireError gives an error its code.
func wireError(err error) *link.Error {
	var e *link.Error
	if errors.As(err, &e) {
		return e
	}
	code := link.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		code = link.CodeNotFound
	case errors.Is(err, fs.ErrExist):
		code = link.CodeExists
	case errors.Is(err, fs.ErrPermission):
		code = link.CodePermission
	case errors.Is(err, link.ErrLimit):
		code = link.CodeLimit
	}
	return &link.Error{Code: code, Message: err.Error()}
}

// initialize introduces the client. A newer epoch ends the connections of
// older ones before it gets its answer.
func (c *conn) initialize(params json.RawMessage) (any, error) {
	if c.ready {
		return nil, &link.Error{Code: link.CodeInvalidRequest, Message: "initialize came already"}
	}
	p, err := decode[link.InitializeParams](params)
	if err != nil {
		return nil, err
	}
	if p.ResumeSessionID != "" && p.ResumeSessionID != c.k.sessionID {
		return nil, &link.Error{Code: link.CodeUnknownSession, Message: "unknown session id"}
	}
	ours := link.InitializeSojourn{Notify: true}
	if p.Sojourn != nil {
		ours = *p.Sojourn
	}
	older, err := c.k.accede(c, ours.Epoch)
	if err != nil {
		return nil, err
	}
	c.ready, c.foreign, c.revision = true, p.Sojourn == nil, min(max(ours.Revision, 0), link.Revision)
	for _, o := range older {
		o.close()
	}
	c.await(older)
	if ours.Notify {
		c.k.announce(c)
	}
	r := link.InitializeResult{SessionID: c.k.sessionID}
	if !c.foreign {
		r.Sojourn = &link.ServerExtensions{Epoch: ours.Epoch, Revision: link.Revision}
	}
	return r, nil
}

// accede makes epoch the keeper's if it is newer, and returns the connections
// that it supersedes.
func (k *Keeper) accede(c *conn, epoch int64) ([]*conn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if epoch < k.epoch {
		return nil, &link.Error{
			Code:    link.CodeStaleEpoch,
			Message: fmt.Sprintf("stale epoch %d: %d has been seen", epoch, k.epoch),
		}
	}
	k.epoch, c.epoch = epoch, epoch
	var older []*conn
	for o := range k.conns {
		if o != c && o.epoch < epoch {
			older = append(older, o)
		}
	}
	return older, nil
}

// await waits until the superseded connections can do nothing any more.
func (c *conn) await(older []*conn) {
	t := time.NewTimer(handOver)
	defer t.Stop()
	for _, o := range older {
		select {
		case <-o.done:
		case <-c.ctx.Done():
			return
		case <-t.C:
			c.k.log.Warn("calls of an older epoch have not ended", "waited", handOver)
			return
		}
	}
}
