package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/tarball"
)

// builtins are the programs that every keeper has. They run in its own process,
// so they need nothing of the sandbox's image. Their names are no paths and are
// looked up before anything else: nothing in a sandbox can stand in for them.
var builtins = map[string]Program{
	link.ProgramDial:   dialProgram,
	link.ProgramTar:    tarProgram,
	link.ProgramUntar:  untarProgram,
	link.ProgramFetch:  fetchProgram,
	link.ProgramRead:   readProgram,
	link.ProgramWrite:  writeProgram,
	link.ProgramList:   listProgram,
	link.ProgramPack:   packProgram,
	link.ProgramUnpack: unpackProgram,
}

// worksOnFiles are the builtins that may wait for a disk. The others wait for the
// network, which takes no thread.
var worksOnFiles = map[string]bool{
	link.ProgramTar: true, link.ProgramUntar: true, link.ProgramRead: true, link.ProgramWrite: true,
	link.ProgramList: true, link.ProgramPack: true, link.ProgramUnpack: true,
}

// isBuiltin reports whether a name is one that only a builtin may have.
func isBuiltin(argv0 string) bool { return strings.HasPrefix(argv0, link.ProgramPrefix) }

// complain writes a program's last word.
func complain(p Proc, err error) {
	fmt.Fprintf(p.Stderr, "%s\n", err) // nobody is left to tell
}

// unblock makes reads of the program's stdin fail once ctx ends.
func unblock(ctx context.Context, p Proc) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if c, ok := p.Stdin.(io.Closer); ok {
			_ = c.Close() // a pipe; its close cannot fail
		}
	})
}

// dialProgram connects stdin and stdout with HOST:PORT inside the sandbox. It
// says "connected" on stderr once it is. It ends when the far side has said all;
// the end of stdin is passed on as a half close.
func dialProgram(ctx context.Context, p Proc) int {
	if len(p.Args) != 2 {
		complain(p, errors.New("usage: "+link.ProgramDial+" HOST:PORT"))
		return 2
	}
	conn, err := dialLoopback(ctx, p.Args[1])
	if err != nil {
		complain(p, err)
		return 1
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // the copies see it
	defer unblock(ctx, p)()
	fmt.Fprintln(p.Stderr, "connected") // the first write below tells if it fails
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := io.Copy(conn, p.Stdin); err == nil {
			_ = conn.CloseWrite() // the far side may be gone by now
		}
	})
	_, err = io.Copy(p.Stdout, conn)
	_ = conn.Close()
	if c, ok := p.Stdin.(io.Closer); ok {
		_ = c.Close()
	}
	sending.Wait()
	if err != nil && ctx.Err() == nil {
		complain(p, err)
		return 1
	}
	return 0
}

// dialLoopback connects to a port of the sandbox itself and nothing else. A name
// is never resolved: "localhost" is either loopback address.
func dialLoopback(ctx context.Context, address string) (*net.TCPConn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%q is no HOST:PORT", address)
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	} else if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return nil, fmt.Errorf("%s is not in the sandbox: only loopback addresses are dialed", host)
	}
	var first error
	for _, h := range hosts {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(h, port))
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		if first == nil {
			first = err
		}
	}
	if e, ok := errors.AsType[*os.SyscallError](first); ok {
		first = e.Err
	}
	return nil, fmt.Errorf("connect to port %s: %w", port, first)
}

// paths turns a program's arguments, each a path or a file URI, into paths of
// the host. A slash at the end is kept: it asks for a directory.
func paths(p Proc, args []string) ([]string, error) {
	var list []string
	for _, a := range args {
		clean, err := link.ParsePath(a)
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", a, err)
		}
		at := p.MapPath(clean)
		if strings.HasSuffix(a, "/") && at != "/" {
			at = strings.TrimSuffix(at, "/") + "/"
		}
		list = append(list, at)
	}
	return list, nil
}

func isRoot(arg string) bool {
	clean, err := link.ParsePath(arg)
	return err == nil && clean == "/"
}

// tarProgram writes the files or trees that its arguments name to stdout as one
// archive. Exit code 1 says that the archive is good and something is not in
// it, 2 that there is no archive. What is left out is on stderr, a line each.
func tarProgram(ctx context.Context, p Proc) int {
	names, err := paths(p, p.Args[1:])
	if err == nil && slices.ContainsFunc(p.Args[1:], isRoot) {
		err = errors.New("the root directory has no name to copy it under")
	}
	if err == nil && len(names) == 0 {
		err = errors.New("usage: " + link.ProgramTar + " PATH, or several")
	}
	var report tarball.Report
	if err == nil {
		err = tarball.Write(ctx, p.Stdout, &report, names...)
	}
	if err != nil {
		complain(p, err)
		return 2
	}
	return summary(p, report)
}

// summary reports what was left out and returns the exit code.
func summary(p Proc, r tarball.Report) int {
	if r.LeftOut == 0 {
		return 0
	}
	for _, note := range r.Notes {
		fmt.Fprintln(p.Stderr, note)
	}
	if more := r.LeftOut - int64(len(r.Notes)); more > 0 {
		fmt.Fprintf(p.Stderr, "and %d more\n", more)
	}
	return 1
}

// untarProgram reads an archive from stdin. With one argument, a directory that
// is made if need be, the archive's files go into it. With a second one, the top
// that the archive must have, they go where cp would put a copy of it. The exit
// codes are those of tarProgram.
func untarProgram(ctx context.Context, p Proc) int {
	defer unblock(ctx, p)()
	var report tarball.Report
	target, err := untarTarget(p)
	if err == nil {
		err = tarball.Extract(ctx, p.Stdin, target, &report)
	}
	if err != nil {
		complain(p, err)
		return 2
	}
	return summary(p, report)
}

func untarTarget(p Proc) (tarball.Target, error) {
	t := tarball.Target{Gate: p.Gate}
	if len(p.Args) != 2 && len(p.Args) != 3 {
		return t, errors.New("usage: " + link.ProgramUntar + " DIR, or PATH TOP")
	}
	at, err := paths(p, p.Args[1:2])
	if err != nil {
		return t, err
	}
	if len(p.Args) == 2 {
		t.Dir = at[0]
		return t, os.MkdirAll(t.Dir, 0o755)
	}
	top, err := link.ParsePath(p.Args[2])
	if err != nil {
		return t, fmt.Errorf("top %q: %w", p.Args[2], err)
	}
	if t.Top = filepath.Base(top); t.Top == "/" {
		return t, errors.New("the top has no name")
	}
	t.Dir, t.As, err = tarball.Place(at[0])
	return t, err
}
