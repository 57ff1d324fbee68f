package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// packer writes the packs of one capture. Segments get their places before
// they are compressed, so that pages can be made without waiting; they arrive
// in any order and the footer sorts that out.
type packer struct {
	s   *Store
	ctx context.Context

	mu     sync.Mutex
	cur    *openPack // takes new segments
	next   uint32    // ordinal of the next pack
	packs  map[uint32]packEntry
	stored int64
	open   map[*openPack]bool
}

// openPack is a pack that is being written.
type openPack struct {
	ord uint32
	id  packID

	raw      int64 // allocated bytes before compression; guarded by packer.mu
	segments int   // allocated segments; guarded by packer.mu

	mu      sync.Mutex
	w       *objectWriter
	off     int64
	regions []region
	waiting int  // allocated segments that were not written yet
	sealed  bool // no more allocations
}

func newPacker(ctx context.Context, s *Store, next uint32) *packer {
	return &packer{s: s, ctx: ctx, next: next, packs: make(map[uint32]packEntry), open: make(map[*openPack]bool)}
}

// segment is raw bytes with their place, on the way to a pack.
type segment struct {
	p   *openPack
	n   uint32
	buf *[]byte // from the capture's pool
}

// alloc reserves a place for a segment of so many raw bytes. The caller must
// write it.
func (k *packer) alloc(raw int) (*openPack, uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.current(int64(raw))
	if err != nil {
		return nil, 0, err
	}
	n := p.segments
	p.segments++
	p.raw += int64(raw)
	p.mu.Lock()
	p.waiting++
	p.mu.Unlock()
	return p, uint32(n), nil
}

// current returns the pack that takes raw more bytes. k.mu is held.
func (k *packer) current(raw int64) (*openPack, error) {
	if p := k.cur; p != nil {
		if p.raw+raw <= packTarget && p.segments < maxSegments {
			return p, nil
		}
		k.cur = nil
		if p.seal() {
			k.mu.Unlock()
			err := k.complete(p)
			k.mu.Lock()
			if err != nil {
				return nil, err
			}
			if k.cur != nil {
				return k.current(raw) // another goroutine was faster
			}
		}
	}
	if k.next >= maxPacks {
		return nil, fmt.Errorf("%d packs in one line of checkpoints: %w", maxPacks, ErrLimit)
	}
	k.cur = &openPack{ord: k.next, id: newPackID()}
	k.open[k.cur] = true
	k.next++
	return k.cur, nil
}

// seal ends allocation from p and reports whether nothing is on the way, so
// that the caller must complete it.
func (p *openPack) seal() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed = true
	return p.waiting == 0
}

// write compresses a segment and appends it to its pack.
func (k *packer) write(enc *zstd.Encoder, scratch []byte, sg segment) ([]byte, error) {
	raw := *sg.buf
	stored, method := compress(enc, scratch[:0], raw)
	r := region{segment: int(sg.n), stored: int64(len(stored)), raw: int64(len(raw)), method: method, hash: sha256.Sum256(stored)}
	last, err := sg.p.append(k, r, stored, true)
	if err == nil && last {
		err = k.complete(sg.p)
	}
	return stored, err
}

// append writes one region and reports whether the pack is complete.
func (p *openPack) append(k *packer, r region, stored []byte, allocated bool) (last bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	doing := fmt.Sprintf("store pack %s", p.id.name())
	if p.w == nil {
		if p.w, err = k.s.create(k.ctx, packKey(p.id.name())); err != nil {
			return false, k.s.bucketError(doing, err)
		}
		if _, err := p.w.Write(packMagic); err != nil {
			return false, k.s.bucketError(doing, err)
		}
		p.off = int64(len(packMagic))
	}
	if _, err := p.w.Write(stored); err != nil {
		return false, k.s.bucketError(doing, err)
	}
	r.off = p.off
	p.off += r.stored
	p.regions = append(p.regions, r)
	if allocated {
		p.waiting--
	}
	return p.sealed && p.waiting == 0, nil
}

// page is a compressed page on the way to a pack.
type page struct {
	loc    *pageLoc // hash and raw are set; pack, off and stored get set
	stored []byte
	method byte
}

// writePages appends pages to the current pack and fills in their places.
func (k *packer) writePages(pages []page) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(pages) == 0 {
		return nil
	}
	p, err := k.current(0)
	if err != nil {
		return err
	}
	for _, pg := range pages {
		r := region{segment: -1, stored: int64(len(pg.stored)), raw: pg.loc.raw, method: pg.method, hash: sha256.Sum256(pg.stored)}
		if _, err := p.append(k, r, pg.stored, false); err != nil {
			return err
		}
		p.mu.Lock()
		pg.loc.pack, pg.loc.off, pg.loc.stored = p.ord, p.off-r.stored, r.stored
		p.mu.Unlock()
	}
	return nil
}

// complete writes footer and trailer and makes the pack durable. Exactly one
// goroutine gets to call it for a pack, and nothing else uses the pack then.
func (k *packer) complete(p *openPack) error {
	if p.w == nil {
		return nil
	}
	doing := "store pack " + string(p.id.name())
	foot := encodeFooter(p.regions)
	tail := append([]byte(nil), foot...)
	tail = binary.BigEndian.AppendUint32(tail, uint32(len(foot)))
	tail = append(tail, packTail...)
	if _, err := p.w.Write(tail); err != nil {
		return k.s.bucketError(doing, err)
	}
	w := p.w
	p.w = nil
	// From here the object may exist, so discard must know of it.
	k.mu.Lock()
	delete(k.open, p)
	k.packs[p.ord] = packEntry{id: p.id, bytes: w.n, footer: int64(len(foot)), digest: sha256.Sum256(foot)}
	k.stored += w.n
	k.mu.Unlock()
	return k.s.bucketError(doing, w.commit())
}

// finish ends the last pack. All segments have been written.
func (k *packer) finish() error {
	k.mu.Lock()
	p := k.cur
	k.cur = nil
	k.mu.Unlock()
	if p == nil || !p.seal() {
		return nil
	}
	return k.complete(p)
}

// settle gives up segments that were allocated and will not be written, because
// the tree they belong to was left out. No segment may be on the way.
func (k *packer) settle() error {
	for p := range maps.Clone(k.open) {
		p.waiting = 0
		if p.sealed {
			if err := k.complete(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// discard gives up everything written: open objects are aborted and finished
// ones deleted. No segment may be on the way. What cannot be deleted is an
// orphan that nothing refers to.
func (k *packer) discard(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.open {
		if p.w != nil {
			p.w.abort()
			p.w = nil
		}
	}
	k.open, k.cur = make(map[*openPack]bool), nil
	var errs []error
	for _, e := range k.packs {
		errs = append(errs, k.s.DeletePack(ctx, e.id.name()))
	}
	k.packs = make(map[uint32]packEntry)
	return errors.Join(errs...)
}
