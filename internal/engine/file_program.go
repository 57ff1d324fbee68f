package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	// fileSpool is how much of a file may lie in the sandbox, read and not sent.
	fileSpool = 4 << 20
	// filePiece bounds one message with a part of a file. The link is shared with
	// execs, whose output must not wait long behind it.
	filePiece = 1 << 20
	// fileGather is how long a program may take to be done within one round trip.
	fileGather = 5 * time.Millisecond
)

// fileProgram is one of the keeper's programs for files, at work.
type fileProgram struct {
	v     *Visit
	id    string
	after int64   // the last chunk that has come
	out   []piece // of stdout, to be handed on
	line  []byte  // of stderr, until the reply is whole
	reply *link.FileReply
	notes said // of stderr, behind the reply
	exit  *Exit
}

// piece is a part of what a program writes, or why there is none.
type piece struct {
	b    []byte
	from *link.ReadResult // set in the last piece of what came at once
	err  error
}

// release gives the memory of a piece back. It need not be called.
func (p *piece) release() {
	if p.from != nil {
		p.from.Release()
	}
	*p = piece{}
}

// begin starts a program that takes no input, and returns once it has replied. The
// error is its refusal.
func (v *Visit) begin(ctx context.Context, argv ...string) (*fileProgram, error) {
	p := v.program()
	s := link.StartParams{ProcessID: p.id, Argv: argv, Cwd: "/", Retain: link.RetainAck, SpoolBytes: fileSpool}
	bound, done := v.bound(ctx)
	defer done()
	r, err := v.c.peer.Run(bound, s, link.ReadParams{MaxBytes: filePiece, Wait: link.MaxWait, Gather: fileGather})
	if err == nil {
		err = p.take(r)
	}
	if err != nil {
		p.drop()
		return nil, v.told(bound, err)
	}
	if err := p.answered(ctx); err != nil {
		p.drop()
		return nil, err
	}
	return p, nil
}

func (v *Visit) program() *fileProgram {
	return &fileProgram{v: v, id: v.e.passing(copyPrefix)}
}

// answered waits for the reply. The error is the refusal that it may be.
func (p *fileProgram) answered(ctx context.Context) error {
	for p.reply == nil && p.exit == nil {
		if err := p.read(ctx); err != nil {
			return err
		}
	}
	if p.reply == nil {
		return fmt.Errorf("a program for files ended with %s and without a reply", p.exit)
	}
	if p.reply.Fault != "" {
		return faultOf(*p.reply)
	}
	return nil
}

// read waits for something new, and releases what came before.
func (p *fileProgram) read(ctx context.Context) error {
	ctx, done := p.v.bound(ctx)
	defer done()
	r, err := p.v.c.peer.Read(ctx, link.ReadParams{
		ProcessID: p.id, AfterSeq: p.after, Ack: p.after, MaxBytes: filePiece, Wait: link.MaxWait, Gather: fileGather,
	})
	if err == nil {
		err = p.take(r)
	}
	return p.v.told(ctx, err)
}

// take sorts what a program has written.
func (p *fileProgram) take(r link.ReadResult) error {
	r.Join()
	before := len(p.out)
	defer func() {
		if n := len(p.out); n > before {
			p.out[n-1].from = &r
		} else {
			r.Release()
		}
	}()
	for _, c := range r.Chunks {
		if c.Stream != link.Stderr {
			p.out = append(p.out, piece{b: c.Data})
			continue
		}
		data := c.Data
		if p.reply == nil {
			head, rest, whole := bytes.Cut(data, []byte("\n"))
			p.line = append(p.line, head...)
			if !whole && len(p.line) <= maxSaid {
				continue
			}
			reply, err := link.ParseFileReply(p.line)
			if err != nil {
				return err
			}
			p.reply, data = &reply, rest
		}
		p.notes.add(data)
	}
	p.after = r.NextSeq - 1
	if r.Closed {
		p.exit = &Exit{Code: r.ExitCode, Signal: r.Signal, Failure: r.Failure}
	}
	return nil
}

// next returns a piece of stdout, and io.EOF when the program has ended well.
func (p *fileProgram) next(ctx context.Context) (piece, error) {
	for len(p.out) == 0 && p.exit == nil {
		if err := p.read(ctx); err != nil {
			return piece{}, err
		}
	}
	if len(p.out) > 0 {
		first := p.out[0]
		p.out = p.out[1:]
		return first, nil
	}
	if p.exit.Code == nil || *p.exit.Code > 1 {
		return piece{}, fmt.Errorf("a program for files ended with %s: %s", p.exit, p.notes.String())
	}
	return piece{}, io.EOF
}

