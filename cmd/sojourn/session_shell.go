package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

const shellHelp = `Without CMD it is a login shell. On a terminal the program gets a terminal of
its own; otherwise its input and output are pipes, and every byte arrives once.
The exit code is that of the program, 128 and the number of a signal that ended
it, or 127 when it could not be started.

The detach keys leave the program running; --reattach NAME takes it up again,
also from elsewhere, and shows the end of what it wrote. It runs on when the
connection or the server is lost, and until its sandbox ends. An attached shell
keeps the sandbox in use.`

// defaultDetachKeys are those that other tools have.
const defaultDetachKeys = "ctrl-p,ctrl-q"

func prepareShell(fs *flag.FlagSet) func(context.Context, *shell, []string) error {
	name := fs.String("name", "", "a `name` to find the shell by again")
	reattach := fs.String("reattach", "", "go on with the shell of this `name`")
	dir := fs.String("dir", "", "`directory` to start in; the workspace when not given")
	pipe := fs.Bool("no-tty", false, "pipes, even on a terminal")
	keys := fs.String("detach-keys", defaultDetachKeys, "`keys` that detach, such as ctrl-a,d; none for no keys")
	return func(ctx context.Context, s *shell, words []string) error {
		detach, err := parseKeys(*keys)
		if err != nil {
			return usagef("session shell: --detach-keys: %s", err)
		}
		if *reattach != "" && (*name != "" || len(words) > 1 || *dir != "") {
			return usagef("session shell: --reattach goes with neither --name, --dir nor a command")
		}
		v, err := s.session(ctx, words[0])
		if err != nil {
			return s.failure(err)
		}
		o := client.Shell{
			Session: v.ID, Name: *name, Argv: words[1:], Dir: *dir, Stdin: s.in, Stdout: s.out, Stderr: s.err,
			Patience: defaultPatience, Term: os.Getenv("TERM"),
		}
		if *reattach != "" {
			o.Name, o.Reattach = *reattach, true
		}
		return s.attach(ctx, o, detach, !*pipe)
	}
}

// attach connects this process with a shell until it ends or is left.
func (s *shell) attach(ctx context.Context, o client.Shell, detach []byte, wantTTY bool) error {
	left := make(chan struct{})
	o.Detach = left
	in, onTerminal := terminalOf(s.in)
	if o.TTY = onTerminal && wantTTY && isTerminal(s.out); o.TTY {
		restore, err := makeRaw(in)
		if err != nil {
			return fmt.Errorf("set the terminal up: %w", err)
		}
		defer restore()
		sizes, stop := watchSize(in)
		defer stop()
		o.Size, o.Sizes = sizeOf(in), sizes
		o.Stdin = &keyReader{r: s.in, keys: detach, hit: func() { close(left) }}
	}
	// In the middle of a program an interrupt is the program's: it is told, and
	// ends, or not.
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	signals := make(chan string, 1)
	o.Signals = signals
	defer context.AfterFunc(ctx, func() { signals <- "SIGINT" })()
	eol := "\n"
	if o.TTY {
		eol = "\r\n"
	}
	name := o.Name
	o.OnStart = func(n string) { name = n }
	away := false
	o.OnCut = func(error) {
		if !away {
			fmt.Fprintf(s.err, "sojourn: the server is away; waiting up to %s for it%s", span(o.Patience), eol)
		}
		away = true
	}
	end, err := s.c.Shell(call, o)
	if err != nil {
		if name != "" && unreachable(err) {
			return &exitError{exitUnreachable, fmt.Errorf("the server at %s went away; shell %s may go on in the sandbox", s.url, terminal.Visible(name, ""))}
		}
		return s.failure(err)
	}
	return s.shellEnd(o, end, eol)
}

