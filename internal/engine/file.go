package engine

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// FileType is what kind of thing has a name.
type FileType string

// The file types.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other" // a pipe, a socket, a device
)

// FileInfo describes a file of a session.
type FileInfo struct {
	Path    string // absolute in the sandbox; bytes
	Type    FileType
	Mode    fs.FileMode // permission bits
	Size    int64       // of a file, in bytes
	ModTime time.Time   // in UTC
	Target  string      // in a listing: what a symbolic link holds; bytes
	// Closed says of a directory in a listing that what is in it is left out: the
	// sandbox may not read it, or it lies too deep.
	Closed bool
	// Saved says that this is of the session's latest checkpoint, because it has no
	// sandbox any more or for now.
	Saved bool
}

// Survives reports whether the file is part of what a rotation carries.
func (i FileInfo) Survives() bool { return survives(i.Path) }

func survives(at string) bool {
	_, ok := beneath(sandbox.WorkspacePath, at)
	return ok
}

// Tag changes when the content of a file does. It stays the same across a
// rotation, so that a download can be resumed behind one.
func (i FileInfo) Tag() string {
	return fmt.Sprintf("%x-%x", i.ModTime.UnixNano(), i.Size)
}

// infoOf is what a sandbox has told of a file.
func infoOf(at string, s link.FileStat) FileInfo {
	i := FileInfo{Path: at, Type: FileType(s.Type), Mode: fs.FileMode(s.Mode) & fs.ModePerm, Size: s.Size, ModTime: s.ModTime.Time()}
	switch i.Type {
	case TypeFile, TypeDirectory, TypeSymlink:
	default:
		i.Type = TypeOther
	}
	return i
}

// filePath is a path as a caller names it, and where it may lead.
type filePath struct {
	root string // the workspace, or "/": see link.ProgramRead
	at   string // absolute and clean
	dir  bool   // a slash behind it asks for a directory
}

// parseFilePath reads the path of a file: absolute, or below the workspace. One
// that names the workspace may not leave it, by ".." or, later, by a link.
func parseFilePath(p string) (filePath, error) {
	if len(p) > maxPath || strings.ContainsRune(p, 0) {
		return filePath{}, fileRefusal("too_long", "The path is too long, or holds a NUL byte.")
	}
	full := p
	if !path.IsAbs(p) {
		full = sandbox.WorkspacePath + "/" + p
	}
	f := filePath{root: "/", at: path.Clean(full), dir: strings.HasSuffix(p, "/")}
	_, in := beneath(sandbox.WorkspacePath, f.at)
	if in {
		f.root = sandbox.WorkspacePath
	} else if _, named := beneath(sandbox.WorkspacePath, full); named {
		return f, fileRefusal("escapes", "The path leads out of the workspace.")
	}
	return f, nil
}

// FilePath returns where a path of a caller, absolute or below the workspace, lies
// in a sandbox. The code is invalid, as that of the calls for files.
func FilePath(p string) (string, error) {
	f, err := parseFilePath(p)
	return f.at, err
}

// uri is the path as the programs for files take it.
func (f filePath) uri() string {
	if f.dir && f.at != "/" {
		return link.PathURI(f.at + "/")
	}
	return link.PathURI(f.at)
}

// rest is the path from the workspace on; "" is the workspace. saved is false for
// one that no checkpoint has.
func (f filePath) rest() (rest string, saved bool) {
	return beneath(sandbox.WorkspacePath, f.at)
}

// beneath returns what is left of a path below a directory.
func beneath(dir, name string) (string, bool) {
	rest, ok := strings.CutPrefix(name+"/", dir+"/")
	return strings.Trim(rest, "/"), ok
}

// fileRefusal is a refusal for a reason that a caller can branch on.
func fileRefusal(reason, text string) error {
	code := sojourn.CodeInvalid
	switch reason {
	case "not_found":
		code = sojourn.CodeNotFound
	case "no_space":
		code = sojourn.CodeOutOfSpace
	}
	return &sojourn.Error{Code: code, Message: text, Details: map[string]string{"reason": reason}}
}

// faults are what the programs for files refuse, in sentences.
var faults = map[string]string{
	"not_found":     "There is no such file or directory.",
	"escapes":       "The path leads out of the workspace.",
	"is_directory":  "The path is a directory.",
	"not_directory": "A part of the path is no directory.",
	"not_regular":   "The path is no regular file.",
	"denied":        "The permissions in the sandbox forbid it.",
	"loop":          "The path leads through too many links.",
	"too_long":      "The path has a name that is too long, or too many.",
	"no_space":      "The disk of the sandbox is full.",
	"cut":           "Not as many bytes came as were announced. The old file stays.",
}

// faultOf is the error that a program's reply stands for.
func faultOf(r link.FileReply) error {
	switch text, known := faults[r.Fault]; {
	case known:
		return fileRefusal(r.Fault, text)
	case r.Fault == link.FaultArchive:
		return fileRefusal(r.Fault, "The archive was refused: "+bounded(strings.ToValidUTF8(r.Detail, "�"), 500)+".")
	}
	return fmt.Errorf("a file of the sandbox: %s: %s", bounded(r.Fault, 50), bounded(r.Detail, 500))
}
