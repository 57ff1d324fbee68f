package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"
)

// Options say who opens a connection. The zero value works against a server
// that asks for no epoch.
type Options struct {
	// ClientName is told to the server; empty means "sojourn".
	ClientName string
	// Epoch is the lease's fencing number.
	Epoch int64
	// Resume is the session id of an earlier connection whose processes this
	// one takes over; empty asks for none.
	Resume string
	// OnNotify gets the server's notifications, in order, from the reading
	// goroutine: it must not block. If nil, a keeper sends none.
	OnNotify func(method string, params json.RawMessage)
}

// Client is one connection to a server. Its methods may be called from any
// goroutine.
type Client struct {
	t         Transport
	onNotify  func(method string, params json.RawMessage)
	sessionID string
	foreign   bool // the server does not know our methods
	revision  int  // what both sides know of our extensions; 0 when foreign

	out  chan []byte   // frames for the writer
	done chan struct{} // closed once err is set
	wg   sync.WaitGroup

	mu      sync.Mutex
	heardAt time.Time // when the latest message arrived
	nextID  int64
	pending map[int64]chan Message // each gets one message; nil once the connection has ended
	err     error
}

// outFrames is how many frames may wait for the writer before callers do.
const outFrames = 16

// Open introduces the client and returns when the server has accepted it.
// The client owns t from here on, also when Open fails.
func Open(ctx context.Context, t Transport, o Options) (*Client, error) {
	c := &Client{
		t:        t,
		onNotify: o.OnNotify,
		out:      make(chan []byte, outFrames),
		done:     make(chan struct{}),
		heardAt:  time.Now(),
		pending:  make(map[int64]chan Message),
	}
	c.wg.Go(c.read)
	c.wg.Go(c.write)
	if err := c.initialize(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("initialize link: %w", err), c.Close())
	}
	return c, nil
}

func (c *Client) initialize(ctx context.Context, o Options) error {
	p := InitializeParams{
		ClientName:      o.ClientName,
		ResumeSessionID: o.Resume,
		Sojourn:         &InitializeSojourn{Epoch: o.Epoch, Notify: o.OnNotify != nil, Revision: Revision},
	}
	if p.ClientName == "" {
		p.ClientName = "sojourn"
	}
	var r InitializeResult
	if err := c.call(ctx, MethodInitialize, p, &r); err != nil {
		return stock(err, p.ResumeSessionID != "", ErrUnknownSession)
	}
	c.sessionID, c.foreign = r.SessionID, r.Sojourn == nil
	if !c.foreign {
		c.revision = min(r.Sojourn.Revision, Revision)
	}
	return c.notify(ctx, MethodInitialized, struct{}{})
}

// notify sends a message that has no answer.
func (c *Client) notify(ctx context.Context, method string, params any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	msg, err := EncodeMessage(Message{Method: method, Params: raw})
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return c.send(ctx, msg)
}

// SessionID is the server's name for this conversation; a later connection
// resumes with it.
func (c *Client) SessionID() string { return c.sessionID }

// Done is closed when the connection has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the connection ended; nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection, fails the calls that are open and waits for the
// connection's goroutines. It may be called twice.
func (c *Client) Close() error {
	c.fail(errors.New("closed by this side"))
	c.wg.Wait()
	return nil
}

// fail ends the connection once; cause is the first reason.
func (c *Client) fail(cause error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = fmt.Errorf("%w: %w", ErrDisconnected, cause)
	c.pending = nil
	c.mu.Unlock()
	close(c.done)
	// The reason is known already; what closing says adds nothing.
	_ = c.t.Close()
}

// read delivers what arrives until the connection ends.
func (c *Client) read() {
	for {
		data, err := c.t.Read()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("closed by the far side")
			}
			c.fail(err)
			return
		}
		m, err := DecodeMessage(data)
		if err != nil {
			c.fail(err)
			return
		}
		c.heard()
		c.deliver(m)
	}
}

func (c *Client) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardAt = time.Now()
}

// silence is how long nothing has arrived.
func (c *Client) silence() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.heardAt)
}

// deliver hands an answer to its call and a notification to its reader. What
// nobody waits for is dropped: an abandoned call's answer, a request of the
// far side (a server has none to make).
func (c *Client) deliver(m Message) {
	if m.Method != "" {
		if m.ID == nil && c.onNotify != nil {
			c.onNotify(m.Method, m.Params)
		}
		return
	}
	id, err := strconv.ParseInt(string(m.ID), 10, 64)
	if err != nil {
		return
	}
	c.mu.Lock()
	ch := c.pending[id]
	delete(c.pending, id)
	c.mu.Unlock()
	if ch != nil {
		ch <- m // has room for one, and only one is ever sent
	}
}

