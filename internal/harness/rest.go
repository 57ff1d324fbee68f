package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Holds reports whether the file with that slash-separated path below the home
// is part of the runtime's conversation.
func (r Runtime) Holds(name string) bool {
	segments := strings.Split(name, "/")
	return slices.ContainsFunc(r.State, func(glob string) bool {
		return matches(strings.Split(glob, "/"), segments)
	})
}

// matches matches path segments: ** stands for one or more of them, all else is
// as in [path.Match].
func matches(glob, name []string) bool {
	switch {
	case len(glob) == 0 || len(name) == 0:
		return len(glob) == len(name)
	case glob[0] == "**":
		for n := 1; n <= len(name); n++ {
			if matches(glob[1:], name[n:]) {
				return true
			}
		}
		return false
	}
	ok, err := path.Match(glob[0], name[0])
	return err == nil && ok && matches(glob[1:], name[1:])
}

// Files is what Settle needs to look at a sandbox. [*link.Peer] is one.
type Files interface {
	ReadDirectory(ctx context.Context, name string) ([]link.DirEntry, error)
	GetMetadata(ctx context.Context, name string) (link.Metadata, error)
}

var _ Files = (*link.Peer)(nil)

const (
	// restsFor is how long the state must have been unchanged, restsBy when it
	// is taken as it is, unless a row says otherwise: some agents write on after
	// they have answered.
	restsFor = 250 * time.Millisecond
	restsBy  = 3 * time.Second
	lookEach = 125 * time.Millisecond
	// The bounds of a look at files that a hostile agent may have made.
	maxStateFiles = 4096
	maxStateDepth = 32
)

// Settle waits until the files of the runtime's conversation are at rest, for
// as long as the row says at most. It is called after a turn has ended in order and
// before the files are captured. Runtimes that sync before they answer need no
// wait.
func Settle(ctx context.Context, files Files, r Runtime) error {
	if r.Synced || len(r.State) == 0 {
		return nil
	}
	tick := time.NewTicker(lookEach)
	defer tick.Stop()
	rest, most := cmp.Or(r.Rest, restsFor), cmp.Or(r.RestMost, restsBy)
	begun := time.Now()
	var last map[string]link.Metadata
	since := begun
	for {
		now, err := look(ctx, files, r)
		if err != nil {
			return fmt.Errorf("wait for the conversation to rest: %w", err)
		}
		if last == nil || !maps.Equal(now, last) {
			last, since = now, time.Now()
		}
		if time.Since(since) >= rest || time.Since(begun) >= most {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look returns the size and time of every file of the conversation.
func look(ctx context.Context, files Files, r Runtime) (map[string]link.Metadata, error) {
	l := looker{files: files, found: map[string]link.Metadata{}}
	for _, glob := range r.State {
		if err := l.expand(ctx, sandbox.HomePath, strings.Split(glob, "/"), 0); err != nil {
			return nil, err
		}
	}
	return l.found, nil
}

type looker struct {
	files Files
	found map[string]link.Metadata
}

// expand finds what matches the rest of a glob below dir, reading only the
// directories that can hold some.
func (l *looker) expand(ctx context.Context, dir string, glob []string, depth int) error {
	if depth > maxStateDepth || len(l.found) >= maxStateFiles {
		return nil
	}
	if len(glob) > 1 && !strings.ContainsAny(glob[0], `*?[\`) {
		return l.expand(ctx, path.Join(dir, glob[0]), glob[1:], depth+1)
	}
	entries, err := l.files.ReadDirectory(ctx, dir)
	if err != nil {
		return absent(err)
	}
	for _, e := range entries {
		full := path.Join(dir, e.Name)
		whole := glob[0] == "**"
		ok, err := path.Match(glob[0], e.Name)
		switch {
		case !whole && (err != nil || !ok):
			continue
		case whole && e.IsDirectory:
			err = l.expand(ctx, full, glob, depth+1)
			if err == nil && len(glob) > 1 {
				err = l.expand(ctx, full, glob[1:], depth+1)
			}
		case len(glob) > 1 && e.IsDirectory:
			err = l.expand(ctx, full, glob[1:], depth+1)
		case len(glob) == 1 && e.IsFile:
			err = l.note(ctx, full)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *looker) note(ctx context.Context, name string) error {
	if len(l.found) >= maxStateFiles {
		return nil
	}
	m, err := l.files.GetMetadata(ctx, name)
	if err != nil {
		return absent(err)
	}
	l.found[name] = m
	return nil
}

// absent forgives what has just gone away, or may not be looked at.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	var refused *link.Error
	if errors.As(err, &refused) && !errors.Is(err, link.ErrStaleEpoch) {
		return nil // not a directory any more, or the like
	}
	return err
}
