package engine

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// maxSavedLinks bounds the links followed in one path.
const maxSavedLinks = 40

// savedTree is the workspace in the latest checkpoint of a session.
type savedTree struct {
	store *checkpoint.Store
	root  *checkpoint.Root
}

// savedTree opens the workspace that a session without a sandbox has left.
func (e *Engine) savedTree(ctx context.Context, facts sojourn.Facts, at filePath) (*savedTree, error) {
	h := facts.Head
	if h == nil || h.Root == "" {
		return nil, sojourn.Errorf(sojourn.CodeNotFound, "The session has no sandbox, and has left no files.")
	}
	if _, saved := at.rest(); !saved {
		return nil, sojourn.Errorf(sojourn.CodeNotFound, "The session has no sandbox now: only the files of its workspace are kept.")
	}
	root, err := e.cfg.Checkpoints.Read(ctx, checkpoint.Ref{ID: checkpoint.RootID(h.Root), Bytes: h.RootBytes})
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", h.ID, err)
	}
	return &savedTree{store: e.cfg.Checkpoints, root: root}, nil
}

// find returns what a path leads to; with follow through a link at its end, too.
// Links lead where they would in a sandbox, and out of the workspace nowhere.
func (t *savedTree) find(ctx context.Context, name string, follow bool) (*checkpoint.Entry, error) {
	escapes := fileRefusal("escapes", faults["escapes"])
	done, todo, links := "", name, 0
	for {
		e, err := t.entry(ctx, done)
		if err != nil || todo == "" {
			return e, err
		}
		if e.Type != checkpoint.TypeDir {
			return nil, fileRefusal("not_directory", faults["not_directory"])
		}
		first, rest, _ := strings.Cut(todo, "/")
		switch first {
		case "", ".":
			todo = rest
			continue
		case "..":
			if done == "" {
				return nil, escapes
			}
			done, todo = strings.TrimPrefix(path.Dir("/"+done), "/"), rest
			continue
		}
		next, err := t.entry(ctx, path.Join(done, first))
		if err != nil {
			return nil, err
		}
		if next.Type != checkpoint.TypeSymlink || rest == "" && !follow {
			done, todo = path.Join(done, first), rest
			continue
		}
		if links++; links > maxSavedLinks {
			return nil, fileRefusal("loop", faults["loop"])
		}
		target := next.Target
		if path.IsAbs(target) {
			below, ok := strings.CutPrefix(target, sandbox.WorkspacePath)
			if !ok || below != "" && below[0] != '/' {
				return nil, escapes
			}
			done, target = "", below
		}
		if todo = target; rest != "" {
			todo += "/" + rest
		}
		if len(todo) > maxPath {
			return nil, fileRefusal("too_long", faults["too_long"])
		}
	}
}

// entry returns the entry of a path without links; of a file with several names
// the one that has its content.
func (t *savedTree) entry(ctx context.Context, name string) (*checkpoint.Entry, error) {
	e, err := t.store.Find(ctx, t.root, checkpoint.Workspace, name)
	if err == nil && e != nil && e.Type == checkpoint.TypeHardlink {
		e, err = t.store.Find(ctx, t.root, checkpoint.Workspace, e.Target)
	}
	if err == nil && e == nil {
		err = fileRefusal("not_found", faults["not_found"])
	}
	return e, err
}

func savedInfo(at string, e *checkpoint.Entry) FileInfo {
	i := FileInfo{Path: at, Type: TypeFile, Mode: fs.FileMode(e.Mode) & fs.ModePerm, Size: e.Size, ModTime: e.MTime.Time().UTC(), Saved: true}
	switch e.Type {
	case checkpoint.TypeDir:
		i.Type, i.Size = TypeDirectory, 0
	case checkpoint.TypeSymlink:
		i.Type, i.Size, i.Target = TypeSymlink, 0, e.Target
	}
	return i
}

func (e *Engine) readSaved(ctx context.Context, facts sojourn.Facts, at filePath, from, n int64) (*FileReader, error) {
	tree, err := e.savedTree(ctx, facts, at)
	if err != nil {
		return nil, err
	}
	rest, _ := at.rest()
	entry, err := tree.find(ctx, rest, true)
	if err != nil {
		return nil, err
	}
	r := &FileReader{Info: savedInfo(at.at, entry), tree: tree, e: entry}
	if from < 0 {
		from += r.Info.Size
	}
	r.From = max(0, min(from, r.Info.Size))
	if r.Length = r.Info.Size - r.From; n >= 0 {
		r.Length = min(r.Length, n)
	}
	return r, at.fits(r.Info)
}