// write sends queued frames. It is a goroutine of its own so that a caller
// whose context ends is never stuck in a write that the far side holds up.
func (c *Client) write() {
	for {
		select {
		case <-c.done:
			return
		case msg := <-c.out:
			if err := c.t.Write(msg); err != nil {
				c.fail(err)
				return
			}
			reuseFrame(msg) // nobody else has it
		}
	}
}

func (c *Client) send(ctx context.Context, msg []byte) error {
	if len(msg) > MaxFrameBytes {
		return fmt.Errorf("message of %d bytes: %w", len(msg), ErrFrameTooLarge)
	}
	select {
	case c.out <- msg:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// register reserves an id and a place for its answer.
func (c *Client) register() (int64, chan Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	c.nextID++
	ch := make(chan Message, 1)
	c.pending[c.nextID] = ch
	return c.nextID, ch, nil
}

func (c *Client) forget(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// call makes one call and decodes its result into result, if that is not nil.
func (c *Client) call(ctx context.Context, method string, params, result any) error {
	_, err := c.exchange(ctx, method, params, nil, result)
	return err
}

// exchange is call with a payload, nil for none. It returns the answer that result
// was decoded from.
func (c *Client) exchange(ctx context.Context, method string, params any, payload []byte, result any) (Message, error) {
	m, err := c.roundTrip(ctx, method, params, payload)
	if err != nil {
		return m, fmt.Errorf("%s: %w", method, err)
	}
	if m.Error != nil {
		return m, fmt.Errorf("%s: %w", method, m.Error)
	}
	switch r := result.(type) {
	case nil:
		return m, nil
	case Decoder:
		err = r.Decode(m.Result)
	default:
		err = json.Unmarshal(m.Result, result)
	}
	if err == nil {
		err = carry(result, m.Payload)
	}
	if err != nil {
		return m, fmt.Errorf("%s: read result: %w: %w", method, ErrMalformed, err)
	}
	return m, nil
}

// ship returns data as a payload where the far side takes one, and otherwise nil,
// having put the data into its field.
func (c *Client) ship(field *[]byte, data []byte) []byte {
	if data == nil {
		data = []byte{}
	}
	if c.revision == 0 {
		*field = data
		return nil
	}
	return data
}

func (c *Client) roundTrip(ctx context.Context, method string, params any, payload []byte) (Message, error) {
	if params == nil {
		params = struct{}{}
	}
	raw, err := json.Marshal(params)
	if err != nil {
		return Message{}, fmt.Errorf("encode params: %w", err)
	}
	id, ch, err := c.register()
	if err != nil {
		return Message{}, err
	}
	defer c.forget(id)
	msg, err := EncodeMessage(Message{ID: strconv.AppendInt(nil, id, 10), Method: method, Params: raw, Payload: payload})
	if err != nil {
		return Message{}, err
	}
	if err := c.send(ctx, msg); err != nil {
		return Message{}, err
	}
	return c.wait(ctx, ch)
}

const (
	// maxSilence is how long a call waits while nothing arrives before it asks
	// whether the far side is still there. A long poll alone is shorter.
	maxSilence = MaxWait + 15*time.Second
	// maxPing is how long the answer to that may take.
	maxPing = 15 * time.Second
)

// wait returns the answer to a call. When the far side has been silent for
// long it is asked for a sign of life, and the connection is given up when
// none comes: a dead network tells nobody. A stock exec-server may answer its
// calls one after another, so its silence means nothing.
func (c *Client) wait(ctx context.Context, ch <-chan Message) (Message, error) {
	timer := time.NewTimer(maxSilence)
	defer timer.Stop()
	var asked time.Time
	for {
		select {
		case m := <-ch:
			return m, nil
		case <-ctx.Done():
			return Message{}, context.Cause(ctx)
		case <-c.done:
			select {
			case m := <-ch: // the answer came just before the end
				return m, nil
			default:
				return Message{}, c.Err()
			}
		case <-timer.C:
		}
		silence := c.silence()
		switch {
		case c.foreign || silence < maxSilence:
			asked = time.Time{}
			timer.Reset(max(maxSilence-silence, time.Second))
		case asked.IsZero():
			asked = time.Now()
			c.ping()
			timer.Reset(maxPing)
		default:
			c.fail(fmt.Errorf("nothing heard for %v", silence.Round(time.Second)))
		}
	}
}

// ping makes the far side say something. The answer belongs to no call; that
// it comes is all that counts. When the queue is full there is traffic anyway.
func (c *Client) ping() {
	select {
	case c.out <- []byte(`{"jsonrpc":"2.0","id":0,"method":"` + MethodEnvironmentInfo + `"}`):
	default:
	}
}
