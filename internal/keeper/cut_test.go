package keeper_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// cutter makes connections to a keeper that break after some bytes.
type cutter struct {
	k    *keeper.Keeper
	pair func() (near, far net.Conn)
	rnd  *rand.Rand
	most int // bytes before a cut; 0 means 60,000

	mu   sync.Mutex
	left int // connections still to be cut
	cuts int
	wg   sync.WaitGroup
}

// cutConn closes itself after budget bytes, in both directions together.
type cutConn struct {
	net.Conn
	mu     sync.Mutex
	budget int
	cut    func()
}

// spend takes up to n bytes off the budget and says how many may pass.
func (c *cutConn) spend(n int) (pass int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pass = min(n, c.budget)
	c.budget -= pass
	return pass, pass < n
}

func (c *cutConn) Write(p []byte) (int, error) {
	pass, last := c.spend(len(p))
	n, err := c.Conn.Write(p[:pass])
	if err == nil && last {
		c.cut()
		err = io.ErrClosedPipe
	}
	return n, err
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, err
	}
	pass, last := c.spend(n)
	if last {
		c.cut()
		return pass, io.ErrUnexpectedEOF
	}
	return n, nil
}

func (cu *cutter) dial(context.Context) (link.Transport, error) {
	near, far := cu.pair()
	cu.wg.Go(func() { _ = cu.k.Serve(context.Background(), link.Framed(far)) }) // it breaks by design
	cu.mu.Lock()
	defer cu.mu.Unlock()
	if cu.left == 0 {
		return link.Framed(near), nil
	}
	cu.left--
	var once sync.Once
	return link.Framed(&cutConn{Conn: near, budget: 1 + cu.rnd.IntN(cmp.Or(cu.most, 60_000)), cut: func() {
		once.Do(func() {
			cu.mu.Lock()
			cu.cuts++
			cu.mu.Unlock()
			near.Close()
		})
	}}), nil
}

// TestCutConnectionsLoseNothing: a megabyte of output through a peer whose
// connections break 30 times at random bytes, while as many writes go in. Both
// arrive whole, in order, once.
func TestCutConnectionsLoseNothing(t *testing.T) {
	ln := listen(t)
	defer ln.Close()
	for name, pair := range map[string]func() (net.Conn, net.Conn){
		"pipe": net.Pipe,
		"unix": func() (net.Conn, net.Conn) { return socketPair(t, ln) },
	} {
		t.Run(name, func(t *testing.T) {
			k := keeper.New(keeper.Config{})
			const cuts = 30
			cu := &cutter{k: k, pair: pair, rnd: rand.New(rand.NewPCG(1, 2)), left: cuts}
			p := link.NewPeer(cu.dial, link.Options{})
			testCuts(t, p)
			if cu.cuts != cuts {
				t.Errorf("%d connections were cut, want %d", cu.cuts, cuts)
			}
			p.Close()
			k.Close()
			cu.wg.Wait()
		})
	}
}

func testCuts(t *testing.T, p *link.Peer) {
	const size = 1 << 20
	err := p.Start(t.Context(), link.StartParams{
		ProcessID: "p", Argv: []string{"cat"}, Cwd: "/", Env: env(), PipeStdin: true, Retain: link.RetainAck,
	})
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	for i := 0; want.Len() < size; i++ {
		fmt.Fprintf(&want, "%d ", i)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		rest := want.Bytes()
		for i := 0; len(rest) > 0; i++ {
			n := min(8000, len(rest))
			if err := p.Write(t.Context(), "p", fmt.Sprint(i), rest[:n]); err != nil {
				t.Errorf("write %d: %v", i, err)
				break
			}
			rest = rest[n:]
		}
		if err := p.CloseStdin(t.Context(), "p"); err != nil {
			t.Errorf("close stdin: %v", err)
		}
	})
	o := follow(t, p, "p")
	wantCode(t, o, 0)
	if got := o.out["stdout"]; !bytes.Equal(got, want.Bytes()) {
		t.Fatalf("%d bytes arrived, not the %d that were written", len(got), want.Len())
	}
}
