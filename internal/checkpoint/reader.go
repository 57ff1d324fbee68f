package checkpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"iter"

	"github.com/klauspost/compress/zstd"
)

// Read returns the root of a checkpoint: sizes, packs, parent, metadata.
func (s *Store) Read(ctx context.Context, ref Ref) (*Root, error) {
	return s.readRoot(ctx, ref)
}

// Entries lists a tree in order. The first error ends the list. The digest of
// the tree is verified before the list ends without error.
func (s *Store) Entries(ctx context.Context, r *Root, t Tree) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		c := s.newCursor(ctx, r, t)
		for {
			e, err := c.next()
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if e == nil || !yield(*e, nil) {
				return
			}
		}
	}
}

// cursor reads the entries of a tree in order and checks all that can be
// checked without reading content: digests, order, parents, counts.
type cursor struct {
	ctx     context.Context
	root    *Root
	tree    Tree
	m       *manifest
	pages   pageReader
	entries []Entry
	pos     int
	page    int
	n       int64 // entries so far
	bytes   int64
	digest  treeDigest
	last    string
	above   []string // directories around the last entry
}

func (s *Store) newCursor(ctx context.Context, r *Root, t Tree) *cursor {
	return &cursor{ctx: ctx, root: r, tree: t, m: r.manifests[t], pages: pageReader{s: s, root: r}}
}

// next returns the next entry, or nil at the end. It is valid for ever.
func (c *cursor) next() (*Entry, error) {
	for c.pos == len(c.entries) {
		if c.m == nil || c.page == len(c.m.pages) {
			return nil, c.end()
		}
		if err := c.load(); err != nil {
			return nil, fmt.Errorf("page %d of %s: %w", c.page, c.tree, err)
		}
	}
	e := &c.entries[c.pos]
	if err := c.check(e); err != nil {
		return nil, err
	}
	c.pos++
	c.n++
	c.bytes += e.Size
	return e, nil
}

func (c *cursor) load() error {
	raw, err := c.pages.read(c.ctx, c.m.pages, c.page)
	if err != nil {
		return err
	}
	entries, logical, err := decodePage(raw)
	if err != nil {
		return err
	}
	if len(entries) == 0 || entries[0].Path != c.m.first[c.page] {
		return corruptf("page does not begin with %q", c.m.first[c.page])
	}
	c.digest.add(logical)
	c.entries, c.pos = entries, 0
	c.page++
	return nil
}

// check makes sure that a path can be created where it says: its name is a
// name, and its directory is the directory the walk is in.
func (c *cursor) check(e *Entry) error {
	if c.n > 0 && comparePaths(c.last, e.Path) >= 0 {
		return corruptf("entry %q after %q", e.Path, c.last)
	}
	c.last = e.Path
	for i := range e.chunks {
		if !e.chunks[i].hole {
			if _, ok := c.root.packs[e.chunks[i].at.pack]; !ok {
				return corruptf("entry %q: no pack %d", e.Path, e.chunks[i].at.pack)
			}
		}
	}
	for i := range e.lists {
		if _, ok := c.m.lists[e.lists[i].physical]; !ok {
			return corruptf("entry %q: no chunk list %s", e.Path, e.lists[i].physical)
		}
	}
	if e.Path == "" {
		if c.tree != Workspace || e.Type != TypeDir {
			return corruptf("entry without a name")
		}
		c.above = append(c.above, "")
		return nil
	}
	parent, name := splitPath(e.Path)
	for len(c.above) > 0 && c.above[len(c.above)-1] != parent {
		c.above = c.above[:len(c.above)-1]
	}
	if len(c.above) == 0 && (parent != "" || c.tree == Workspace) {
		return corruptf("entry %q: no directory for it", e.Path)
	}
	if !validName(name) || len(c.above) > maxDepth+1 {
		return corruptf("entry %q: bad name", e.Path)
	}
	if e.Type == TypeHardlink && comparePaths(e.Target, e.Path) >= 0 {
		return corruptf("entry %q: link to a later entry %q", e.Path, e.Target)
	}
	if e.Type == TypeDir {
		c.above = append(c.above, e.Path)
	}
	return nil
}

func (c *cursor) end() error {
	info := c.root.Trees[c.tree]
	if !info.Captured {
		return nil
	}
	if c.n != info.Entries || c.bytes != info.Bytes {
		return corruptf("%s: %d entries of %d bytes, not %d of %d", c.tree, c.n, c.bytes, info.Entries, info.Bytes)
	}
	if got := c.digest.sum(c.tree); got != info.Digest {
		return corruptf("%s: digest %s, not %s", c.tree, got, info.Digest)
	}
	return nil
}

// chunksOf calls f for the chunks of a file in order, with their offsets.
func (c *cursor) chunksOf(e *Entry, f func(off int64, c *chunk) error) error {
	var off int64
	for i := range e.chunks {
		if err := f(off, &e.chunks[i]); err != nil {
			return err
		}
		off += e.chunks[i].len
	}
	for i := range e.lists {
		want := &e.lists[i]
		loc := c.m.lists[want.physical]
		raw, err := c.pages.read(c.ctx, []pageLoc{loc.pageLoc}, 0)
		if err != nil {
			return err
		}
		chunks, got, err := decodeList(raw)
		if err != nil {
			return err
		}
		if got != *want {
			return corruptf("entry %q: chunk list %s is another", e.Path, want.physical)
		}
		for j := range chunks {
			if _, ok := c.root.packs[chunks[j].at.pack]; !ok && !chunks[j].hole {
				return corruptf("entry %q: no pack %d", e.Path, chunks[j].at.pack)
			}
			if err := f(off, &chunks[j]); err != nil {
				return err
			}
			off += chunks[j].len
		}
	}
	return nil
}

// pageReader reads pages; those that lie together are fetched together.
type pageReader struct {
	s       *Store
	root    *Root
	buf     []byte
	pack    uint32
	from    int64
	raw     []byte
	fetched int64
}

const pageRun = 1 << 20 // bytes fetched at once

// read returns page i of the list, verified. It is valid until the next call.
func (r *pageReader) read(ctx context.Context, pages []pageLoc, i int) ([]byte, error) {
	p := pages[i]
	if len(r.buf) == 0 || r.pack != p.pack || p.off < r.from || p.off+p.stored > r.from+int64(len(r.buf)) {
		to := p.off + p.stored
		for _, q := range pages[i+1:] {
			if q.pack != p.pack || q.off < p.off || q.off > to+64<<10 || q.off+q.stored > p.off+pageRun {
				break
			}
			to = max(to, q.off+q.stored)
		}
		buf, err := r.s.readRange(ctx, packKey(r.root.packs[p.pack].id.name()), p.off, to-p.off, r.buf)
		if err != nil {
			r.buf = nil
			return nil, err
		}
		r.buf, r.pack, r.from = buf, p.pack, p.off
		r.fetched += to - p.off
	}
	stored := r.buf[p.off-r.from:][:p.stored]
	method := byte(storedZstd)
	if p.stored == p.raw {
		method = storedRaw
	}
	dec := r.s.decoders.Get().(*zstd.Decoder)
	defer r.s.decoders.Put(dec)
	raw, err := decompress(dec, r.raw[:0], stored, method, p.raw)
	if err != nil {
		return nil, err
	}
	r.raw = raw
	if sum := Digest(sha256.Sum256(raw)); sum != p.hash {
		return nil, corruptf("page has digest %s, not %s", sum, p.hash)
	}
	return raw, nil
}
