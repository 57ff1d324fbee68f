package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// Verify reads and verifies every byte that a checkpoint refers to: the root,
// each page, each segment with a chunk of it, each chunk, and the frame of every
// pack. Nil means that Restore finds what Capture saw.
func (s *Store) Verify(ctx context.Context, ref Ref) error {
	return s.verify(ctx, ref, nil)
}

// VerifyNew does the same but leaves out the packs that an earlier, verified
// checkpoint refers to as well. Its cost is that of what was added.
func (s *Store) VerifyNew(ctx context.Context, ref, verified Ref) error {
	return s.verify(ctx, ref, &verified)
}

func (s *Store) verify(ctx context.Context, ref Ref, base *Ref) error {
	doing := fmt.Sprintf("verify %s", ref.ID)
	root, err := s.readRoot(ctx, ref)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	skip := make(map[PackID]bool)
	if base != nil {
		old, err := s.readRoot(ctx, *base)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		for _, p := range old.packs {
			skip[p.id.name()] = true
		}
	}
	segs := newSegmentReader(s, root)
	for ord, p := range root.packs {
		if skip[p.id.name()] {
			continue
		}
		if err := s.verifyFrame(ctx, p); err != nil {
			return fmt.Errorf("%s: pack %s: %w", doing, p.id.name(), err)
		}
		f, err := segs.footer(ctx, ord)
		if err == nil {
			err = s.verifyPages(ctx, p, f)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	for _, t := range treeOrder {
		if err := verifyTree(ctx, s, root, t, segs, skip); err != nil {
			return fmt.Errorf("%s: %s: %w", doing, t, err)
		}
	}
	return nil
}

// verifyFrame checks the length of a pack and the bytes that no digest covers.
func (s *Store) verifyFrame(ctx context.Context, p packEntry) error {
	key := packKey(p.id.name())
	attrs, err := s.b.Attributes(ctx, key)
	if err != nil {
		return s.bucketError("look at "+key, err)
	}
	if attrs.Size != p.bytes {
		return corruptf("%d bytes, not %d", attrs.Size, p.bytes)
	}
	head, err := s.readRange(ctx, key, 0, int64(len(packMagic)), nil)
	if err != nil {
		return err
	}
	tail, err := s.readRange(ctx, key, p.bytes-12, 12, nil)
	if err != nil {
		return err
	}
	if string(head) != string(packMagic) || string(tail[4:]) != string(packTail) || int64(binary.BigEndian.Uint32(tail)) != p.footer {
		return corruptf("frame")
	}
	return nil
}

// verifyPages checks the stored bytes of the pages in a pack. A page is named by
// what it decompresses to, and a frame has bits that make no difference there.
func (s *Store) verifyPages(ctx context.Context, p packEntry, f *footer) error {
	key := packKey(p.id.name())
	var buf []byte
	for _, r := range f.regions {
		if r.segment >= 0 {
			continue
		}
		var err error
		if buf, err = s.readRange(ctx, key, r.off, r.stored, buf); err != nil {
			return err
		}
		if err := checkHash(buf, r.hash, fmt.Sprintf("page at byte %d of pack %s", r.off, p.id.name())); err != nil {
			return err
		}
	}
	return nil
}

// chunkRun is chunks of one segment, to be verified together.
type chunkRun struct {
	at     place
	path   string
	chunks []chunk
}

func verifyTree(ctx context.Context, s *Store, root *Root, t Tree, segs *segmentReader, skip map[PackID]bool) error {
	g, ctx := errgroup.WithContext(ctx)
	runs := make(chan chunkRun, s.workers)
	for range s.workers {
		g.Go(func() error {
			for r := range runs {
				if err := r.verify(ctx, segs); err != nil {
					return &pathError{r.path, err}
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(runs)
		return collectRuns(ctx, s.newCursor(ctx, root, t), skip, runs)
	})
	return g.Wait()
}

// collectRuns reads all pages of a tree and hands out its chunks.
func collectRuns(ctx context.Context, cur *cursor, skip map[PackID]bool, runs chan<- chunkRun) error {
	var run chunkRun
	send := func() error {
		if len(run.chunks) == 0 {
			return nil
		}
		select {
		case runs <- run:
			run = chunkRun{}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		e, err := cur.next()
		if err != nil {
			return err
		}
		if e == nil {
			return send()
		}
		err = cur.chunksOf(e, func(_ int64, c *chunk) error {
			if c.hole || skip[cur.root.packs[c.at.pack].id.name()] {
				return nil
			}
			at := place{pack: c.at.pack, seg: c.at.seg}
			if run.at != at || len(run.chunks) >= taskPieces {
				if err := send(); err != nil {
					return err
				}
				run = chunkRun{at: at, path: e.Path}
			}
			run.chunks = append(run.chunks, *c)
			return nil
		})
		if err != nil {
			return err
		}
	}
}

func (r *chunkRun) verify(ctx context.Context, segs *segmentReader) error {
	seg, err := segs.get(ctx, r.at.pack, r.at.seg)
	if err != nil {
		return err
	}
	var errs []error
	for i := range r.chunks {
		if _, err := bytesOf(&r.chunks[i], seg); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