func (t *savedTree) copy(ctx context.Context, w io.Writer, e *checkpoint.Entry, from, n int64) error {
	return t.store.Copy(ctx, w, t.root, checkpoint.Workspace, e, from, n)
}

func (e *Engine) listSaved(ctx context.Context, facts sojourn.Facts, at filePath, q FileQuery, after string) (FilePage, error) {
	page := FilePage{Saved: true}
	tree, err := e.savedTree(ctx, facts, at)
	if err != nil {
		return page, err
	}
	rest, _ := at.rest()
	dir, err := tree.find(ctx, rest, true)
	if err != nil {
		return page, err
	}
	if dir.Type != checkpoint.TypeDir {
		return page, fileRefusal("not_directory", faults["not_directory"])
	}
	last := ""
	for entry, err := range tree.store.From(ctx, tree.root, checkpoint.Workspace, path.Join(dir.Path, after)) {
		if err != nil {
			return page, err
		}
		name, in := inTree(dir.Path, entry.Path)
		switch {
		case !in:
			return page, nil
		case name == "" || name == after, !q.Recursive && strings.Contains(name, "/"):
			continue
		case len(page.Entries) == q.Limit:
			page.Next = fileCursor(last)
			return page, nil
		}
		if entry.Type == checkpoint.TypeHardlink {
			file, err := tree.entry(ctx, entry.Path)
			if err != nil {
				return page, err
			}
			entry = *file
		}
		page.Entries = append(page.Entries, savedInfo(path.Join(at.at, name), &entry))
		last = name
	}
	return page, nil
}

// inTree returns what is left of a relative path below a directory; "" is the
// directory itself, and that of the tree has no name.
func inTree(dir, name string) (string, bool) {
	if dir == "" {
		return name, true
	}
	return beneath(dir, name)
}

// packable returns the path of the tree that is to be packed.
func (t *savedTree) packable(ctx context.Context, at filePath) (string, error) {
	rest, _ := at.rest()
	e, err := t.find(ctx, rest, at.dir)
	if err != nil {
		return "", err
	}
	if at.dir && e.Type != checkpoint.TypeDir {
		return "", fileRefusal("not_directory", faults["not_directory"])
	}
	return e.Path, nil
}

// pack writes what is at a path of the tree as an archive: below the name top, or else
// the files of a directory under their names in it and anything else under its own.
func (t *savedTree) pack(ctx context.Context, w io.Writer, at, top string) error {
	out := tar.NewWriter(w)
	linked := map[string]string{} // the names in the archive of files with several
	for e, err := range t.store.From(ctx, t.root, checkpoint.Workspace, at) {
		if err != nil {
			return err
		}
		name, in := inTree(at, e.Path)
		if !in {
			break
		}
		switch {
		case top != "":
			name = path.Join(top, name)
		case name == "" && e.Type == checkpoint.TypeDir:
			continue
		case name == "":
			name = path.Base(at)
		}
		if err := t.packEntry(ctx, out, &e, name, linked); err != nil {
			return err
		}
	}
	return out.Close()
}

func (t *savedTree) packEntry(ctx context.Context, out *tar.Writer, e *checkpoint.Entry, name string, linked map[string]string) error {
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: e.Size, Mode: int64(e.Mode & 0o1777), ModTime: e.MTime.Time(), Format: tar.FormatPAX,
	}
	switch e.Type {
	case checkpoint.TypeDir:
		h.Typeflag, h.Name, h.Size = tar.TypeDir, name+"/", 0
	case checkpoint.TypeSymlink:
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.Target, 0
	case checkpoint.TypeHardlink:
		if first, ok := linked[e.Target]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			break
		}
		// Its other name is not in the archive.
		file, err := t.entry(ctx, e.Path)
		if err != nil {
			return err
		}
		file.Path = e.Target
		return t.packEntry(ctx, out, file, name, linked)
	default:
		linked[e.Path] = name
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	return t.copy(ctx, out, e, 0, e.Size)
}
