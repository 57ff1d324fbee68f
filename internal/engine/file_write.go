package engine

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// FileWrite is a file to be written.
type FileWrite struct {
	Path string       // absolute, or below the workspace
	Mode *fs.FileMode // permissions; nil keeps those of the file that is replaced
	Size int64        // of Data; negative when it is not known
	// Data is read once, and from its beginning again if the sandbox is replaced
	// meanwhile and it is an [io.Seeker].
	Data io.Reader
}

// WriteFiles writes files, one after the other: each is there whole or as it was
// before, and directories that lead to it are made. It returns what was written
// before an error, too. What it has returned is part of the next checkpoint, if it
// lies in the workspace. It waits, at most wait, while the session starts or
// rotates. The codes are those of [Engine.Visit] and [Engine.ReadFile].
func (e *Engine) WriteFiles(ctx context.Context, ref Ref, list []FileWrite, wait time.Duration) ([]FileInfo, error) {
	paths := make([]filePath, len(list))
	for i, w := range list {
		var err error
		if paths[i], err = parseFilePath(w.Path); err != nil {
			return nil, err
		}
		if paths[i].dir {
			return nil, fileRefusal("is_directory", "The path of a file must not end in a slash.")
		}
	}
	var done []FileInfo
	err := e.writeInto(ctx, ref, wait, func(v *Visit) error {
		done = done[:0]
		var err error
		for i, w := range list {
			var info FileInfo
			if info, err = v.writeFile(ctx, paths[i], w); err != nil {
				break
			}
			done = append(done, info)
		}
		if replaced(err) {
			return onceMore(list[:len(done)+1], err)
		}
		if len(done) > 0 {
			err = cmp.Or(err, v.note(ctx, done))
		}
		return err
	})
	return done, err
}

// onceMore prepares to write all again, in the next sandbox: some may not have come
// there. When that cannot be done it says so.
func onceMore(list []FileWrite, lost error) error {
	for _, w := range list {
		s, ok := w.Data.(io.Seeker)
		if ok {
			_, err := s.Seek(0, io.SeekStart)
			ok = err == nil
		}
		if !ok {
			return &sojourn.Error{
				Code: sojourn.CodeUnavailable, Cause: lost, RetryAfter: time.Second,
				Message: "The sandbox was replaced while the file was written. Send it again.",
			}
		}
	}
	return lost
}

func (v *Visit) writeFile(ctx context.Context, at filePath, w FileWrite) (FileInfo, error) {
	mode, size := "-", "-"
	if w.Mode != nil {
		mode = strconv.FormatUint(uint64(*w.Mode), 8)
	}
	if w.Size >= 0 {
		size = strconv.FormatInt(w.Size, 10)
	}
	p, err := v.feed(ctx, w.Data, link.ProgramWrite, link.PathURI(at.root), at.uri(), mode, size)
	if err != nil {
		return FileInfo{}, err
	}
	defer p.drop()
	if p.reply.File == nil {
		return FileInfo{}, fmt.Errorf("write a file: the reply has none: %w", link.ErrMalformed)
	}
	return infoOf(at.at, *p.reply.File), nil
}

// note records what was written. A capture that began in the middle does not have
// all of it, so the lease counts as used now. When the lease is over, what was
// written before its sandbox stood still is saved with the rest.
func (v *Visit) note(ctx context.Context, list []FileInfo) error {
	var paths []string
	var total int64
	for _, i := range list {
		paths, total = append(paths, i.Path), total+i.Size
	}
	return v.noteFiles(ctx, paths, total)
}

func (v *Visit) noteFiles(ctx context.Context, paths []string, total int64) error {
	return v.e.decide(ctx, v.c.session, func(_ *store.Tx, d *sojourn.Decision) error {
		d.VisitLease(v.c.epoch)
		d.NoteFiles(paths, total)
		return nil
	})
}
