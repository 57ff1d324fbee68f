package link

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// The calls of a Peer are those of a Client; where repeating one needs care,
// the method says what a lost answer means.

// Info is [Client.Info].
func (p *Peer) Info(ctx context.Context) (Info, error) {
	return retry(ctx, p, func(c *Client, _ bool) (Info, error) { return c.Info(ctx) })
}

// Start is [Client.Start]. When the answer to an earlier attempt was lost,
// finding the process there is success.
func (p *Peer) Start(ctx context.Context, s StartParams) error {
	return do(ctx, p, func(c *Client, again bool) error {
		return settled(c.Start(ctx, s), again, ErrProcessExists)
	})
}

// settled turns the error that a repeated call gets, because its first attempt
// was carried out, into success.
func settled(err error, again bool, trace error) error {
	if again && errors.Is(err, trace) {
		return nil
	}
	return err
}

// Read is [Client.Read].
func (p *Peer) Read(ctx context.Context, r ReadParams) (ReadResult, error) {
	return retry(ctx, p, func(c *Client, _ bool) (ReadResult, error) { return c.Read(ctx, r) })
}

// Write is [Client.Write]; the write id makes repeating it safe and must not
// be empty.
func (p *Peer) Write(ctx context.Context, processID, writeID string, data []byte) error {
	if writeID == "" {
		return errors.New("write to process: no write id")
	}
	return do(ctx, p, func(c *Client, _ bool) error { return c.Write(ctx, processID, writeID, data) })
}

// WriteAt is [Client.WriteAt]; after a lost answer nothing is taken twice.
func (p *Peer) WriteAt(ctx context.Context, processID string, offset int64, data []byte) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.WriteAt(ctx, processID, offset, data) })
}

// CloseStdin is [Client.CloseStdin].
func (p *Peer) CloseStdin(ctx context.Context, processID string) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.CloseStdin(ctx, processID) })
}

// Signal is [Client.Signal]; after a lost answer the signal may come twice.
func (p *Peer) Signal(ctx context.Context, processID, signal, target string) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.Signal(ctx, processID, signal, target) })
}

// Terminate is [Client.Terminate]. The grace of the first attempt counts.
func (p *Peer) Terminate(ctx context.Context, processID string, grace time.Duration) (bool, error) {
	return retry(ctx, p, func(c *Client, _ bool) (bool, error) { return c.Terminate(ctx, processID, grace) })
}

// Ack is [Client.Ack].
func (p *Peer) Ack(ctx context.Context, processID string, seq int64) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.Ack(ctx, processID, seq) })
}

// Resize is [Client.Resize].
func (p *Peer) Resize(ctx context.Context, processID string, rows, cols uint16) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.Resize(ctx, processID, rows, cols) })
}

// Processes is [Client.Processes].
func (p *Peer) Processes(ctx context.Context) ([]Process, error) {
	return retry(ctx, p, func(c *Client, _ bool) ([]Process, error) { return c.Processes(ctx) })
}

// Remove is [Client.Remove]. When the answer to an earlier attempt was lost,
// not finding the process is success.
func (p *Peer) Remove(ctx context.Context, processID string) error {
	return do(ctx, p, func(c *Client, again bool) error {
		return settled(c.Remove(ctx, processID), again, ErrUnknownProcess)
	})
}

// Freeze is [Client.Freeze]. After a lost answer the count is of what was
// still to be stopped.
func (p *Peer) Freeze(ctx context.Context) (int, error) {
	return retry(ctx, p, func(c *Client, _ bool) (int, error) { return c.Freeze(ctx) })
}

// Thaw is [Client.Thaw].
func (p *Peer) Thaw(ctx context.Context) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.Thaw(ctx) })
}

// Sync is [Client.Sync].
func (p *Peer) Sync(ctx context.Context) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.Sync(ctx) })
}

// Stats is [Client.Stats].
func (p *Peer) Stats(ctx context.Context) (Stats, error) {
	return retry(ctx, p, func(c *Client, _ bool) (Stats, error) { return c.Stats(ctx) })
}

// Shutdown is [Client.Shutdown]. When the answer to an earlier attempt was
// lost, ErrGone is success.
func (p *Peer) Shutdown(ctx context.Context, grace time.Duration) error {
	sent := false
	err := do(ctx, p, func(c *Client, _ bool) error {
		sent = true
		return c.Shutdown(ctx, grace)
	})
	return settled(err, sent, ErrGone)
}

// ReadFile is [Client.ReadFile].
func (p *Peer) ReadFile(ctx context.Context, name string) ([]byte, error) {
	return retry(ctx, p, func(c *Client, _ bool) ([]byte, error) { return c.ReadFile(ctx, name) })
}

// WriteFile is [Client.WriteFile].
func (p *Peer) WriteFile(ctx context.Context, name string, data []byte) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.WriteFile(ctx, name, data) })
}

// CreateDirectory is [Client.CreateDirectory]. When the answer to an earlier
// attempt was lost, finding the name taken is success.
func (p *Peer) CreateDirectory(ctx context.Context, name string, recursive bool) error {
	return do(ctx, p, func(c *Client, again bool) error {
		return settled(c.CreateDirectory(ctx, name, recursive), again, fs.ErrExist)
	})
}

// GetMetadata is [Client.GetMetadata].
func (p *Peer) GetMetadata(ctx context.Context, name string) (Metadata, error) {
	return retry(ctx, p, func(c *Client, _ bool) (Metadata, error) { return c.GetMetadata(ctx, name) })
}

// ReadDirectory is [Client.ReadDirectory].
func (p *Peer) ReadDirectory(ctx context.Context, name string) ([]DirEntry, error) {
	return retry(ctx, p, func(c *Client, _ bool) ([]DirEntry, error) { return c.ReadDirectory(ctx, name) })
}

// RemovePath is [Client.RemovePath]. When the answer to an earlier attempt was
// lost, finding nothing is success.
func (p *Peer) RemovePath(ctx context.Context, name string, recursive, force bool) error {
	return do(ctx, p, func(c *Client, again bool) error {
		return settled(c.RemovePath(ctx, name, recursive, force), again, fs.ErrNotExist)
	})
}

// CopyPath is [Client.CopyPath].
func (p *Peer) CopyPath(ctx context.Context, from, to string, recursive bool) error {
	return do(ctx, p, func(c *Client, _ bool) error { return c.CopyPath(ctx, from, to, recursive) })
}

// Canonicalize is [Client.Canonicalize].
func (p *Peer) Canonicalize(ctx context.Context, name string) (string, error) {
	return retry(ctx, p, func(c *Client, _ bool) (string, error) { return c.Canonicalize(ctx, name) })
}

// Walk is [Client.Walk].
func (p *Peer) Walk(ctx context.Context, name string) ([]WalkEntry, error) {
	return retry(ctx, p, func(c *Client, _ bool) ([]WalkEntry, error) { return c.Walk(ctx, name) })
}
