package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// copySpool is how much of an archive may lie in the sandbox, read and not sent.
const copySpool = 4 << 20

// maxPath bounds a path that a caller names.
const maxPath = 4096

// maxSaid bounds what is kept of a program's complaints.
const maxSaid = 16 << 10

// inSandbox reads a path as a caller gives it: absolute, or below the workspace.
// A slash at its end is kept.
func inSandbox(p string) (string, error) {
	if len(p) > maxPath || strings.ContainsRune(p, 0) {
		return "", sojourn.Errorf(sojourn.CodeInvalid, "The path is too long, or holds a NUL byte.")
	}
	clean := path.Clean(p)
	if !path.IsAbs(p) {
		clean = path.Join(sandbox.WorkspacePath, p)
	}
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean, nil
}

// said collects what a program complains of.
type said struct{ text []byte }

func (s *said) add(b []byte) {
	s.text = append(s.text, b[:min(len(b), maxSaid-len(s.text))]...)
}

// String returns it as text on one line.
func (s *said) String() string {
	return strings.TrimSpace(strings.ToValidUTF8(string(s.text), string(utf8.RuneError)))
}

// Download is a file or tree on its way out of a sandbox, as a tar archive.
type Download struct {
	p     *Process
	notes said
	held  []Output
	exit  *Exit
}

// CopyOut begins to copy the file or tree at a path, absolute or below the
// workspace. It returns once there is something to read: a path that is not there
// is refused. The caller closes it.
func (v *Visit) CopyOut(ctx context.Context, name string) (*Download, error) {
	at, err := inSandbox(name)
	if err != nil {
		return nil, err
	}
	p, err := v.start(ctx, link.StartParams{
		ProcessID: v.e.passing(copyPrefix), Argv: []string{link.ProgramTar, link.PathURI(at)}, Cwd: "/",
		Retain: link.RetainAck, SpoolBytes: copySpool,
	})
	if err != nil {
		return nil, err
	}
	d := &Download{p: p}
	if err := d.fill(ctx); err != nil {
		d.Close()
		return nil, err
	}
	if d.exit != nil && len(d.held) == 0 {
		d.Close()
		return nil, d.refused()
	}
	return d, nil
}

// fill reads until there is a piece of the archive, or its end.
func (d *Download) fill(ctx context.Context) error {
	for len(d.held) == 0 && d.exit == nil {
		out, exit, err := d.p.Next(ctx)
		if err != nil {
			return err
		}
		d.exit = exit
		for _, o := range out {
			if o.Stderr {
				d.notes.add(o.Data)
			} else {
				d.held = append(d.held, o)
			}
		}
	}
	return nil
}

// refused says why there is no archive.
func (d *Download) refused() error {
	if d.exit.Code != nil && *d.exit.Code == 2 {
		return sojourn.Errorf(sojourn.CodeNotFound, "The path cannot be copied: %s.", d.notes.String())
	}
	return fmt.Errorf("copy out of the sandbox: the program ended with %s", d.exit)
}

// Next returns the next piece of the archive, valid until the next call; io.EOF
// behind the last one. Any other error means that the archive is cut short.
func (d *Download) Next(ctx context.Context) ([]byte, error) {
	if err := d.fill(ctx); err != nil {
		return nil, err
	}
	if len(d.held) > 0 {
		piece := d.held[0].Data
		d.held = d.held[1:]
		return piece, nil
	}
	if d.exit.Code == nil || *d.exit.Code > 1 {
		return nil, d.refused()
	}
	return nil, io.EOF
}

// LeftOut returns, once Next has returned io.EOF, what is not in the archive or
// not as it was, a line each; "" when all is.
func (d *Download) LeftOut() string { return d.notes.String() }

// Close ends the copy.
func (d *Download) Close() { d.p.Drop() }

// String says how a process ended, for logs.
func (x *Exit) String() string {
	switch {
	case x.Failure != "":
		return x.Failure
	case x.Signal != "":
		return "signal " + x.Signal
	case x.Code != nil:
		return fmt.Sprintf("code %d", *x.Code)
	}
	return "no status"
}

