package link

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The programs for single files. ROOT and PATH are file URIs; PATH lies in ROOT,
// and leads out of it nowhere unless ROOT is "/". The first line of a program's
// stderr is a [FileReply].
const (
	// ProgramRead ROOT PATH OFFSET LENGTH writes a part of a file to stdout. A
	// negative OFFSET counts from the end; a negative LENGTH means all there is.
	ProgramRead = ProgramPrefix + "read"
	// ProgramWrite ROOT PATH MODE SIZE makes a file of its stdin, in one step when
	// that ends. MODE is octal, or "-" to keep that of the old file; SIZE is how many
	// bytes come, or "-".
	ProgramWrite = ProgramPrefix + "write"
	// ProgramList ROOT PATH RECURSIVE LIMIT AFTER lists a directory: on stdout as
	// [FileEntry.Append] has it, entries behind the one at the URI AFTER, if that is
	// not empty.
	ProgramList = ProgramPrefix + "list"
	// ProgramPack ROOT PATH writes what is at PATH to stdout as a tar archive, after
	// an empty reply: the files of a directory under their names in it, anything else
	// under its own. Behind the archive stderr names what is not in it, a line each.
	ProgramPack = ProgramPrefix + "pack"
	// ProgramUnpack ROOT PATH reads a tar archive from stdin, into the directory at
	// PATH, which is made if need be. Its reply has the bytes of all files as Length,
	// and how many entries were made; lines behind it name what was left out.
	ProgramUnpack = ProgramPrefix + "unpack"
)

// FaultArchive is the fault of an archive that is refused; what came before the
// entry that Detail names is there.
const FaultArchive = "archive"

// FileReply is what a program for files says of what it has found.
type FileReply struct {
	File *FileStat `json:"file,omitempty"`
	// From and Length are the part that follows.
	From   int64 `json:"from,omitempty"`
	Length int64 `json:"length,omitempty"`
	// Entries is how many files, directories and links were made of an archive.
	Entries int64 `json:"entries,omitempty"`
	// More says of a listing that there are further entries.
	More bool `json:"more,omitempty"`
	// Fault is why there is nothing: one of the kinds of package files.
	Fault  string `json:"fault,omitempty"`
	Detail string `json:"detail,omitempty"` // for people
}

// FileStat describes what has a name.
type FileStat struct {
	Type    string   `json:"type"` // "file", "directory", "symlink", "other"
	Mode    uint32   `json:"mode"` // permission bits
	Size    int64    `json:"size"`
	ModTime FileTime `json:"modTime"`
}

// FileTime is a time with all its nanoseconds, however far away.
type FileTime struct {
	Sec  int64 `json:"sec"`
	Nsec int64 `json:"nsec"`
}

// Time returns t in UTC.
func (t FileTime) Time() time.Time { return time.Unix(t.Sec, t.Nsec).UTC() }

// maxReply bounds the line of a reply.
const maxReply = 16 << 10

// ParseFileReply reads a line that a program has written.
func ParseFileReply(line []byte) (FileReply, error) {
	var r FileReply
	if len(line) > maxReply {
		return r, fmt.Errorf("a reply of %d bytes: %w", len(line), ErrMalformed)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("read a reply: %w: %w", ErrMalformed, err)
	}
	if f := r.File; r.From < 0 || r.Length < 0 || r.Entries < 0 || f != nil && (f.Size < 0 || r.From > f.Size || r.Length > f.Size-r.From || f.Mode > 0o7777) {
		return r, fmt.Errorf("a reply with impossible numbers: %w", ErrMalformed)
	}
	return r, nil
}

// FileEntry is an entry of a listing.
type FileEntry struct {
	FileStat
	Path   string // from the directory that is listed; bytes
	Target string // of a symbolic link
	Closed bool   // a directory whose entries are left out
}

// Append adds the entry in the form in which a listing travels: the numbers as
// text, then path and target, each part ended by a NUL.
func (e *FileEntry) Append(b []byte) []byte {
	b = append(b, e.Type...)
	for _, n := range []int64{int64(e.Mode), e.Size, e.ModTime.Sec, e.ModTime.Nsec} {
		b = append(b, ' ')
		b = strconv.AppendInt(b, n, 10)
	}
	if e.Closed {
		b = append(b, " closed"...)
	}
	b = append(b, 0)
	b = append(b, e.Path...)
	b = append(b, 0)
	b = append(b, e.Target...)
	return append(b, 0)
}

// maxEntry bounds an entry as it travels.
const maxEntry = 3 * 4096

// NextFileEntry takes the first entry off b. ok is false when it is not all there
// yet. A path that leads anywhere but below is an error.
func NextFileEntry(b []byte) (e FileEntry, rest []byte, ok bool, err error) {
	bad := fmt.Errorf("an entry of a listing: %w", ErrMalformed)
	var parts [3]string
	rest = b
	for i := range parts {
		part, after, found := bytes.Cut(rest, []byte{0})
		if !found {
			if len(b) > maxEntry {
				return e, nil, false, bad
			}
			return e, b, false, nil
		}
		parts[i], rest = string(part), after
	}
	e.Path, e.Target = parts[1], parts[2]
	numbers := strings.Split(parts[0], " ")
	if len(numbers) == 6 && numbers[5] == "closed" {
		e.Closed, numbers = true, numbers[:5]
	}
	if len(numbers) != 5 || len(b)-len(rest) > maxEntry || !below(e.Path) {
		return e, nil, false, bad
	}
	e.Type = numbers[0]
	mode, err1 := strconv.ParseUint(numbers[1], 10, 12)
	size, err2 := strconv.ParseInt(numbers[2], 10, 64)
	sec, err3 := strconv.ParseInt(numbers[3], 10, 64)
	nsec, err4 := strconv.ParseInt(numbers[4], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil || size < 0 {
		return e, nil, false, bad
	}
	e.Mode, e.Size, e.ModTime = uint32(mode), size, FileTime{sec, nsec}
	return e, rest, true, nil
}

// below reports whether a path stays in the directory that it begins in.
func below(p string) bool {
	for name := range strings.SplitSeq(p, "/") {
		if !validName(name) {
			return false
		}
	}
	return true
}
