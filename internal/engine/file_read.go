package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// FileReader is a part of a file on its way to a reader.
type FileReader struct {
	Info         FileInfo
	From, Length int64 // the part, which lies in the file

	v    *Visit
	p    *fileProgram
	tree *savedTree
	e    *checkpoint.Entry // of the tree
}

// ReadFile opens the file at a path, absolute or below the workspace, and reads n
// bytes of it from an offset on: a negative offset counts from the end, a negative
// n means all there is, and what lies behind the end is left out. For a directory,
// or what is no file, it returns what that is and a Length of 0. A session that is
// paused or has ended has its files in its latest checkpoint. It waits, at most
// wait, while the session starts or rotates. The caller closes the reader.
//
// The codes are those of [Engine.Visit], invalid with the detail "reason", and
// not_found.
func (e *Engine) ReadFile(ctx context.Context, ref Ref, name string, from, n int64, wait time.Duration) (*FileReader, error) {
	at, err := parseFilePath(name)
	if err != nil {
		return nil, err
	}
	r := &FileReader{}
	err = e.lookInto(ctx, ref, wait, func(v *Visit) error {
		p, err := v.begin(ctx, link.ProgramRead, link.PathURI(at.root), at.uri(), strconv.FormatInt(from, 10), strconv.FormatInt(n, 10))
		if err != nil {
			return err
		}
		if p.reply.File == nil {
			p.drop()
			return fmt.Errorf("read a file: the reply has none: %w", link.ErrMalformed)
		}
		*r = FileReader{Info: infoOf(at.at, *p.reply.File), From: p.reply.From, Length: p.reply.Length, v: v, p: p}
		return nil
	}, func(f sojourn.Facts) error {
		r, err = e.readSaved(ctx, f, at, from, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := at.fits(r.Info); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// fits refuses a file when a slash behind its path asked for a directory.
func (f filePath) fits(i FileInfo) error {
	if f.dir && i.Type != TypeDirectory {
		return fileRefusal("not_directory", faults["not_directory"])
	}
	return nil
}

// Copy writes the part to w, all of it unless there is an error. It may be called
// once.
func (r *FileReader) Copy(ctx context.Context, w io.Writer) error {
	if r.tree != nil {
		return r.tree.copy(ctx, w, r.e, r.From, r.Length)
	}
	n, err := r.p.copy(ctx, w)
	if err == nil && n != r.Length {
		err = fmt.Errorf("read a file: %d bytes of %d came: %w", n, r.Length, link.ErrMalformed)
	}
	return err
}

// Bytes returns the part as a reader, in place of Copy. It ends with io.EOF behind
// all of it and nowhere else. The caller closes it before the FileReader.
func (r *FileReader) Bytes(ctx context.Context) io.ReadCloser {
	if r.tree == nil {
		return &exactly{ReadCloser: r.p.ahead(ctx), left: r.Length}
	}
	from, to := io.Pipe()
	b := &fileBytes{PipeReader: from, ended: make(chan struct{})}
	go func() {
		defer close(b.ended)
		to.CloseWithError(r.Copy(ctx, to))
	}()
	return b
}

// exactly is a reader that must have so many bytes.
type exactly struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (e *exactly) Read(b []byte) (int, error) {
	n, err := e.ReadCloser.Read(b)
	e.left -= int64(n)
	if e.left < 0 || errors.Is(err, io.EOF) && e.left > 0 {
		err = fmt.Errorf("read a file: %d bytes are missing: %w", e.left, link.ErrMalformed)
	}
	return n, err
}

// fileBytes is a pipe that somebody writes a file to.
type fileBytes struct {
	*io.PipeReader
	ended chan struct{}
}

// Close ends the writing and waits for it.
func (b *fileBytes) Close() error {
	err := b.PipeReader.Close()
	<-b.ended
	return err
}

// Close ends the reading.
func (r *FileReader) Close() {
	if r.p != nil {
		r.p.drop()
		r.v.Close()
	}
}