// copy writes what the program writes to w.
func (p *fileProgram) copy(ctx context.Context, w io.Writer) (n int64, err error) {
	a := p.ahead(ctx)
	defer a.Close()
	for {
		b, err := a.next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		m, err := w.Write(b)
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
}

// ahead is what a program writes, fetched while what came before is used.
type ahead struct {
	ctx    context.Context
	cancel context.CancelFunc
	pieces chan piece // closed when there is no more
	used   piece      // that was handed out last
	rest   []byte     // of it
}

// ahead begins to fetch. The caller closes it before it uses the program again.
func (p *fileProgram) ahead(ctx context.Context) *ahead {
	a := &ahead{pieces: make(chan piece, 1)} // a piece is most of a message
	a.ctx, a.cancel = context.WithCancel(ctx)
	go func() {
		defer close(a.pieces)
		for {
			next, err := p.next(a.ctx)
			next.err = err
			select {
			case a.pieces <- next:
			case <-a.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return a
}

// next is that of the program. The bytes are the caller's until it calls it again.
func (a *ahead) next() ([]byte, error) {
	a.used.release()
	got, ok := <-a.pieces
	if !ok {
		return nil, cmp.Or(context.Cause(a.ctx), io.EOF)
	}
	a.used = got
	return got.b, got.err
}

// Read implements io.Reader.
func (a *ahead) Read(b []byte) (int, error) {
	for len(a.rest) == 0 {
		var err error
		if a.rest, err = a.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// Close ends the fetching and waits for it.
func (a *ahead) Close() error {
	a.cancel()
	for range a.pieces { // until the goroutine has ended
	}
	return nil
}

// drop ends the program, if it has not, and forgets it.
func (p *fileProgram) drop() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.v.ctx), leaveTime)
	defer cancel()
	if p.exit == nil {
		p.v.e.dropProcess(ctx, p.v.c, p.id)
		return
	}
	_ = p.v.c.peer.Forget(ctx, p.id) // it has ended; the next connection says it again
}

// feed gives the program all of r as input, or as much as it wants, and returns
// what it has said of it. When r breaks off, the program does not see an end.
func (v *Visit) feed(ctx context.Context, r io.Reader, argv ...string) (*fileProgram, error) {
	p := v.program()
	s := link.StartParams{ProcessID: p.id, Argv: argv, Cwd: "/", PipeStdin: true, Retain: link.RetainRing}
	bound, done := v.bound(ctx)
	defer done()
	if err := v.c.peer.Start(bound, s); err != nil {
		return nil, v.told(bound, err)
	}
	err := p.pump(bound, r)
	if err == nil {
		err = p.answered(ctx)
	}
	for err == nil && p.exit == nil { // what it says behind the reply
		err = p.read(ctx)
	}
	if err != nil {
		p.drop()
		return nil, err
	}
	return p, nil
}

// pump reads r and writes it to the program's stdin, at the same time.
func (p *fileProgram) pump(ctx context.Context, r io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	full, empty := make(chan []byte, 1), make(chan []byte, 2)
	empty <- make([]byte, filePiece)
	empty <- make([]byte, filePiece)
	written := make(chan error, 1)
	go func() {
		err := p.write(ctx, full, empty)
		cancel(errEnough)
		written <- err
	}()
	err := fill(ctx, r, full, empty)
	if err == nil {
		close(full) // and only now may the input end
		return p.v.told(ctx, <-written)
	}
	cancel(err)
	if stopped := <-written; errors.Is(err, errEnough) {
		return p.v.told(ctx, stopped)
	}
	return err
}

// errEnough is the cause when a program takes no more input.
var errEnough = errors.New("the program takes no more")

// fill reads r into buffers until it ends: the error is nil only then.
func fill(ctx context.Context, r io.Reader, full chan<- []byte, empty <-chan []byte) error {
	for {
		var buf []byte
		select {
		case buf = <-empty:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		n, err := readAll(r, buf[:cap(buf)])
		if err != nil && err != io.EOF { //nolint:errorlint // an error that wraps it is a body that broke off
			return unread(ctx, err, "body")
		}
		if n > 0 {
			select {
			case full <- buf[:n]:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err != nil {
			return nil
		}
	}
}

// unread is what it means that the input of a call, a body or an archive, broke
// off with err: the call was ended from our side, or the sender is at fault. A
// server ends the context of a request whose connection breaks, so a context that
// was merely cancelled says nothing else.
func unread(ctx context.Context, err error, what string) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return &sojourn.Error{Code: sojourn.CodeInvalid, Cause: err, Message: "The " + what + " could not be read to its end."}
}

// readAll fills buf as far as r goes. Unlike with io.ReadFull, what r says of its
// end stays what it is: a body that broke off has not ended.
func readAll(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// write gives the program what comes, and then the end of its input.
func (p *fileProgram) write(ctx context.Context, full <-chan []byte, empty chan<- []byte) error {
	peer := p.v.c.peer
	for at := int64(0); ; {
		var b []byte
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case next, more := <-full:
			if !more {
				return peer.CloseStdin(ctx, p.id)
			}
			b = next
		}
		err := peer.Write(ctx, p.id, "in-"+strconv.FormatInt(at, 10), b)
		switch {
		case errors.Is(err, link.ErrStdinClosed), errors.Is(err, link.ErrUnknownProcess):
			return nil // it has seen enough
		case err != nil:
			return err
		}
		at += int64(len(b))
		empty <- b
	}
}
