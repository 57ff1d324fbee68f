package keeper

import (
	"encoding/json"
	"slices"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// notifyBytes is how much output one step of a follower takes.
const notifyBytes = 256 << 10

type outputNote struct {
	ProcessID string `json:"processId"`
	link.OutputChunk
}

type exitedNote struct {
	ProcessID string `json:"processId"`
	Seq       int64  `json:"seq"`
	ExitCode  int    `json:"exitCode"` // 128+n for signal n: this field knows nothing else
	Signal    string `json:"signal,omitempty"`
}

type closedNote struct {
	ProcessID string `json:"processId"`
	Seq       int64  `json:"seq"`
}

// announce makes a connection follow every process from here on.
func (k *Keeper) announce(c *conn) {
	k.mu.Lock()
	c.notify = true
	procs := k.listLocked()
	k.mu.Unlock()
	for _, p := range procs {
		c.follow(p, p.spool.last())
	}
}

// announceStart makes every connection that wants to follow a new process.
func (k *Keeper) announceStart(p *process) {
	k.mu.Lock()
	conns := slices.DeleteFunc(k.connsLocked(), func(c *conn) bool { return !c.notify })
	k.mu.Unlock()
	for _, c := range conns {
		c.follow(p, 0)
	}
}

// follow sends what happens to p after a sequence number until p closes or
// the connection ends. Each process has its own follower, so a busy one keeps
// no other waiting.
func (c *conn) follow(p *process, after int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.followed[p] {
		return
	}
	c.followed[p] = true
	c.wg.Go(func() {
		defer c.unfollow(p)
		for {
			v := p.spool.read(after, notifyBytes)
			for _, ch := range v.chunks {
				if v.exit != nil && after < v.exitSeq && v.exitSeq < ch.seq {
					c.note(link.NotifyExited, exitedNote{p.id, v.exitSeq, v.exit.status(), v.exit.signal})
				}
				c.note(link.NotifyOutput, outputNote{p.id, wireChunk(ch)})
				after = ch.seq
			}
			v.release()
			if v.exit != nil && after < v.exitSeq && v.exitSeq < v.nextSeq {
				c.note(link.NotifyExited, exitedNote{p.id, v.exitSeq, v.exit.status(), v.exit.signal})
				after = v.exitSeq
			}
			if v.closed {
				c.note(link.NotifyClosed, closedNote{p.id, v.closedSeq})
			}
			if v.closed || v.shut || c.ctx.Err() != nil {
				return
			}
			state := p.spool.look(after, notifyBytes, false)
			if state.news {
				continue
			}
			select {
			case <-state.changed:
			case <-c.ctx.Done():
				return
			}
		}
	})
}

func (c *conn) unfollow(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.followed, p)
}

func (c *conn) note(method string, params any) {
	raw, err := json.Marshal(params)
	if err != nil {
		c.k.log.Error("encode notification", "method", method, "err", err)
		return
	}
	c.send(link.Message{Method: method, Params: raw}, nil)
}

func wireChunk(c chunk) link.OutputChunk {
	return link.OutputChunk{Seq: c.seq, Stream: c.stream, Chunk: c.data, Offset: c.offset}
}