// shellEnd turns the end of a shell into ours.
func (s *shell) shellEnd(o client.Shell, end client.ShellEnd, eol string) error {
	if end.Lost > 0 {
		fmt.Fprintf(s.err, "sojourn: %s of output were not kept while nobody read them%s", size(end.Lost), eol)
	}
	name := terminal.Visible(end.Name, "")
	switch {
	case end.Detached:
		why := "detached"
		if end.Reason == "taken_over" {
			why = "somebody else took the shell over"
		}
		fmt.Fprintf(s.err, "%ssojourn: %s; it goes on. Take it up again with%s  sojourn session shell %s --reattach %s%s", eol, why, eol, o.Session, name, eol)
		return nil
	case end.Failure != "":
		return &exitError{127, errors.New(terminal.Line(end.Failure, 1000))}
	case end.Signal != "":
		return &exitError{128 + int(unix.SignalNum(end.Signal)), fmt.Errorf("the program was ended by %s", terminal.Line(end.Signal, 40))}
	case end.Code != nil && *end.Code != 0:
		return &exitError{*end.Code, errors.New("")}
	}
	return nil
}

// parseKeys reads a list such as "ctrl-p,q".
func parseKeys(list string) ([]byte, error) {
	if list == "" || list == "none" {
		return nil, nil
	}
	var keys []byte
	for word := range strings.SplitSeq(list, ",") {
		letter, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
		switch {
		case len(letter) != 1:
			return nil, fmt.Errorf("%q is neither a character nor like ctrl-a", terminal.Visible(word, ""))
		case !ctrl:
			keys = append(keys, word[0])
		case strings.Contains("@abcdefghijklmnopqrstuvwxyz[\\]^_", letter):
			keys = append(keys, letter[0]&0x1f)
		default:
			return nil, fmt.Errorf("there is no key %q", terminal.Visible(word, ""))
		}
	}
	return keys, nil
}

// keyReader passes input on until a sequence of keys comes in it. What might be
// the beginning of the sequence is held back until the next key tells.
type keyReader struct {
	r    io.Reader
	keys []byte
	hit  func()
	seen int    // of keys
	held []byte // to be read first
	over bool
	err  error // of r
}

// Read implements io.Reader. Behind the keys it waits for ever: the shell goes on,
// so this is no end of its input.
func (k *keyReader) Read(p []byte) (int, error) {
	k.fill()
	if len(k.held) > 0 {
		n := copy(p, k.held)
		k.held = k.held[n:]
		return n, nil
	}
	if k.over {
		select {}
	}
	return 0, k.err
}

// fill reads until there is something to pass on, or nothing more comes.
func (k *keyReader) fill() {
	buf := make([]byte, 4096)
	for len(k.held) == 0 && !k.over && k.err == nil {
		var n int
		n, k.err = k.r.Read(buf)
		for _, b := range buf[:n] {
			k.key(b)
		}
	}
}

func (k *keyReader) key(b byte) {
	switch {
	case k.over:
	case len(k.keys) == 0:
		k.held = append(k.held, b)
	case b == k.keys[k.seen]:
		if k.seen++; k.seen == len(k.keys) {
			k.over = true
			k.hit()
		}
	default:
		k.held = append(k.held, k.keys[:k.seen]...)
		if k.seen = 0; b == k.keys[0] {
			k.seen = 1
			return
		}
		k.held = append(k.held, b)
	}
}

// terminalOf returns the file descriptor of a terminal.
func terminalOf(r any) (fd int, ok bool) {
	if o, isOutput := r.(*output); isOutput {
		r = o.w
	}
	f, isFile := r.(*os.File)
	if !isFile {
		return 0, false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return int(f.Fd()), err == nil
}

func isTerminal(w io.Writer) bool {
	_, ok := terminalOf(w)
	return ok
}

// makeRaw lets every key through to the program, until restore.
func makeRaw(fd int) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag &^= unix.CSIZE | unix.PARENB
	raw.Cflag |= unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }, nil // nothing more can be done
}

// sizeOf returns the size of a terminal; zero when it has none.
func sizeOf(fd int) client.Size {
	w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return client.Size{}
	}
	return client.Size{Rows: w.Row, Cols: w.Col}
}

// watchSize tells every change of a terminal's size, until stop.
func watchSize(fd int) (sizes <-chan client.Size, stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	out, done := make(chan client.Size), make(chan struct{})
	go func() {
		for {
			select {
			case <-changed:
			case <-done:
				return
			}
			select {
			case out <- sizeOf(fd):
			case <-done:
				return
			}
		}
	}()
	return out, func() { signal.Stop(changed); close(done) }
}