// CopyIn copies a tar archive into the sandbox. With top, the one top that the
// archive has, its file or tree goes where cp would put it: into the directory at
// the path, or else under that name. Without, its files go into the directory at
// the path, which is made if need be. It returns what was left out, a line each.
// An archive that is refused may have been taken in part.
func (v *Visit) CopyIn(ctx context.Context, name, top string, archive io.Reader) (leftOut string, err error) {
	at, err := inSandbox(name)
	if err != nil {
		return "", err
	}
	argv := []string{link.ProgramUntar, link.PathURI(at)}
	if top != "" {
		if strings.ContainsAny(top, "/\x00") || top == "." || top == ".." || len(top) > maxPath {
			return "", sojourn.Errorf(sojourn.CodeInvalid, "top: this is no file name.")
		}
		argv = append(argv, link.PathURI("/"+top))
	}
	p, err := v.start(ctx, link.StartParams{
		ProcessID: v.e.passing(copyPrefix), Argv: argv, Cwd: "/", PipeStdin: true, Retain: link.RetainRing,
	})
	if err != nil {
		return "", err
	}
	defer p.Drop()
	if err := p.feed(ctx, archive); err != nil {
		return "", err
	}
	return p.verdict(ctx)
}

// feed gives the process all of r as input, or as much as it wants.
func (p *Process) feed(ctx context.Context, r io.Reader) error {
	buf := make([]byte, readBytes)
	for at := int64(0); ; {
		n, err := readAll(r, buf)
		if err != nil && err != io.EOF { //nolint:errorlint // an error that wraps it is an archive that broke off
			return unread(ctx, err, "archive")
		}
		if n > 0 {
			switch err := p.Write(ctx, "in", at, buf[:n]); {
			case errors.Is(err, ErrInputOver):
				return nil
			case err != nil:
				return err
			}
			at += int64(n)
		}
		if err != nil {
			return p.CloseInput(ctx)
		}
	}
}

// verdict waits for the end of a program that takes an archive.
func (p *Process) verdict(ctx context.Context) (leftOut string, err error) {
	var notes said
	for {
		out, exit, err := p.Next(ctx)
		if err != nil {
			return "", err
		}
		for _, o := range out {
			notes.add(o.Data)
		}
		switch {
		case exit == nil:
			continue
		case exit.Code != nil && *exit.Code < 2:
			return notes.String(), nil
		case exit.Code != nil && *exit.Code == 2:
			return "", sojourn.Errorf(sojourn.CodeInvalid, "The archive was refused: %s.", notes.String())
		}
		return "", fmt.Errorf("copy into the sandbox: the program ended with %s", exit)
	}
}

// Port is a connection to a port inside a sandbox.
type Port struct {
	*Process
	first []Output // came with the word that the connection stands
}

// Dial connects to a loopback port of the sandbox. A port that nobody listens on
// is refused. The caller closes the connection with Drop.
func (v *Visit) Dial(ctx context.Context, port int) (*Port, error) {
	if port < 1 || port > 65535 {
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "port: use a number from 1 to 65535.")
	}
	p, err := v.start(ctx, link.StartParams{
		ProcessID: v.e.passing(portPrefix), Argv: []string{link.ProgramDial, fmt.Sprintf("localhost:%d", port)}, Cwd: "/",
		PipeStdin: true, Retain: link.RetainAck, SpoolBytes: shellSpool,
	})
	if err != nil {
		return nil, err
	}
	out, _, err := p.Next(ctx)
	if err == nil && len(out) > 0 && out[0].Stderr && string(out[0].Data) == "connected\n" {
		return &Port{Process: p, first: out[1:]}, nil
	}
	p.Drop()
	if err != nil {
		return nil, err
	}
	var notes said
	for _, o := range out {
		notes.add(o.Data)
	}
	return nil, sojourn.Errorf(sojourn.CodeNotFound, "Nothing answers at port %d of the sandbox: %s.", port, notes.String())
}

// Next waits for bytes from the port. io.EOF says that the far side has said all.
func (p *Port) Next(ctx context.Context) ([]Output, error) {
	if out := p.first; len(out) > 0 {
		p.first = nil
		return out, nil
	}
	out, exit, err := p.Process.Next(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(out) > 0:
		return out, nil
	case exit.Code == nil || *exit.Code != 0:
		return nil, sojourn.Errorf(sojourn.CodeUnavailable, "The connection to the port broke.")
	}
	return nil, io.EOF
}
