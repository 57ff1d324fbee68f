package checkpoint

import (
	"container/list"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// segmentReader fetches, verifies and decompresses segments. Recent ones are
// kept: files that lie together are mostly restored together. It is safe for
// concurrent use; a segment that several goroutines want is fetched once.
type segmentReader struct {
	s       *Store
	root    *Root
	fetched atomic.Int64

	mu      sync.Mutex
	footers map[uint32]*loading[*footer]
	recent  map[place]*list.Element
	order   list.List // of *cached, least recently used first
	bytes   int64
}

// keptBytes bounds the decompressed segments that are kept.
const keptBytes = 32 << 20

type cached struct {
	at place // off is 0
	loading[[]byte]
}

// loading is a value that one goroutine gets and others wait for.
type loading[T any] struct {
	done chan struct{}
	v    T
	err  error
}

func newSegmentReader(s *Store, root *Root) *segmentReader {
	return &segmentReader{s: s, root: root, footers: make(map[uint32]*loading[*footer]), recent: make(map[place]*list.Element)}
}

// footer returns the footer of a pack, verified against the root.
func (r *segmentReader) footer(ctx context.Context, ord uint32) (*footer, error) {
	r.mu.Lock()
	l, ok := r.footers[ord]
	if !ok {
		l = &loading[*footer]{done: make(chan struct{})}
		r.footers[ord] = l
	}
	r.mu.Unlock()
	if ok {
		<-l.done
		return l.v, l.err
	}
	defer close(l.done)
	p, known := r.root.packs[ord]
	if !known {
		l.err = corruptf("no pack %d", ord)
		return nil, l.err
	}
	l.v, l.err = r.readFooter(ctx, p)
	if l.err != nil {
		l.err = fmt.Errorf("footer of pack %s: %w", p.id.name(), l.err)
	}
	return l.v, l.err
}

func (r *segmentReader) readFooter(ctx context.Context, p packEntry) (*footer, error) {
	const tail = packOverhead - 8
	raw, err := r.s.readRange(ctx, packKey(p.id.name()), p.bytes-tail-p.footer, p.footer, nil)
	if err != nil {
		return nil, err
	}
	r.fetched.Add(p.footer)
	if err := checkHash(raw, p.digest, "footer"); err != nil {
		return nil, err
	}
	return decodeFooter(raw, p.bytes)
}

// get returns a decompressed segment, which the caller must not change.
func (r *segmentReader) get(ctx context.Context, ord, seg uint32) ([]byte, error) {
	at := place{pack: ord, seg: seg}
	r.mu.Lock()
	e, ok := r.recent[at]
	if ok {
		r.order.MoveToBack(e)
		r.mu.Unlock()
		l := e.Value.(*cached)
		<-l.done
		return l.v, l.err
	}
	l := &cached{at: at, loading: loading[[]byte]{done: make(chan struct{})}}
	r.recent[at] = r.order.PushBack(l)
	r.mu.Unlock()
	l.v, l.err = r.load(ctx, ord, seg)
	close(l.done)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes += int64(len(l.v))
	for r.bytes > keptBytes {
		old := r.order.Front()
		c := old.Value.(*cached)
		select {
		case <-c.done:
		default:
			return l.v, l.err // still loading: it will trim
		}
		r.order.Remove(old)
		delete(r.recent, c.at)
		r.bytes -= int64(len(c.v))
	}
	return l.v, l.err
}

func (r *segmentReader) load(ctx context.Context, ord, seg uint32) ([]byte, error) {
	f, err := r.footer(ctx, ord)
	if err != nil {
		return nil, err
	}
	id := r.root.packs[ord].id.name()
	reg, ok := f.segment(seg)
	if !ok {
		return nil, corruptf("pack %s has no segment %d", id, seg)
	}
	buf := r.s.buffers.Get().(*[]byte)
	defer r.s.buffers.Put(buf)
	stored, err := r.s.readRange(ctx, packKey(id), reg.off, reg.stored, *buf)
	if err != nil {
		return nil, err
	}
	*buf = stored
	r.fetched.Add(reg.stored)
	if err := checkHash(stored, reg.hash, fmt.Sprintf("segment %d of pack %s", seg, id)); err != nil {
		return nil, err
	}
	dec := r.s.decoders.Get().(*zstd.Decoder)
	defer r.s.decoders.Put(dec)
	raw, err := decompress(dec, nil, stored, reg.method, reg.raw)
	if err != nil {
		return nil, fmt.Errorf("segment %d of pack %s: %w", seg, id, err)
	}
	return raw, nil
}

// bytesOf returns the bytes of a chunk out of its segment, verified.
func bytesOf(c *chunk, seg []byte) ([]byte, error) {
	from, to := int64(c.at.off), int64(c.at.off)+c.len
	if to > int64(len(seg)) {
		return nil, corruptf("chunk ends at byte %d of a segment of %d", to, len(seg))
	}
	b := seg[from:to]
	if sum := Digest(sha256.Sum256(b)); sum != c.hash {
		return nil, corruptf("chunk has digest %s, not %s", sum, c.hash)
	}
	return b, nil
}
