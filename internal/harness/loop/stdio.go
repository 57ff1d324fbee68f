package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	maxMCPLine  = 16 << 20
	serverSpool = maxMCPLine + 4<<20
	closeWithin = 5 * time.Second
)

// stdio is the way to an MCP server that runs in the sandbox: its standard input
// and output, over the link.
type stdio struct {
	drive  *drive
	server *server
}

// Connect starts the server's process.
func (s *stdio) Connect(context.Context) (mcp.Connection, error) {
	d := s.drive
	env := d.env()
	for _, v := range s.server.spec.Env {
		env[v.Name] = v.Value
	}
	err := d.link.Start(d.ctx, link.StartParams{
		ProcessID: s.server.process, Argv: append([]string{s.server.spec.Command}, s.server.spec.Args...), Cwd: sandbox.WorkspacePath,
		Env: env, Inherit: true, PipeStdin: true, Retain: link.RetainAck, SpoolBytes: serverSpool,
	})
	if err != nil {
		return nil, fmt.Errorf("start it: %w", err)
	}
	p := &pipe{link: d.link, process: s.server.process, base: d.outer}
	p.ctx, p.cancel = context.WithCancel(d.ctx)
	return p, nil
}

// pipe is a connection over a process's standard input and output: a JSON-RPC
// message a line.
type pipe struct {
	link    harness.Link
	process string
	base    context.Context // the drive's caller's, for the end
	ctx     context.Context // ends with the pipe
	cancel  context.CancelFunc
	closing sync.Once
	writes  atomic.Int64

	// Of Read, which is not called twice at the same time.
	seq     int64
	pending []link.Chunk
	line    []byte
}

// SessionID implements [mcp.Connection]: a process has one session.
func (p *pipe) SessionID() string { return "" }

// Read returns the next message. What is not one is passed over: programs print
// to their standard output.
func (p *pipe) Read(context.Context) (jsonrpc.Message, error) {
	for {
		for len(p.pending) > 0 {
			c := &p.pending[0]
			i := bytes.IndexByte(c.Data, '\n')
			if i < 0 {
				p.line = append(p.line, c.Data...)
				p.pending = p.pending[1:]
				if len(p.line) > maxMCPLine {
					return nil, fmt.Errorf("a message of more than %d bytes", maxMCPLine)
				}
				continue
			}
			line := slices.Concat(p.line, c.Data[:i])
			p.line, c.Data = p.line[:0], c.Data[i+1:]
			if line = bytes.TrimSpace(line); len(line) == 0 || line[0] != '{' {
				continue
			}
			if m, err := jsonrpc.DecodeMessage(line); err == nil {
				return m, nil
			}
		}
		if err := p.more(); err != nil {
			return nil, err
		}
	}
}

// more waits for output. The server's standard error is let go.
func (p *pipe) more() error {
	r, err := p.link.Read(p.ctx, link.ReadParams{ProcessID: p.process, AfterSeq: p.seq, MaxBytes: readBytes, Wait: readWait})
	if err != nil {
		if p.ctx.Err() != nil || errors.Is(err, link.ErrUnknownProcess) {
			return io.EOF
		}
		return err
	}
	if len(r.Chunks) == 0 && r.Exited {
		return io.EOF
	}
	for _, c := range r.Chunks {
		p.seq = c.Seq
		if c.Stream != link.Stderr {
			p.pending = append(p.pending, c)
		}
	}
	if len(r.Chunks) == 0 {
		return nil
	}
	return p.link.Ack(p.ctx, p.process, p.seq)
}

// Write sends a message.
func (p *pipe) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	if len(data) > maxMCPLine {
		return fmt.Errorf("a message of more than %d bytes", maxMCPLine)
	}
	return p.link.Write(ctx, p.process, p.process+"/"+strconv.FormatInt(p.writes.Add(1), 10), append(data, '\n'))
}

// Close ends the server. Its process is forgotten here, or by the next drive.
func (p *pipe) Close() error {
	p.closing.Do(func() {
		p.cancel()
		ctx, cancel := context.WithTimeout(p.base, closeWithin)
		defer cancel()
		_ = p.link.Remove(ctx, p.process) // the next drive tries again
	})
	return nil
}
