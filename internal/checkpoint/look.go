package checkpoint

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sort"
)

// Single files are read out of a checkpoint without restoring it. Each page and
// each chunk is verified as it is read, from the root down; that a tree has no
// further entries is only known to those who read all of it.

// Find returns the entry of a path, "" being the root of a workspace; nil when
// there is none.
func (s *Store) Find(ctx context.Context, r *Root, t Tree, path string) (*Entry, error) {
	for e, err := range s.From(ctx, r, t, path) {
		if err != nil || e.Path != path {
			return nil, err
		}
		return &e, nil
	}
	return nil, nil
}

// From lists the entries of a tree from a path on, in order. The first error ends
// the list. Directories come before what is in them, and names in bytewise order.
func (s *Store) From(ctx context.Context, r *Root, t Tree, path string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		m := r.manifests[t]
		if m == nil {
			return
		}
		// The last page that does not begin behind path.
		first := sort.Search(len(m.first), func(i int) bool { return comparePaths(m.first[i], path) > 0 }) - 1
		c := s.newCursor(ctx, r, t)
		for c.page = max(0, first); c.page < len(m.pages); {
			if err := c.load(); err != nil {
				yield(Entry{}, fmt.Errorf("page %d of %s: %w", c.page, t, err))
				return
			}
			for i := range c.entries {
				if e := &c.entries[i]; comparePaths(e.Path, path) >= 0 && !yield(*e, nil) {
					return
				}
			}
		}
	}
}

// Copy writes n bytes of a file that lies in a tree to w, from an offset on. The
// part must lie in the file.
func (s *Store) Copy(ctx context.Context, w io.Writer, r *Root, t Tree, e *Entry, from, n int64) error {
	if from < 0 || n < 0 || from > e.Size || n > e.Size-from {
		return fmt.Errorf("copy %q: no bytes %d+%d in a file of %d", e.Path, from, n, e.Size)
	}
	segs := newSegmentReader(s, r)
	at := from // of the next byte to write
	err := s.newCursor(ctx, r, t).chunksOf(e, func(off int64, c *chunk) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		lo, hi := max(at-off, 0), min(from+n-off, c.len)
		if lo >= hi {
			return nil
		}
		if off+lo != at {
			return corruptf("entry %q: nothing at byte %d", e.Path, at)
		}
		at += hi - lo
		if c.hole {
			return writeZeros(w, hi-lo)
		}
		seg, err := segs.get(ctx, c.at.pack, c.at.seg)
		if err != nil {
			return err
		}
		b, err := bytesOf(c, seg)
		if err != nil {
			return err
		}
		_, err = w.Write(b[lo:hi])
		return err
	})
	if err == nil && at != from+n {
		err = corruptf("entry %q ends at byte %d of %d", e.Path, at, e.Size)
	}
	return err
}

// writeZeros writes what a hole holds.
func writeZeros(w io.Writer, n int64) error {
	block := make([]byte, min(n, 64<<10))
	for n > 0 {
		b := block[:min(n, int64(len(block)))]
		if _, err := w.Write(b); err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}
