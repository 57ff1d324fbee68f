package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// onTerminal runs a command on a terminal of 33 by 101, as FILE says, line by
// line: send "TEXT", await "TEXT", resize ROWS COLS, hangup. The text on the
// screen is kept as the file "screen", and the exit code as "code".
func onTerminal(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: terminal FILE COMMAND...")
	}
	exe, err := exec.LookPath(args[1])
	ts.Check(err)
	cmd := exec.Command(exe, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"SOJOURN_URL", "SOJOURN_KEY", "PATH", "HOME"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Env = append(cmd.Env, "TERM=xterm")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 101})
	ts.Check(err)
	defer tty.Close()
	s := &scriptScreen{more: make(chan struct{}, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s, tty) // ends with an error when the command does
	}()
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch verb {
		case "send":
			text, err := strconv.Unquote(rest)
			ts.Check(err)
			_, err = io.WriteString(tty, text)
			ts.Check(err)
		case "await":
			text, err := strconv.Unquote(rest)
			ts.Check(err)
			if !s.await(text) {
				cmd.Process.Kill()
				cmd.Wait()
				ts.Fatalf("the screen never showed %q; it shows\n%s", text, s.text())
			}
		case "resize":
			rows, cols, _ := strings.Cut(rest, " ")
			r, err := strconv.ParseUint(rows, 10, 16)
			ts.Check(err)
			c, err := strconv.ParseUint(cols, 10, 16)
			ts.Check(err)
			ts.Check(pty.Setsize(tty, &pty.Winsize{Rows: uint16(r), Cols: uint16(c)}))
		case "restart":
			serverOf(ts).kill()
			serveInScript(ts, false, nil)
		default:
			ts.Fatalf("%s: there is no %q", args[0], line)
		}
	}
	killer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	_ = cmd.Wait() // the code says it
	killer.Stop()
	<-read
	ts.Check(os.WriteFile(ts.MkAbs("screen"), s.text(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("code"), []byte(strconv.Itoa(cmd.ProcessState.ExitCode())+"\n"), 0o600))
}

// scriptScreen is what a command wrote on its terminal.
type scriptScreen struct {
	mu   sync.Mutex
	got  []byte
	from int // what await has not passed yet
	more chan struct{}
}

func (s *scriptScreen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, p...)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *scriptScreen) text() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.got)
}

// await waits until text comes behind what was awaited before.
func (s *scriptScreen) await(text string) bool {
	late := time.After(time.Minute)
	for {
		s.mu.Lock()
		i := bytes.Index(s.got[s.from:], []byte(text))
		if i >= 0 {
			s.from += i + len(text)
		}
		s.mu.Unlock()
		if i >= 0 {
			return true
		}
		select {
		case <-s.more:
		case <-late:
			return false
		}
	}
}
