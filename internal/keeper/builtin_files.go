package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/files"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/tarball"
)

// The exit codes of the programs for files.
const (
	fileDone    = 0
	fileRefused = 2 // the reply has the fault
	fileBroke   = 3 // the reply was given, and what follows it is not whole
)

// reply writes a line that says what a program has found.
func reply(p Proc, r link.FileReply) {
	line, _ := json.Marshal(r)                   // of plain fields: it cannot fail
	_, _ = p.Stderr.Write(append(line, "\n"...)) // nobody is left to tell
}

// refuse says why a program for files has nothing, and returns its exit code.
func refuse(p Proc, err error) int {
	r := link.FileReply{Fault: "internal", Detail: err.Error()}
	if e, ok := errors.AsType[*files.Error](err); ok {
		r.Fault = string(e.Kind)
		if r.Detail = ""; e.Err != nil {
			r.Detail = e.Err.Error()
		}
	}
	r.Detail = bounded(r.Detail, 500)
	reply(p, r)
	return fileRefused
}

func statOf(i files.Info) link.FileStat {
	return link.FileStat{
		Type: string(i.Type), Mode: uint32(i.Mode), Size: i.Size,
		ModTime: link.FileTime{Sec: i.ModTime.Unix(), Nsec: int64(i.ModTime.Nanosecond())},
	}
}

// where says where the path of a program lies: below a root that it must not
// leave, or anywhere, as for other programs in the sandbox. Both are URIs.
func where(p Proc, root, name string) (files.Where, string, error) {
	in, err := link.ParsePath(root)
	if err != nil {
		return files.Where{}, "", fmt.Errorf("root %q: %w", root, err)
	}
	at, err := link.ParsePath(name)
	if err != nil {
		return files.Where{}, "", fmt.Errorf("path %q: %w", name, err)
	}
	if in != "/" {
		rest, ok := beneath(in, at)
		if !ok {
			return files.Where{}, "", &files.Error{Kind: files.Escapes, Path: at}
		}
		dir := p.MapPath(in)
		return files.Where{Dir: dir, Names: []string{in, dir}}, rest, nil
	}
	top, host := p.MapPath("/"), p.MapPath(at)
	if rest, ok := beneath(top, host); ok {
		return files.Where{Dir: top, Names: []string{"/"}, Open: true}, rest, nil
	}
	// A place of its own beside the root, as only the keepers of tests have. It is
	// the uppermost directory up to which both sides have the same names.
	for in, dir := at, host; ; in, dir = path.Dir(in), path.Dir(dir) {
		if p.MapPath(path.Dir(in)) != path.Dir(dir) || in == "/" {
			rest, _ := beneath(in, at)
			return files.Where{Dir: dir, Names: []string{in, dir}}, rest, nil
		}
	}
}

// beneath returns what is left of a clean path below a directory.
func beneath(dir, name string) (string, bool) {
	rest, ok := strings.CutPrefix(name+"/", strings.TrimSuffix(dir, "/")+"/")
	return strings.Trim(rest, "/"), ok
}

// readProgram writes a part of a file to stdout.
func readProgram(ctx context.Context, p Proc) int {
	if len(p.Args) != 5 {
		return refuse(p, errors.New("usage: "+link.ProgramRead+" ROOT PATH OFFSET LENGTH"))
	}
	from, err1 := strconv.ParseInt(p.Args[3], 10, 64)
	length, err2 := strconv.ParseInt(p.Args[4], 10, 64)
	w, name, err := where(p, p.Args[1], p.Args[2])
	if err := errors.Join(err1, err2, err); err != nil {
		return refuse(p, err)
	}
	f, info, err := w.OpenFile(name)
	if err != nil {
		return refuse(p, err)
	}
	stat := statOf(info)
	r := link.FileReply{File: &stat}
	if f == nil {
		reply(p, r)
		return fileDone
	}
	defer f.Close()
	if from < 0 {
		from += info.Size
	}
	r.From = max(0, min(from, info.Size))
	if r.Length = info.Size - r.From; length >= 0 {
		r.Length = min(r.Length, length)
	}
	reply(p, r)
	if err := copyPart(ctx, p.Stdout, f, r.From, r.Length); err != nil {
		complain(p, err)
		return fileBroke
	}
	return fileDone
}

