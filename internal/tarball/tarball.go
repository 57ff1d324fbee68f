package tarball

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// permBits are the mode bits that travel.
const permBits = fs.ModePerm | fs.ModeSticky

// maxNotes bounds the sentences that a report holds.
const maxNotes = 20

// Report says what one call did.
type Report struct {
	Files    int64 // of every kind
	Bytes    int64 // of their contents
	LeftOut  int64 // files that are not there on the other side, or not whole
	Notes    []string
	Progress func(Report) // told after each file, if not nil; set by the caller
}

// leave counts a file that is left out and says why, if there is room.
func (r *Report) leave(name, why string) {
	r.LeftOut++
	if len(r.Notes) < maxNotes {
		r.Notes = append(r.Notes, fmt.Sprintf("%q: %s", name, why))
	}
}

func (r *Report) passed(bytes int64) {
	r.Files++
	r.Bytes += bytes
	if r.Progress != nil {
		r.Progress(*r)
	}
}

// reason is the part of an error that says why, without the paths of this side.
func reason(err error) string {
	for {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
			continue
		}
		if e, ok := errors.AsType[*os.LinkError](err); ok {
			err = e.Err
			continue
		}
		break
	}
	if text := err.Error(); text != escapes {
		return text
	}
	return "a link on the way leads out of the target"
}

// escapes is what a root says of a path that leads out of it: the error itself has
// no name that others could use.
const escapes = "path escapes from parent"

// Place decides, as cp does, where a copy goes that a user calls path: into the
// directory that is there, under its own name, or else into the parent of path
// under path's last name. as is "" in the first case. A path that ends in a
// slash must be a directory.
func Place(path string) (dir, as string, err error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return path, "", nil
	case err == nil && !strings.HasSuffix(path, "/"), errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(path, "/"):
		dir, as = filepath.Dir(path), filepath.Base(path)
		if info, err := os.Stat(dir); err != nil {
			return "", "", fmt.Errorf("%q: %s", filepath.Base(dir), reason(err))
		} else if !info.IsDir() {
			return "", "", fmt.Errorf("%q is not a directory", filepath.Base(dir))
		}
		return dir, as, nil
	case err == nil:
		return "", "", fmt.Errorf("%q is not a directory", filepath.Base(path))
	default:
		return "", "", fmt.Errorf("%q: %s", filepath.Base(path), reason(err))
	}
}
