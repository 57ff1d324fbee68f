package keeper

import (
	"sync"
	"sync/atomic"
)

// block is the memory that output is read into. A large piece of output stays in
// it on its way through the spool to the connection, so that it is copied by the
// kernel only. Whoever uses a block holds it; when nobody does it is used again. One
// that somebody forgets to release is left to the garbage collector.
type block struct {
	holders atomic.Int32
	buf     [chunkBytes]byte
}

var blocks = sync.Pool{New: func() any { return new(block) }}

// newBlock returns a block that its caller holds.
func newBlock() *block {
	b := blocks.Get().(*block)
	b.holders.Store(1)
	return b
}

// hold adds a holder; nil is no block.
func (b *block) hold() {
	if b != nil {
		b.holders.Add(1)
	}
}

// release takes a holder away; nil is no block.
func (b *block) release() {
	if b != nil && b.holders.Add(-1) == 0 {
		blocks.Put(b)
	}
}
