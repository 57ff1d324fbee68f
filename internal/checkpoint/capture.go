package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// capturing is one capture in progress.
type capturing struct {
	s          *Store
	spec       Spec
	start      time.Time
	privileged bool
	parent     *Root // nil = none
	pk         *packer
	seen       *seenChunks
	notes      noteList
	readFiles  atomic.Int64
	used       map[uint32]bool // ordinals of packs the root refers to
	records    map[Tree][]record
	tops       map[Tree]*dir
	dirs       map[Tree]*dirs
}

// Capture stores what spec names and returns a reference to it. Nothing refers
// to the new objects until the caller records it.
//
// A tree that cannot be captured whole is left out and its TreeInfo says why;
// that is no error. Errors are those of the bucket, of the context and of a
// parent that cannot be read.
func (s *Store) Capture(ctx context.Context, spec Spec) (Capture, error) {
	c := &capturing{
		s: s, spec: spec, start: time.Now(), privileged: os.Geteuid() == 0,
		records: make(map[Tree][]record), tops: make(map[Tree]*dir), dirs: make(map[Tree]*dirs),
	}
	defer c.close()
	if len(spec.Agent) > maxAgentBytes || len(spec.Agent) > 0 && !json.Valid(spec.Agent) {
		return Capture{}, fmt.Errorf("capture: agent metadata of %d bytes is no JSON or too long", len(spec.Agent))
	}
	state, err := parseGlobs(spec.State)
	if err != nil {
		return Capture{}, fmt.Errorf("capture: %w", err)
	}
	var next uint32
	if spec.Parent != nil {
		if c.parent, err = s.readRoot(ctx, *spec.Parent); err != nil {
			return Capture{}, fmt.Errorf("capture: read parent: %w", err)
		}
		next = c.parent.nextPack
		if next > maxPacks-1024 {
			// The numbers of this line are used up: begin a new one, sharing
			// nothing this once.
			c.parent, next = nil, 0
		}
	}
	c.pk = newPacker(ctx, s, next)
	out, err := c.run(ctx, state)
	if err != nil {
		// The caller's context may be over; tidying up must not wait for it.
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if derr := c.pk.discard(tidy); derr != nil {
			err = fmt.Errorf("%w (and left orphans: %w)", err, derr)
		}
		return Capture{}, fmt.Errorf("capture: %w", err)
	}
	return out, nil
}

func (c *capturing) close() {
	for t, d := range c.dirs {
		d.closeAll(c.tops[t])
	}
}

func (c *capturing) run(ctx context.Context, state globs) (Capture, error) {
	root := &Root{Agent: c.spec.Agent, Trees: make(map[Tree]TreeInfo), manifests: make(map[Tree]*manifest)}
	if c.spec.Parent != nil {
		root.Parent = c.spec.Parent.ID
	}
	c.used = make(map[uint32]bool)
	c.seen = newSeen(c)
	jobs := []*treeJob{
		{c: c, tree: Workspace, path: c.spec.Workspace, cutter: workspaceCutter, max: c.spec.WorkspaceMaxBytes},
		{c: c, tree: Conversation, path: c.spec.Home, cutter: conversationCutter, max: c.spec.ConversationMaxBytes, state: state},
	}
	for _, j := range jobs {
		usedBefore := maps.Clone(c.used)
		info, m, err := j.run(ctx)
		if err != nil {
			return Capture{}, fmt.Errorf("%s: %w", j.tree, err)
		}
		root.Trees[j.tree] = info
		if info.Captured {
			root.manifests[j.tree] = m
			continue
		}
		if c.used = usedBefore; len(usedBefore) == 0 {
			// Nothing else lies in these packs.
			if err := c.pk.discard(ctx); err != nil {
				return Capture{}, fmt.Errorf("discard the %s: %w", j.tree, err)
			}
			c.seen = newSeen(c)
		} else if err := c.pk.settle(); err != nil {
			return Capture{}, err
		}
	}
	if err := c.pk.finish(); err != nil {
		return Capture{}, err
	}
	return c.seal(ctx, root)
}

