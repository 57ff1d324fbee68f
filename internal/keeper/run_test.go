package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// short is a read that takes all of a short process at once.
var short = link.ReadParams{Wait: link.MaxWait, Gather: 5 * time.Second}

func TestRunTellsAllOfAShortProcess(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	s := link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "printf out; printf err >&2; exit 3"}, Env: env(), Retain: link.RetainAck}
	r, err := c.Run(t.Context(), s, short)
	if err != nil || !r.Closed || r.ExitCode == nil || *r.ExitCode != 3 || r.RunTime <= 0 {
		t.Fatalf("run = %+v, %v", r, err)
	}
	var out []byte
	for _, ch := range r.Chunks {
		out = append(out, ch.Data...)
	}
	if string(out) != "outerr" && string(out) != "errout" {
		t.Fatalf("output = %q", out)
	}
	if _, err := c.Run(t.Context(), s, short); !errors.Is(err, link.ErrProcessExists) {
		t.Fatalf("run again = %v, want ErrProcessExists", err)
	}
	r, err = c.Run(t.Context(), link.StartParams{ProcessID: "q", Argv: []string{"no-such-xyz"}}, short)
	if err != nil || r.FailureKind != link.FailureProgram || *r.ExitCode != 127 || !r.Closed {
		t.Fatalf("run of a missing program = %+v, %v", r, err)
	}
}

// TestRunLetsInputFollow: what is sent right behind the start arrives, though the
// answer to the run waits for what it brings.
func TestRunLetsInputFollow(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	ran := make(chan error, 1)
	go func() {
		r, err := c.Run(context.Background(), link.StartParams{ProcessID: "p", Argv: []string{"cat"}, Env: env(), PipeStdin: true}, short)
		if err == nil && (len(r.Chunks) != 1 || string(r.Chunks[0].Data) != "hi" || !r.Closed) {
			err = fmt.Errorf("run = %+v", r)
		}
		ran <- err
	}()
	for {
		err := c.Write(t.Context(), "p", "w", []byte("hi"))
		if err == nil {
			break
		}
		if !errors.Is(err, link.ErrUnknownProcess) { // the start is not on its way yet
			t.Fatal(err)
		}
	}
	if err := c.CloseStdin(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

// TestGatherHoldsNothingBackForLong: output of a process that goes on comes when
// the gathering is over, and a full read at once.
func TestGatherHoldsNothingBackForLong(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	r, err := c.Run(t.Context(), link.StartParams{ProcessID: "p", Argv: []string{"sh", "-c", "echo a; echo b; exec sleep 300"}, Env: env()},
		link.ReadParams{Wait: link.MaxWait, Gather: time.Second})
	if err != nil || len(r.Chunks) != 1 || string(r.Chunks[0].Data) != "a\nb\n" || r.Exited {
		t.Fatalf("run = %+v, %v", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err = c.Run(ctx, link.StartParams{ProcessID: "q", Argv: []string{"yes"}, Env: env(), Retain: link.RetainAck},
		link.ReadParams{Wait: link.MaxWait, Gather: time.Hour, MaxBytes: 100_000}) // bounded by the keeper besides
	if err != nil || len(r.Chunks) == 0 || !bytes.HasPrefix(r.Chunks[0].Data, []byte("y\ny\n")) {
		t.Fatalf("run = %+v, %v", r, err)
	}
}

func TestReadAcknowledges(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"echo", "hi"}, Retain: link.RetainAck})
	r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", Wait: link.MaxWait, Gather: 5 * time.Second})
	if err != nil || len(r.Chunks) != 1 {
		t.Fatalf("read = %+v, %v", r, err)
	}
	r, err = c.Read(t.Context(), link.ReadParams{ProcessID: "p", Ack: r.Chunks[0].Seq})
	if err != nil || len(r.Chunks) != 0 || r.FirstSeq < 2 {
		t.Fatalf("read with ack = %+v, %v", r, err)
	}
}

// TestForgottenIsGone: what is heard after a Forget confirms it; unknown ids
// disturb nobody.
func TestForgottenIsGone(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"true"}})
	for _, id := range []string{"p", "p", "never"} {
		if err := c.Forget(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := c.Processes(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("processes = %+v, %v", list, err)
	}
}

// TestPeerForgetsAcrossConnections: connections break where they like, and in the
// end nothing is left at the keeper.
func TestPeerForgetsAcrossConnections(t *testing.T) {
	t.Parallel()
	k := keeper.New(keeper.Config{})
	cu := &cutter{k: k, pair: net.Pipe, rnd: rand.New(rand.NewPCG(1, 2)), left: 20, most: 6000}
	p := link.NewPeer(cu.dial, link.Options{})
	defer func() {
		p.Close()
		k.Close()
		cu.wg.Wait()
	}()
	for i := range 50 {
		id := fmt.Sprint(i)
		var out []byte
		r, err := p.Run(t.Context(), link.StartParams{ProcessID: id, Argv: []string{"echo", id}, Env: env(), Retain: link.RetainAck}, short)
		for err == nil {
			for _, ch := range r.Chunks {
				out = append(out, ch.Data...)
			}
			if r.Closed {
				break
			}
			r, err = p.Read(t.Context(), link.ReadParams{ProcessID: id, AfterSeq: r.NextSeq - 1, Wait: link.MaxWait})
		}
		if err != nil || strings.TrimSpace(string(out)) != id {
			t.Fatalf("run %s = %q, %v", id, out, err)
		}
		if err := p.Forget(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	cu.mu.Lock()
	if cu.cuts < 5 {
		t.Errorf("only %d connections were cut", cu.cuts)
	}
	cu.mu.Unlock()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) { // a new connection repeats the last ones
		list, err := p.Processes(t.Context())
		if err == nil && len(list) == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("left at the keeper: %+v, %v", list, err)
		}
	}
}
