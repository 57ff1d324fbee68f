package harnesstest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Sandbox is a keeper on the test's own machine.
type Sandbox struct {
	Root     string // holds the directories workspace and home
	keeper   *keeper.Keeper
	programs Programs
	wrap     func(net.Conn) net.Conn

	mu     sync.Mutex
	gone   bool
	conns  map[net.Conn]struct{}
	served sync.WaitGroup
}

// Programs are what the sandbox can run inside the test's process, by argv[0];
// nil stands for real processes.
type Programs = map[string]keeper.Program

// NewSandbox starts a keeper that ends with the test.
func NewSandbox(t testing.TB, programs Programs) *Sandbox {
	t.Helper()
	s := &Sandbox{Root: t.TempDir(), programs: programs, conns: map[net.Conn]struct{}{}}
	for _, dir := range []string{s.Workspace(), s.Home()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.keeper = keeper.New(keeper.Config{Programs: programs, MapPath: s.hostPath})
	t.Cleanup(func() {
		s.Cut()
		if err := s.keeper.Close(); err != nil {
			t.Errorf("close the keeper: %v", err)
		}
		s.served.Wait()
	})
	return s
}

// Workspace is where /workspace lies on this machine.
func (s *Sandbox) Workspace() string { return filepath.Join(s.Root, "workspace") }

// Home is where /home/agent lies on this machine.
func (s *Sandbox) Home() string { return filepath.Join(s.Root, "home", "agent") }

func (s *Sandbox) hostPath(p string) string {
	for from, to := range map[string]string{sandbox.WorkspacePath: s.Workspace(), sandbox.HomePath: s.Home()} {
		if p == from || strings.HasPrefix(p, from+"/") {
			return to + strings.TrimPrefix(p, from)
		}
	}
	return p
}

// WrapConns makes every later connection pass through wrap, on the engine's
// side.
func (s *Sandbox) WrapConns(wrap func(net.Conn) net.Conn) { s.wrap = wrap }

// Peer opens the link as a server does that has just started.
func (s *Sandbox) Peer(t testing.TB) *link.Peer {
	t.Helper()
	p := link.NewPeer(s.dial, link.Options{Epoch: 1})
	t.Cleanup(func() { _ = p.Close() }) // the connection may have ended in any way
	return p
}

func (s *Sandbox) dial(ctx context.Context) (link.Transport, error) {
	near, far := net.Pipe()
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return nil, link.ErrGone
	}
	s.conns[near] = struct{}{}
	s.mu.Unlock()
	s.served.Go(func() {
		_ = s.keeper.Serve(context.WithoutCancel(ctx), link.Framed(far)) // its errors are the client's too
	})
	if s.wrap != nil {
		near = s.wrap(near)
	}
	return link.Framed(near), nil
}

// Lose makes the sandbox be gone for everybody who dials it.
func (s *Sandbox) Lose() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	s.Cut()
}

// Cut ends every connection, as a broken network does.
func (s *Sandbox) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
		delete(s.conns, c)
	}
}