// seal stores the root and tells what was done.
func (c *capturing) seal(ctx context.Context, root *Root) (Capture, error) {
	out := Capture{
		Workspace: root.Trees[Workspace], Conversation: root.Trees[Conversation],
		Notes: c.notes.list, Counts: c.notes.counts, ReadFiles: c.readFiles.Load(),
	}
	root.packs = make(map[uint32]packEntry)
	for _, ord := range slices.Sorted(maps.Keys(c.used)) {
		p, isNew := c.pk.packs[ord]
		if !isNew {
			var ok bool
			if p, ok = c.parent.pack(ord); !ok {
				return Capture{}, corruptf("no pack %d in parent", ord)
			}
		}
		root.packs[ord] = p
		out.Packs = append(out.Packs, PackRef{ID: p.id.name(), Bytes: p.bytes, New: isNew})
	}
	for ord, p := range c.pk.packs { // of a tree that was left out in the end
		if !c.used[ord] {
			if err := c.s.DeletePack(ctx, p.id.name()); err != nil {
				return Capture{}, err
			}
		}
	}
	root.nextPack = c.pk.next
	raw := root.encode()
	if len(raw) > maxRootBytes {
		return Capture{}, fmt.Errorf("root of %d bytes: %w", len(raw), ErrLimit)
	}
	ref, err := c.s.putRoot(ctx, raw)
	if err != nil {
		return Capture{}, err
	}
	out.Ref = ref
	out.Stored = c.pk.stored + ref.Bytes
	for t, recs := range c.records {
		c.spec.Cache.save(ref.ID, t, c.tops[t], recs)
	}
	return out, nil
}

func (r *Root) pack(ord uint32) (packEntry, bool) {
	if r == nil {
		return packEntry{}, false
	}
	p, ok := r.packs[ord]
	return p, ok
}

// errTooLarge means that a tree is over its cap.
var errTooLarge = errors.New("more data than the cap")

// outcome turns the error of a tree into what TreeInfo says, or gives it back
// when it is none of the tree's.
func outcome(err error) (TreeInfo, error) {
	var pe *pathError
	if !errors.As(err, &pe) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return TreeInfo{}, err
	}
	info := TreeInfo{Detail: pe.Error()}
	switch {
	case errors.Is(err, errTooLarge):
		info.Reason = ReasonTooLarge
	case errors.Is(err, errMoved):
		info.Reason = ReasonTorn
	case errors.Is(err, ErrLimit):
		info.Reason = ReasonLimit
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return TreeInfo{}, err // of this process, not of the tree
	default:
		info.Reason = ReasonUnreadable
	}
	return info, nil
}

// noteList counts notes and keeps the first ones.
type noteList struct {
	mu     sync.Mutex
	list   []Note
	counts map[NoteKind]int64
	moved  map[Tree]bool
}

const maxNotes = 100

func (n *noteList) add(kind NoteKind, t Tree, path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.counts == nil {
		n.counts, n.moved = make(map[NoteKind]int64), make(map[Tree]bool)
	}
	n.counts[kind]++
	if kind == NoteVanished || kind == NoteReplaced || kind == NoteChanged {
		n.moved[t] = true
	}
	if len(n.list) < maxNotes {
		n.list = append(n.list, Note{kind, t, path})
	}
}

func (n *noteList) movedIn(t Tree) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.moved[t]
}

// seenChunks finds chunks that are stored already: by the parent, or earlier in
// this capture. It is bounded; what it forgets is stored twice.
type seenChunks struct {
	c     *capturing
	once  sync.Once
	err   error
	asked atomic.Int64 // bytes of chunks looked for

	mu sync.Mutex
	m  map[Digest]seenAt
}

type seenAt struct {
	place
	len uint32
}

const maxSeen = 1 << 19

func newSeen(c *capturing) *seenChunks {
	return &seenChunks{c: c, m: make(map[Digest]seenAt)}
}

// load reads the chunks of the parent, once.
func (s *seenChunks) load(ctx context.Context) error {
	s.once.Do(func() {
		if s.c.parent == nil {
			return
		}
		for _, t := range treeOrder {
			if s.err = s.loadTree(ctx, t); s.err != nil {
				return
			}
		}
	})
	return s.err
}

func (s *seenChunks) loadTree(ctx context.Context, t Tree) error {
	cur := s.c.s.newCursor(ctx, s.c.parent, t)
	for {
		e, err := cur.next()
		if err != nil {
			return fmt.Errorf("read parent: %w", err)
		}
		if e == nil || s.full() {
			return nil
		}
		err = cur.chunksOf(e, func(_ int64, c *chunk) error {
			if !c.hole {
				s.add(c)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read parent: %w", err)
		}
	}
}

func (s *seenChunks) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m) >= maxSeen
}

// find sets the place of c if it is stored.
func (s *seenChunks) find(c *chunk) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.m[c.hash]
	if !ok || int64(at.len) != c.len {
		return false
	}
	c.at = at.place
	return true
}

func (s *seenChunks) add(c *chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.m[c.hash]; !ok && len(s.m) < maxSeen {
		s.m[c.hash] = seenAt{c.at, uint32(c.len)}
	}
}
