package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/creack/pty"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const maxGrace = time.Hour

// decodeWith reads a call's parameters with the payload that came with them.
func decodeWith[T any](c *conn, rq *request) (T, error) {
	v, err := decode[T](rq.Params)
	if err != nil || rq.Payload == nil {
		return v, err
	}
	into, ok := any(&v).(link.Carrier)
	if !ok || c.revision == 0 {
		return v, invalid("%s takes no payload", rq.Method)
	}
	if err := into.Carry(rq.Payload); err != nil {
		return v, invalid("params: %v", err)
	}
	return v, nil
}

// decode reads a call's parameters; missing ones are like an empty object.
func decode[T any](raw json.RawMessage) (T, error) {
	var v T
	if !given(raw) {
		return v, nil
	}
	var err error
	if d, ok := any(&v).(link.Decoder); ok {
		err = d.Decode(raw)
	} else {
		err = json.Unmarshal(raw, &v)
	}
	if err != nil {
		return v, invalid("params: %v", err)
	}
	return v, nil
}

// given reports whether an optional value was sent.
func given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// unconfined refuses a call that asks for a confinement of its own, which the
// public protocol has for processes and files. Ignoring it would give more
// than was asked for; the sandbox around the keeper is the only wall here.
func unconfined(method string, raw json.RawMessage) error {
	if method != link.MethodProcessStart && !strings.HasPrefix(method, "fs/") {
		return nil
	}
	network := link.Field(raw, "enforceManagedNetwork")
	if given(link.Field(raw, "sandbox")) || (given(network) && !bytes.Equal(network, []byte("false"))) {
		return &link.Error{Code: link.CodeUnsupported, Message: "this server confines no single call"}
	}
	return nil
}

// answerThen is a result after whose sending something is to be done.
type answerThen struct {
	result any
	then   func()
}

// handler answers one method.
type handler func(c *conn, rq *request) (any, error)

// with makes a handler of a function on decoded parameters.
func with[T any](f func(c *conn, p T) (any, error)) handler {
	return func(c *conn, rq *request) (any, error) {
		p, err := decodeWith[T](c, rq)
		if err != nil {
			return nil, err
		}
		return f(c, p)
	}
}

// onProcess makes a handler of a function on a known process.
func onProcess[T any](id func(T) string, f func(c *conn, p *process, params T) (any, error)) handler {
	return with(func(c *conn, params T) (any, error) {
		p, err := c.k.find(id(params))
		if err != nil {
			return nil, err
		}
		return f(c, p, params)
	})
}

type none struct{}

// handlers are all methods but initialize.
var handlers = map[string]handler{
	link.MethodEnvironmentInfo: with(func(c *conn, _ none) (any, error) { return c.environment(), nil }),

	link.MethodProcessStart: with(callStart),
	link.MethodRun:          callRun,
	link.MethodProcessRead:  onProcess(func(p link.ProcessReadParams) string { return p.ProcessID }, callRead),
	link.MethodProcessWrite: callWrite,
	link.MethodProcessSignal: onProcess(func(p link.SignalParams) string { return p.ProcessID },
		callSignal),
	link.MethodSignalTarget:     with(callSignalTarget),
	link.MethodProcessTerminate: with(callTerminate),
	link.MethodProcessList:      with(callList),
	link.MethodAck: onProcess(func(p link.AckParams) string { return p.ProcessID },
		func(_ *conn, p *process, a link.AckParams) (any, error) { p.spool.release(a.Seq); return nil, nil }),
	link.MethodCloseStdin: onProcess(func(p link.ProcessParams) string { return p.ProcessID },
		func(_ *conn, p *process, _ link.ProcessParams) (any, error) { p.closeStdin(); return nil, nil }),
	link.MethodResize: onProcess(func(p link.ResizeParams) string { return p.ProcessID }, callResize),
	link.MethodProcessDrop: onProcess(func(p link.ProcessParams) string { return p.ProcessID },
		func(c *conn, p *process, _ link.ProcessParams) (any, error) { return nil, c.k.remove(p) }),

	link.MethodFreeze: with(func(c *conn, _ none) (any, error) {
		n, err := c.k.freezer.freeze(c.ctx, c.k.freezable(os.Getpid()))
		return link.FreezeResult{Stopped: n}, err
	}),
	link.MethodThaw:  with(func(c *conn, _ none) (any, error) { c.k.freezer.thaw(); return nil, nil }),
	link.MethodSync:  with(func(c *conn, _ none) (any, error) { return nil, c.k.sync() }),
	link.MethodStats: with(func(c *conn, _ none) (any, error) { return c.k.stats(), nil }),
	link.MethodShutdown: with(func(c *conn, p link.ShutdownParams) (any, error) {
		grace, err := graceOf(p.GraceMs)
		return answerThen{then: func() { c.k.shutdown(grace) }}, err
	}),

	link.MethodReadFile:        with(callReadFile),
	link.MethodWriteFile:       with(callWriteFile),
	link.MethodCreateDirectory: with(callCreateDirectory),
	link.MethodGetMetadata:     with(callGetMetadata),
	link.MethodReadDirectory:   with(callReadDirectory),
	link.MethodRemove:          with(callRemove),
	link.MethodCopy:            with(callCopy),
	link.MethodCanonicalize:    with(callCanonicalize),
}

