package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// box is one sandbox.
type box struct {
	driver *Driver
	key    key
	dir    string
	layers []sandbox.Mount
	half   bool // never finished; has no keeper
	keeper *keeper.Keeper
	place  *place
	// aliases are links to dir, from where its processes were before.
	aliases []string
	serves  sync.WaitGroup // grows under mu and only while not ended
	done    chan struct{}
	removal sync.Mutex // held while its directories are removed

	mu    sync.Mutex
	err   error // why it ended
	conn  net.Conn
	gates []*gate // of connections that are open
	ice   chan struct{}
}

func (b *box) makeDirs() error {
	if err := os.RemoveAll(b.dir); err != nil { // something half made
		return err
	}
	for _, d := range []string{"workspace", "home", "run", "rest/tmp"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// place is where the processes of a keeper are: they can move with it to another
// box.
type place struct{ box atomic.Pointer[box] }

func (p *place) mapPath(name string) string { return p.box.Load().mapPath(name) }

func (b *box) start(cfg Config) {
	programs := cfg.Programs
	if programs == nil {
		programs = map[string]keeper.Program{} // nil means: real processes
	}
	if cfg.Host {
		programs = nil
	}
	at := &place{}
	at.box.Store(b)
	b.run(keeper.New(keeper.Config{Epoch: b.key.epoch, Programs: programs, MapPath: at.mapPath}), at)
}

// run makes k the box's keeper.
func (b *box) run(k *keeper.Keeper, at *place) {
	b.keeper, b.place = k, at
	at.box.Store(b)
	go func() { // ends with the sandbox
		select {
		case <-b.keeper.Over():
			b.finish(sandbox.EndExited, "its keeper was shut down")
		case <-b.done:
		}
	}()
}

// mapPath turns a path of the sandbox into one of the host.
func (b *box) mapPath(p string) string {
	p = path.Clean("/" + p)
	for at, dir := range map[string]string{sandbox.WorkspacePath: "workspace", sandbox.HomePath: "home", sandbox.SocketDir: "run"} {
		if rest, ok := strings.CutPrefix(p+"/", at+"/"); ok {
			return filepath.Join(b.dir, dir, rest)
		}
	}
	for _, l := range b.layers {
		if rest, ok := strings.CutPrefix(p+"/", l.Target+"/"); ok {
			return filepath.Join(l.Source, rest)
		}
	}
	return filepath.Join(b.dir, "rest", p)
}

func (b *box) Handle() sandbox.Handle {
	h := sandbox.Handle{Driver: Name, Session: b.key.session, Epoch: b.key.epoch}
	if !b.half {
		h.Data = handleData(b.dir)
	}
	return h
}

func (b *box) Dirs() sandbox.Dirs {
	return sandbox.Dirs{
		Workspace: filepath.Join(b.dir, "workspace"), Home: filepath.Join(b.dir, "home"), Sockets: filepath.Join(b.dir, "run"),
	}
}

func (b *box) Done() <-chan struct{} { return b.done }

func (b *box) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Kill ends the sandbox; see sandbox.Sandbox.
func (b *box) Kill(context.Context) error {
	if err := b.driver.Faults().KillErr; err != nil && b.Err() == nil {
		return fmt.Errorf("kill sandbox %s: %w", b.key.session, err)
	}
	b.finish(sandbox.EndKilled, "its processes were killed")
	return nil
}

func (b *box) Destroy(ctx context.Context) error { return b.driver.Remove(ctx, b.Handle()) }

// Dial connects to the keeper.
func (b *box) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	f := b.driver.Faults()
	if f.NoKeeper {
		select {
		case <-b.done:
			return nil, b.Err()
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for keeper: %w", context.Cause(ctx))
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("wait for keeper: %w", context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	if f.DialErr != nil {
		return nil, fmt.Errorf("dial sandbox %s: %w", b.key.session, f.DialErr)
	}
	b.cutLocked()
	near, far := net.Pipe()
	g := &gate{Conn: far, box: b, closed: make(chan struct{})}
	b.conn = near
	b.gates = append(b.gates, g)
	b.serves.Go(func() {
		_ = b.keeper.Serve(context.Background(), link.Framed(g)) // ends with the connection or the keeper
		b.forget(g)
	})
	return near, nil
}

func (b *box) forget(g *gate) {
	g.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.gates {
		if b.gates[i] == g {
			b.gates = append(b.gates[:i], b.gates[i+1:]...)
			return
		}
	}
}

func (b *box) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cutLocked()
}

func (b *box) cutLocked() {
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
	for _, g := range b.gates {
		g.Close()
	}
}

func (b *box) freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ice == nil {
		b.ice = make(chan struct{})
	}
}

func (b *box) thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ice != nil {
		close(b.ice)
		b.ice = nil
	}
}

// frozen returns a channel that is closed by thaw, or nil.
func (b *box) frozen() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ice
}

// finish ends the sandbox; the first reason counts. It waits for the keeper.
func (b *box) finish(reason sandbox.EndReason, detail string) { b.end(reason, detail, true) }

// end ends the sandbox; its keeper ends with it, or is left to go on elsewhere.
func (b *box) end(reason sandbox.EndReason, detail string, withKeeper bool) {
	b.mu.Lock()
	first := b.err == nil
	if first {
		b.err = fmt.Errorf("sandbox %s: %w", b.key.session, &sandbox.EndError{Reason: reason, Detail: detail})
	}
	b.mu.Unlock()
	if !first {
		<-b.done
		return
	}
	switch {
	case !withKeeper:
		b.cut()
	case b.keeper != nil:
		_ = b.keeper.Close() // its processes are gone either way; it ends the connections
	}
	b.serves.Wait()
	close(b.done)
}

// gate is the keeper's end of a connection: nothing passes it while the box is frozen.
type gate struct {
	net.Conn
	box    *box
	once   sync.Once
	closed chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if waitErr := g.wait(); waitErr != nil {
		return 0, waitErr
	}
	return n, err
}

func (g *gate) Write(p []byte) (int, error) {
	if err := g.wait(); err != nil {
		return 0, err
	}
	return g.Conn.Write(p)
}

func (g *gate) wait() error {
	ice := g.box.frozen()
	if ice == nil {
		return nil
	}
	select {
	case <-ice:
		return nil
	case <-g.closed:
		return net.ErrClosed
	}
}

func (g *gate) Close() error {
	err := g.Conn.Close()
	g.once.Do(func() { close(g.closed) })
	if errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}
