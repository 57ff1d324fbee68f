package local

import (
	"context"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// coronerTime is how long a launcher may take to find out why a sandbox has ended.
const coronerTime = 10 * time.Second

// Coroner is a [Launcher] that can tell why a sandbox has ended by itself. It is asked
// once, when the process of the cell is gone and its other traces are still there. An
// empty reason means that it does not know.
type Coroner interface {
	EndOf(ctx context.Context, c *Cell) (reason sandbox.EndReason, detail string)
}

// Meter is a [Launcher] that knows what a running sandbox has used. It also bounds its
// sandboxes by itself, because their processes are not children of this server.
type Meter interface {
	Usage(ctx context.Context, c *Cell) (sandbox.Usage, error)
}

// endOf says why a sandbox that nobody ended has ended.
func (m *Machine) endOf(c *Cell) (sandbox.EndReason, string) {
	if l, ok := m.launcher.(Coroner); ok {
		ctx, cancel := context.WithTimeout(m.life, coronerTime)
		defer cancel()
		if reason, detail := l.EndOf(ctx, c); reason != "" {
			return reason, detail
		}
	}
	return sandbox.EndExited, "its first process has ended"
}

// Usage is what the sandbox has used; see sandbox.Meter.
func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) {
	var u sandbox.Usage
	err := b.Err()
	if l, ok := b.machine.launcher.(Meter); !ok {
		u, err = b.measure(ctx)
	} else if err == nil {
		u, err = l.Usage(ctx, &b.cell)
	}
	if err != nil {
		return u, fmt.Errorf("usage of sandbox %s: %w", b.cell.name(), err)
	}
	return u, nil
}
