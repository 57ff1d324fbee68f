package link

import (
	"context"
	"errors"
	"fmt"
)

// Run starts a process and reads its output from the beginning, in one round trip:
// with Gather and Wait as long as a short process takes, the answer is all there is
// to know of it. r needs no process id. The errors are those of Start and Read.
func (c *Client) Run(ctx context.Context, s StartParams, r ReadParams) (ReadResult, error) {
	r.ProcessID, r.AfterSeq, r.Ack = s.ProcessID, 0, 0
	if c.revision == 0 {
		if err := c.Start(ctx, s); err != nil {
			return ReadResult{}, err
		}
		return c.Read(ctx, r)
	}
	start, err := c.wireStart(ctx, s)
	if err != nil {
		return ReadResult{}, fmt.Errorf("%s: %w", MethodRun, err)
	}
	return c.readCall(ctx, MethodRun, ProcessRunParams{Start: start, Read: c.wireRead(r)}, 0)
}

// Forget is Remove without an answer: it returns once the message is on its way.
// Whether the process was known is not told. The id must not be used again.
func (c *Client) Forget(ctx context.Context, processID string) error {
	if c.revision == 0 {
		return c.Remove(ctx, processID)
	}
	return c.notify(ctx, MethodProcessDrop, ProcessParams{ProcessID: processID})
}

// Run is [Client.Run]. When the answer to an earlier attempt was lost, the process
// is read from its beginning, as far as its output is still held.
func (p *Peer) Run(ctx context.Context, s StartParams, r ReadParams) (ReadResult, error) {
	return retry(ctx, p, func(c *Client, again bool) (ReadResult, error) {
		if !again {
			return c.Run(ctx, s, r)
		}
		if err := settled(c.Start(ctx, s), again, ErrProcessExists); err != nil {
			return ReadResult{}, err
		}
		r.ProcessID, r.AfterSeq, r.Ack = s.ProcessID, 0, 0
		return c.Read(ctx, r)
	})
}

// maxForgotten is how many ids a peer remembers to have forgotten: more than can
// be on their way when a connection breaks.
const maxForgotten = 1024

// Forget is [Client.Forget]. It dials for nothing: when there is no connection, or
// the one there is breaks before the message has arrived, the next one says it.
func (p *Peer) Forget(ctx context.Context, processID string) error {
	p.mu.Lock()
	if len(p.forgotten) == maxForgotten {
		p.forgotten = p.forgotten[:copy(p.forgotten, p.forgotten[maxForgotten/2:])]
	}
	p.forgotten = append(p.forgotten, processID)
	client := p.client
	p.mu.Unlock()
	if client == nil || client.Err() != nil {
		return nil
	}
	return p.forgetOn(ctx, client, processID)
}

func (p *Peer) forgetOn(ctx context.Context, c *Client, ids ...string) error {
	for _, id := range ids {
		err := c.Forget(ctx, id)
		if err != nil && !errors.Is(err, ErrUnknownProcess) && !errors.Is(err, ErrDisconnected) {
			return fmt.Errorf("forget process %q: %w", id, err)
		}
	}
	return nil
}
