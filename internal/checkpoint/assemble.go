package checkpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// assembler turns items into pages. Pages that the parent has are not stored
// again; new ones are kept until they are worth writing together.
type assembler struct {
	j    *treeJob
	info TreeInfo
	recs []record

	page    pageBuilder
	digest  treeDigest
	first   []string
	pages   []*pageLoc
	lists   map[Digest]*listLoc
	known   map[Digest]pageLoc // pages of the parent
	waiting []page
	bytes   int
	torn    bool
}

func newAssembler(j *treeJob) *assembler {
	a := &assembler{j: j, lists: make(map[Digest]*listLoc), known: make(map[Digest]pageLoc)}
	a.recs = make([]record, 0, len(j.recs))
	if j.c.parent == nil {
		return a
	}
	for _, m := range j.c.parent.manifests {
		for _, p := range m.pages {
			a.known[p.hash] = p
		}
	}
	return a
}

func (a *assembler) run(ctx context.Context) error {
	for {
		var it *item
		var ok bool
		select {
		case it, ok = <-a.j.queue:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !ok {
			return nil
		}
		if it.batch != nil {
			select {
			case <-it.batch.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			it.batch = nil
		}
		if it.skip {
			continue
		}
		if err := a.add(it); err != nil {
			return err
		}
	}
}

func (a *assembler) add(it *item) error {
	e := &it.e
	if it.leader != nil && it.leader.skip {
		// The name it would be linked to went away, so its bytes are unread.
		return &pathError{e.Path, fmt.Errorf("linked to %q, which is gone: %w", e.Target, errMoved)}
	}
	it.n = node{} // lets go of directories; a leader is kept for long
	if err := a.setLists(e); err != nil {
		return err
	}
	for i := range e.chunks {
		if c := &e.chunks[i]; !c.hole {
			a.info.Data += c.len
			a.j.c.used[c.at.pack] = true
		}
	}
	for i := range e.lists {
		a.info.Data += e.lists[i].data
	}
	a.info.Entries++
	a.info.Bytes += e.Size
	a.torn = a.torn || e.Torn
	if a.j.max > 0 && a.info.Data > a.j.max {
		return &pathError{e.Path, fmt.Errorf("%w of %d bytes", errTooLarge, a.j.max)}
	}
	if a.page.n > 0 && (a.page.full() || cutsPage(e.Path)) {
		if err := a.endPage(); err != nil {
			return err
		}
	}
	a.page.add(e)
	a.recs = append(a.recs, it.rec)
	e.chunks = nil
	return nil
}

// setLists moves the chunks of a long file to pages of their own.
func (a *assembler) setLists(e *Entry) error {
	parent := map[Digest]listLoc(nil)
	if p := a.j.c.parent; p != nil && p.manifests[a.j.tree] != nil {
		parent = p.manifests[a.j.tree].lists
	}
	for i := range e.lists { // of an unchanged file
		if err := a.keepList(parent, e.lists[i].physical); err != nil {
			return err
		}
	}
	if len(e.chunks) <= maxInlineChunks {
		return nil
	}
	for _, part := range splitList(e.chunks) {
		raw, l := encodeList(part)
		e.lists = append(e.lists, l)
		packs := make(map[uint32]bool)
		for i := range part {
			if c := &part[i]; !c.hole {
				packs[c.at.pack] = true
				a.j.c.used[c.at.pack] = true
				// Data is counted with the lists.
			}
		}
		if _, old := parent[l.physical]; old {
			if err := a.keepList(parent, l.physical); err != nil {
				return err
			}
			continue
		}
		if a.lists[l.physical] != nil {
			continue
		}
		loc := &listLoc{packs: slices.Sorted(maps.Keys(packs))}
		loc.hash = l.physical
		a.lists[l.physical] = loc
		if err := a.store(&loc.pageLoc, raw); err != nil {
			return err
		}
	}
	if len(e.lists) > maxChunkLists {
		return &pathError{e.Path, fmt.Errorf("%d chunk lists: %w", len(e.lists), ErrLimit)}
	}
	e.chunks = nil
	return nil
}

func (a *assembler) keepList(parent map[Digest]listLoc, name Digest) error {
	l, ok := parent[name]
	if !ok {
		return corruptf("read parent: no chunk list %s", name)
	}
	a.lists[name] = &l
	a.j.c.used[l.pack] = true
	for _, ord := range l.packs {
		a.j.c.used[ord] = true
	}
	return nil
}

func (a *assembler) endPage() error {
	first := a.page.first
	raw, logical := a.page.finish()
	a.digest.add(logical)
	loc := &pageLoc{hash: sha256.Sum256(raw)}
	a.first = append(a.first, first)
	a.pages = append(a.pages, loc)
	if len(a.pages) > maxPages {
		return &pathError{first, fmt.Errorf("%d pages: %w", maxPages, ErrLimit)}
	}
	if old, ok := a.known[loc.hash]; ok {
		*loc = old
		a.j.c.used[old.pack] = true
		return nil
	}
	return a.store(loc, raw)
}

// store compresses a page and writes it with others when there are enough.
func (a *assembler) store(loc *pageLoc, raw []byte) error {
	enc := a.j.c.s.pageEncoders.Get().(*zstd.Encoder)
	stored, method := compress(enc, nil, raw)
	a.j.c.s.pageEncoders.Put(enc)
	loc.raw = int64(len(raw))
	a.waiting = append(a.waiting, page{loc: loc, stored: stored, method: method})
	if a.bytes += len(stored); a.bytes < 4<<20 {
		return nil
	}
	return a.flush()
}

func (a *assembler) flush() error {
	if err := a.j.c.pk.writePages(a.waiting); err != nil {
		return err
	}
	for _, p := range a.waiting {
		a.j.c.used[p.loc.pack] = true
	}
	a.waiting, a.bytes = nil, 0
	return nil
}

// finish ends the last page and settles what is said of the tree.
func (a *assembler) finish() error {
	if a.page.n > 0 {
		if err := a.endPage(); err != nil {
			return err
		}
	}
	if err := a.flush(); err != nil {
		return err
	}
	a.info.Captured = true
	switch {
	case a.torn:
		a.info.Reason = ReasonTorn
	case a.j.c.notes.movedIn(a.j.tree):
		a.info.Reason = ReasonChanged
	default:
		a.info.Exact = true
	}
	a.info.Digest = a.digest.sum(a.j.tree)
	return nil
}

// manifest returns the page table. All pages have their places.
func (a *assembler) manifest() *manifest {
	m := &manifest{first: a.first, lists: make(map[Digest]listLoc, len(a.lists))}
	for _, p := range a.pages {
		m.pages = append(m.pages, *p)
	}
	for name, l := range a.lists {
		m.lists[name] = *l
	}
	return m
}
