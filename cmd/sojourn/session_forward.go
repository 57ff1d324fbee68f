package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

const forwardHelp = `Each LOCAL:REMOTE listens on LOCAL here and leads every connection to the port
REMOTE in the sandbox; one number stands for both, and LOCAL 0 takes a free port.
It ends with an interrupt. Whoever reaches the address reaches the sandbox's
port: leave --address alone unless that is wanted.`

// maxForwarded bounds the connections at one time.
const maxForwarded = 512

func prepareForward(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	address := fs.String("address", "127.0.0.1", "`address` to listen on")
	return func(ctx context.Context, s *shell, words []string) error {
		var pairs []portPair
		for _, word := range words[1:] {
			p, err := parsePorts(word)
			if err != nil {
				return usagef("session port-forward: %s", err)
			}
			pairs = append(pairs, p)
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		if _, err := s.c.EnsureWorkspace(ctx, v.ID); err != nil {
			return s.failure(err)
		}
		f := &forwarder{s: s, session: v.ID, room: make(chan struct{}, maxForwarded)}
		return f.run(ctx, *address, pairs)
	}
}

// portPair leads from a port here to one in the sandbox.
type portPair struct{ local, remote int }

func parsePorts(word string) (portPair, error) {
	local, remote, two := strings.Cut(word, ":")
	if !two {
		remote = local
	}
	l, errL := strconv.ParseUint(local, 10, 16)
	r, errR := strconv.ParseUint(remote, 10, 16)
	if errL != nil || errR != nil || r == 0 {
		return portPair{}, fmt.Errorf("%q is not like 8080:80", terminal.Visible(word, ""))
	}
	return portPair{int(l), int(r)}, nil
}

// forwarder leads connections into a sandbox.
type forwarder struct {
	s       *shell
	session string
	room    chan struct{}
	busy    sync.WaitGroup
	say     sync.Mutex
}

// run listens on every pair until ctx ends, and waits for the connections.
func (f *forwarder) run(ctx context.Context, address string, pairs []portPair) error {
	defer f.busy.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range pairs {
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(p.local)))
		if err != nil {
			return fmt.Errorf("listen on port %d: %w", p.local, cause(err))
		}
		context.AfterFunc(ctx, func() { _ = l.Close() }) // accept sees it
		if f.s.p.json {
			if err := f.s.p.valueLine(map[string]any{"address": l.Addr().String(), "port": p.remote}); err != nil {
				return err
			}
		} else {
			f.s.p.printf("%s leads to port %d of the sandbox\n", l.Addr(), p.remote)
		}
		f.busy.Go(func() { f.accept(ctx, l, p.remote) })
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *forwarder) accept(ctx context.Context, l net.Listener, port int) {
	for {
		select {
		case f.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			<-f.room
			if ctx.Err() != nil {
				return
			}
			f.note("accept: %s", cause(err))
			continue
		}
		f.busy.Go(func() {
			defer func() { <-f.room }()
			defer conn.Close()
			f.lead(ctx, conn, port)
		})
	}
}

// lead carries one connection.
func (f *forwarder) lead(ctx context.Context, conn net.Conn, port int) {
	err := f.s.c.Forward(ctx, f.session, port, conn)
	if err == nil || ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return
	}
	if refused, ok := errors.AsType[*client.Error](err); ok {
		f.note("port %d: %s", port, sentenceOf(refused))
		return
	}
	f.note("port %d: %s", port, cause(err))
}

func (f *forwarder) note(format string, args ...any) {
	f.say.Lock()
	defer f.say.Unlock()
	fmt.Fprintf(f.s.err, "sojourn: "+format+"\n", args...)
}
