package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sojourn-dev/sojourn/internal/tarball"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

const copyHelp = `One of the two is ID:PATH, in the sandbox of a session; a relative PATH is below
the workspace. As with cp -r, a target that is a directory gets the copy in it;
any other is the name of the copy. Links are copied as links; owners, set-id bits
and devices are not. "-" reads or writes a tar archive instead of files.

What comes out of a sandbox never leads out of the target, whatever is in it.`

func prepareCopy(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	quiet := fs.Bool("quiet", false, "no progress")
	return func(ctx context.Context, s *shell, words []string) error {
		from, to := parsePlace(words[0]), parsePlace(words[1])
		if (from.session == "") == (to.session == "") {
			return usagef("session cp: one of the two must be ID:PATH, and the other a path here (./ in front of a name with a colon)")
		}
		remote := from
		if from.session == "" {
			remote = to
		}
		v, err := s.session(ctx, remote.session)
		if err != nil {
			return s.failure(err)
		}
		c := &copying{s: s, session: v.ID, began: time.Now(), show: !*quiet && !s.p.json && isTerminal(s.err)}
		if from.session != "" {
			err = c.out(ctx, from.path, to.path)
		} else {
			err = c.in(ctx, from.path, to.path)
		}
		return c.end(err)
	}
}

// place is one end of a copy.
type place struct{ session, path string }

// parsePlace splits ID:PATH. What has a slash before its colon is a path here.
func parsePlace(word string) place {
	session, p, ok := strings.Cut(word, ":")
	if !ok || session == "" || strings.ContainsAny(session, "/.") {
		return place{path: word}
	}
	return place{session, cmp.Or(p, ".")}
}

// copying is one copy.
type copying struct {
	s       *shell
	session string
	began   time.Time
	shown   time.Time
	show    bool
	report  tarball.Report
	leftOut []string
}

// progress rewrites the line that says how far the copy is.
func (c *copying) progress(r tarball.Report) {
	if !c.show || time.Since(c.shown) < 100*time.Millisecond {
		return
	}
	c.shown = time.Now()
	fmt.Fprintf(c.s.err, "\r\x1b[K%d files, %s, %s", r.Files, size(r.Bytes), span(time.Since(c.began)))
}

// end says what became of the copy.
func (c *copying) end(err error) error {
	if !c.shown.IsZero() {
		fmt.Fprint(c.s.err, "\r\x1b[K")
	}
	if err != nil {
		return c.s.failure(err)
	}
	left := append(c.leftOut, c.report.Notes...)
	if c.s.p.json {
		if err := c.s.p.value(map[string]any{"files": c.report.Files, "bytes": c.report.Bytes, "leftOut": append([]string{}, left...)}); err != nil {
			return err
		}
	}
	for _, note := range left {
		fmt.Fprintf(c.s.err, "sojourn: left out: %s\n", terminal.Line(note, 400))
	}
	if len(left) > 0 {
		return errors.New("the copy is not complete")
	}
	return nil
}

// out copies from the sandbox to here.
func (c *copying) out(ctx context.Context, from, to string) error {
	d, err := c.s.c.CopyOut(ctx, c.session, from)
	if err != nil {
		return err
	}
	defer d.Close()
	if to == "-" {
		c.report.Bytes, err = io.Copy(c.s.out, d)
	} else {
		err = c.take(ctx, d, from, to)
	}
	if err != nil {
		return c.cut(ctx, err)
	}
	c.leftOut = d.LeftOut()
	return nil
}

// take extracts an archive of the sandbox beneath to.
func (c *copying) take(ctx context.Context, r io.Reader, from, to string) error {
	target := tarball.Target{Top: topOf(from), Umask: umask()}
	var err error
	if target.Dir, target.As, err = tarball.Place(to); err != nil {
		return usagef("session cp: %s", terminal.Visible(err.Error(), ""))
	}
	c.report.Progress = c.progress
	return tarball.Extract(ctx, r, target, &c.report)
}

// topOf is the first name of the archive that the server makes of a path.
func topOf(from string) string {
	if !path.IsAbs(from) {
		from = path.Join("/workspace", from)
	}
	return path.Base(path.Clean(from))
}

// umask is what this process takes from the permissions of new files.
func umask() fs.FileMode {
	m := syscall.Umask(0o077)
	syscall.Umask(m)
	return fs.FileMode(m) & fs.ModePerm
}

// cut says why a copy that had begun did not end well.
func (c *copying) cut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, tarball.ErrCut) && !unreachable(err) {
		return err
	}
	why := "the connection broke"
	if v, asked := c.s.c.Session(ctx, c.session); asked == nil {
		why = "the workspace is " + terminal.Line(v.Workspace.State, 40) + " now"
	}
	return fmt.Errorf("the copy was cut short: %s", why)
}

// in copies from here into the sandbox.
func (c *copying) in(ctx context.Context, from, to string) error {
	if from == "-" {
		left, err := c.s.c.CopyIn(ctx, c.session, to, "", c.s.in)
		c.leftOut = left
		return err
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(from); err != nil {
		return usagef("session cp: %s: there is no such file here", terminal.Visible(from, ""))
	}
	r, w := io.Pipe()
	wrote := make(chan error, 1)
	c.report.Progress = c.progress
	go func() {
		err := tarball.Write(ctx, w, &c.report, from)
		w.CloseWithError(err)
		wrote <- err
	}()
	left, err := c.s.c.CopyIn(ctx, c.session, to, filepath.Base(abs), r)
	r.CloseWithError(errors.New("the server takes no more"))
	if ours := <-wrote; err == nil {
		err = ours
	}
	c.leftOut = left
	return err
}
