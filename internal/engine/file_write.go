package engine

import (
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
	err := e.within(ctx, func() (*Visit, error) { return e.Visit(ctx, ref, wait) }, func(v *Visit) error {
		var err error
		for i := len(done); i < len(list) && err == nil; i++ {
			var info FileInfo
			if info, err = v.writeFile(ctx, paths[i], list[i]); err == nil {
				done = append(done, info)
			} else if replaced(err) && rewind(list[i].Data) != nil {
				err = &sojourn.Error{
					Code: sojourn.CodeUnavailable, Cause: err, RetryAfter: time.Second,
					Message: "The sandbox was replaced while the file was written. The old file stays. Send it again.",
				}
			}
		}
		if len(done) == 0 || err != nil && replaced(err) {
			return err
		}
		if noted := v.note(ctx, done); err == nil {
			err = noted
		}
		if err == nil {
			v.Close()
		}
		return err
	})
	return done, err
}

// rewind brings a reader back to its beginning, if it can go there.
func rewind(r io.Reader) error {
	s, ok := r.(io.Seeker)
	if !ok {
		return io.ErrNoProgress
	}
	_, err := s.Seek(0, io.SeekStart)
	return err
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