// copyPart writes exactly length bytes of a file.
func copyPart(ctx context.Context, w io.Writer, f io.ReaderAt, from, length int64) error {
	const step = 256 << 10
	part := io.NewSectionReader(f, from, length)
	for left := length; left > 0; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.CopyN(w, part, min(left, step))
		if errors.Is(err, io.EOF) {
			return errors.New("the file became shorter while it was read")
		}
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// writeProgram makes a file of its stdin.
func writeProgram(ctx context.Context, p Proc) int {
	defer unblock(ctx, p)()
	if len(p.Args) != 5 {
		return refuse(p, errors.New("usage: "+link.ProgramWrite+" ROOT PATH MODE SIZE"))
	}
	o := files.Writing{Size: -1, Gate: p.Gate}
	var err1, err2 error
	if s := p.Args[3]; s != "-" {
		var mode uint64
		mode, err1 = strconv.ParseUint(s, 8, 12)
		o.Mode = new(fs.FileMode(mode))
	}
	if s := p.Args[4]; s != "-" {
		o.Size, err2 = strconv.ParseInt(s, 10, 64)
	}
	w, name, err := where(p, p.Args[1], p.Args[2])
	if err := errors.Join(err1, err2, err); err != nil {
		return refuse(p, err)
	}
	info, err := w.WriteFile(ctx, name, p.Stdin, o)
	if err != nil {
		return refuse(p, err)
	}
	stat := statOf(info)
	reply(p, link.FileReply{File: &stat})
	return fileDone
}

// listProgram lists a directory.
func listProgram(ctx context.Context, p Proc) int {
	if len(p.Args) != 6 {
		return refuse(p, errors.New("usage: "+link.ProgramList+" ROOT PATH RECURSIVE LIMIT AFTER"))
	}
	var l files.Listing
	recursive, err1 := strconv.ParseBool(p.Args[3])
	limit, err2 := strconv.Atoi(p.Args[4])
	var err3 error
	if p.Args[5] != "" {
		l.After, err3 = link.ParsePath(p.Args[5])
		l.After = strings.TrimPrefix(l.After, "/")
	}
	l.Recursive, l.Limit = recursive, limit
	w, name, err := where(p, p.Args[1], p.Args[2])
	if err := errors.Join(err1, err2, err3, err); err != nil {
		return refuse(p, err)
	}
	out := bufio.NewWriterSize(p.Stdout, 64<<10)
	var line []byte
	more, err := w.List(ctx, name, l, func(e files.Entry) error {
		entry := link.FileEntry{FileStat: statOf(e.Info), Path: e.Path, Target: e.Target, Closed: e.Closed}
		line = entry.Append(line[:0])
		_, err := out.Write(line)
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return refuse(p, err)
	}
	reply(p, link.FileReply{More: more})
	return fileDone
}

// packProgram writes what is at a path to stdout as an archive.
func packProgram(ctx context.Context, p Proc) int {
	if len(p.Args) != 3 {
		return refuse(p, errors.New("usage: "+link.ProgramPack+" ROOT PATH"))
	}
	w, name, err := where(p, p.Args[1], p.Args[2])
	if err != nil {
		return refuse(p, err)
	}
	if strings.HasSuffix(p.Args[2], "/") {
		name += "/"
	}
	dir, at, err := w.OpenParent(name, false)
	if err != nil {
		return refuse(p, err)
	}
	defer dir.Close()
	if _, err := dir.Lstat(at); err != nil {
		return refuse(p, &files.Error{Kind: files.NotFound, Path: name})
	}
	reply(p, link.FileReply{})
	var report tarball.Report
	if err := tarball.WriteOpen(ctx, p.Stdout, &report, dir, at, at); err != nil {
		complain(p, err)
		return fileBroke
	}
	return summary(p, report)
}

// unpackProgram takes the archive on stdin apart in a directory.
func unpackProgram(ctx context.Context, p Proc) int {
	defer unblock(ctx, p)()
	if len(p.Args) != 3 {
		return refuse(p, errors.New("usage: "+link.ProgramUnpack+" ROOT PATH"))
	}
	w, name, err := where(p, p.Args[1], p.Args[2])
	if err != nil {
		return refuse(p, err)
	}
	dir, err := openTarget(ctx, p, w, name)
	if err != nil {
		return refuse(p, err)
	}
	defer dir.Close()
	var report tarball.Report
	if err := tarball.ExtractInto(ctx, p.Stdin, dir, tarball.Target{Gate: p.Gate}, &report); err != nil {
		fault := link.FaultArchive
		if errors.Is(err, tarball.ErrNoSpace) {
			fault = string(files.NoSpace)
		}
		reply(p, link.FileReply{Fault: fault, Detail: bounded(err.Error(), 500)})
		return fileRefused
	}
	reply(p, link.FileReply{Length: report.Bytes, Entries: report.Files})
	return summary(p, report)
}

// openTarget opens the directory that an archive goes into, and makes it.
func openTarget(ctx context.Context, p Proc, w files.Where, name string) (*os.Root, error) {
	leave, err := p.Gate(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return w.OpenRoot(name, true)
}

// bounded shortens a text without cutting a character.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