// dispatch runs a request. Nothing is done for a connection that has been
// superseded while the request waited.
func (c *conn) dispatch(rq *request) (any, error) {
	if err := context.Cause(c.ctx); err != nil {
		return nil, err
	}
	h, ok := handlers[rq.Method]
	if !ok {
		return nil, &link.Error{Code: link.CodeNoMethod, Message: fmt.Sprintf("no method %q", rq.Method)}
	}
	if err := unconfined(rq.Method, rq.Params); err != nil {
		return nil, err
	}
	if strings.HasPrefix(rq.Method, "fs/") {
		if err := c.k.slots.enter(c.ctx); err != nil {
			return nil, err
		}
		defer c.k.slots.leave()
	}
	return h(c, rq)
}

// environment describes the sandbox; a foreign client wants URIs.
func (c *conn) environment() link.Info {
	info := c.k.info
	if c.foreign {
		info.Cwd = link.PathURI(info.Cwd)
	}
	return info
}

func callStart(c *conn, w link.ProcessStartParams) (any, error) {
	p, err := c.k.start(c.ctx, w)
	if err != nil {
		return nil, err
	}
	c.k.announceStart(p)
	return link.ProcessParams{ProcessID: p.id}, nil
}

// status is the exit as one number, the way shells count.
func (e *exit) status() int {
	switch {
	case e.code != nil:
		return *e.code
	case e.signal != "":
		return 128 + int(unix.SignalNum(e.signal))
	}
	return 126 // nothing could be run
}

func callWrite(c *conn, rq *request) (any, error) {
	w, err := decodeWith[link.ProcessWriteParams](c, rq)
	if err != nil {
		return nil, err
	}
	p, err := c.k.find(w.ProcessID)
	if err != nil {
		return link.ProcessWriteResult{Status: link.WriteUnknownProcess}, nil
	}
	if len(w.Chunk) > link.MaxWriteBytes || len(w.WriteID) > maxProcessID {
		return nil, invalid("a write has at most %d bytes and an id of %d", link.MaxWriteBytes, maxProcessID)
	}
	if w.Sojourn != nil && w.Sojourn.Offset < 0 {
		return nil, invalid("an offset is not negative")
	}
	data := piece{data: w.Chunk}
	if rq.Payload != nil {
		m := rq.Message
		data.free = m.Release
	}
	if w.Sojourn != nil {
		status, taken, err := p.writeAt(c.ctx, w.Sojourn.Offset, data)
		return link.ProcessWriteResult{Status: status, Taken: taken}, err
	}
	status, err := p.write(c.ctx, w.WriteID, data)
	return link.ProcessWriteResult{Status: status}, err
}

func callSignal(_ *conn, p *process, s link.SignalParams) (any, error) {
	sig, err := parseSignal(s.Signal)
	if err != nil {
		return nil, err
	}
	return nil, p.signal(sig, s.Group, os.Getpid())
}

func callSignalTarget(c *conn, s link.SignalParams) (any, error) {
	if s.Group == link.TargetAll {
		sig, err := parseSignal(s.Signal)
		if err != nil {
			return nil, err
		}
		return nil, sendAll(sig)
	}
	p, err := c.k.find(s.ProcessID)
	if err != nil {
		return nil, err
	}
	return callSignal(c, p, s)
}

func callTerminate(c *conn, t link.TerminateParams) (any, error) {
	p, err := c.k.find(t.ProcessID)
	if err != nil && t.Sojourn == nil {
		return link.TerminateResult{}, nil // the public protocol: not running
	}
	if err != nil { // its start may be on its way: nothing is ended
		return nil, err
	}
	var grace time.Duration
	if t.Sojourn != nil {
		if grace, err = graceOf(t.Sojourn.GraceMs); err != nil {
			return nil, err
		}
	}
	running := p.running()
	return link.TerminateResult{Running: running}, p.terminate(grace, os.Getpid(), &c.k.wg)
}

func graceOf(ms int64) (time.Duration, error) {
	if ms < 0 || ms > maxGrace.Milliseconds() {
		return 0, invalid("graceMs must be between 0 and %d", maxGrace.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func callList(c *conn, _ none) (any, error) {
	r := link.ProcessListResult{Processes: []link.Process{}}
	for _, p := range c.k.list() {
		r.Processes = append(r.Processes, p.row())
	}
	return r, nil
}

func callResize(_ *conn, p *process, r link.ResizeParams) (any, error) {
	if r.Rows == 0 || r.Cols == 0 {
		return nil, invalid("a terminal has at least one row and one column")
	}
	if !p.isTTY {
		return nil, invalid("process %q has no terminal", p.id)
	}
	c, _ := p.body()
	if c == nil || c.tty == nil {
		return nil, nil // a program, or one that has failed: nobody would see it
	}
	if err := pty.Setsize(c.tty, &pty.Winsize{Rows: r.Rows, Cols: r.Cols}); err != nil && p.running() {
		return nil, fmt.Errorf("set terminal size: %w", err)
	}
	return nil, nil
}
