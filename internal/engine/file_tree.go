package engine

import (
	"context"
	"io"
	"path"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// FileArchive is a file or tree on its way to a reader, as a tar archive.
type FileArchive struct {
	Name  string // the last name of the path
	Saved bool   // it is of the latest checkpoint

	v    *Visit
	p    *fileProgram
	tree *savedTree
	at   string // in the tree
	top  string // that names of the tree get in front; "" for none
}

// PackFiles opens what is at a path as an archive: the files of a directory under
// their names in it, anything else under its own. A link is stored as a link; with
// a slash behind it the path is the directory that it leads to. It waits, and has
// the codes of [Engine.ReadFile]. The caller closes the archive.
func (e *Engine) PackFiles(ctx context.Context, ref Ref, name string, wait time.Duration) (*FileArchive, error) {
	at, err := parseFilePath(name)
	if err != nil {
		return nil, err
	}
	a := &FileArchive{Name: path.Base(at.at)}
	err = e.lookInto(ctx, ref, wait, func(v *Visit) error {
		a.v = v
		a.p, err = v.begin(ctx, link.ProgramPack, link.PathURI(at.root), at.uri())
		return err
	}, func(f sojourn.Facts) error {
		a.v, a.p = nil, nil
		return a.openSaved(ctx, e, f, at)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// PackSaved opens what is at a path of a bare session that is paused or has ended, as
// its latest checkpoint has it, in the form of [Visit.CopyOut]: the names begin with
// the last one of the path. It is nil for every other session: that can have a sandbox.
// It waits, and has the codes of [Engine.ReadFile].
func (e *Engine) PackSaved(ctx context.Context, ref Ref, name string, wait time.Duration) (*FileArchive, error) {
	facts, saved, err := e.saved(ctx, ref, wait)
	if err != nil || !saved {
		return nil, err
	}
	at, err := parseFilePath(name)
	if err != nil {
		return nil, err
	}
	a := &FileArchive{Name: path.Base(at.at), top: path.Base(at.at)}
	if err := a.openSaved(ctx, e, facts, at); err != nil {
		return nil, err
	}
	return a, nil
}

// openSaved makes it an archive of what the latest checkpoint has at a path.
func (a *FileArchive) openSaved(ctx context.Context, e *Engine, facts sojourn.Facts, at filePath) (err error) {
	a.Saved = true
	if a.tree, err = e.savedTree(ctx, facts, at); err == nil {
		a.at, err = a.tree.packable(ctx, at)
	}
	return err
}

// Copy writes the archive to w. Unless there is an error it is whole, but for what
// leftOut says, a line each: files that could not be read, or are no files.
func (a *FileArchive) Copy(ctx context.Context, w io.Writer) (leftOut string, err error) {
	if a.tree != nil {
		return "", a.tree.pack(ctx, w, a.at, a.top)
	}
	_, err = a.p.copy(ctx, w)
	return a.p.notes.String(), err
}

// Close ends the copy.
func (a *FileArchive) Close() {
	if a.p != nil {
		a.p.drop()
		a.v.Close()
	}
}

// Unpacked says what became of an archive.
type Unpacked struct {
	Entries int64  // files, directories and links that were made
	Bytes   int64  // of the files
	LeftOut string // what was not made, a line each
}

// UnpackFiles takes a tar archive apart in the directory at a path, which is made
// if need be. Each file is there whole or as it was before. An archive with a name
// that leads out of the directory, or without its end, or what is no archive, is
// refused with the reason "archive" and the entry's name; what came before that
// stays. It waits, and has the codes of [Engine.WriteFiles].
func (e *Engine) UnpackFiles(ctx context.Context, ref Ref, name string, archive io.Reader, wait time.Duration) (Unpacked, error) {
	at, err := parseFilePath(name)
	if err != nil {
		return Unpacked{}, err
	}
	v, err := e.Visit(ctx, ref, wait)
	if err != nil {
		return Unpacked{}, err
	}
	defer v.Close()
	p, err := v.feed(ctx, archive, link.ProgramUnpack, link.PathURI(at.root), at.uri())
	if err != nil {
		return Unpacked{}, err
	}
	defer p.drop()
	return Unpacked{p.reply.Entries, p.reply.Length, p.notes.String()}, v.noteFiles(ctx, []string{at.at}, p.reply.Length)
}
