package engine_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestGivenInput(t *testing.T) { // EX-12, EX-13
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	for _, data := range [][]byte{nil, []byte("\x00\xff\n"), bytes.Repeat([]byte("0123456\n"), 400_000)} {
		in := sh("sha256sum")
		in.Spec.Stdin, in.Input = sojourn.StdinGiven, data
		s.want("sum", strings.Fields(s.output(s.run(in), output.Stdout))[0], sumOf(data))
	}
	in := sh("exit 3") // reads none of it
	in.Spec.Stdin, in.Input = sojourn.StdinGiven, bytes.Repeat([]byte("x"), 4<<20)
	s.want("code", code(s.run(in)), 3)
}

// TestStreamedInput: pieces come once and in order, however often they are sent, and a
// program that does not read holds their writer up.
func TestStreamedInput(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	in := sh("sha256sum")
	in.Spec.Stdin = sojourn.StdinStream
	x := s.start(in)
	write := func(at int64, data []byte, eof bool) error {
		return s.engine().WriteExec(s.patient(), s.ref, x.ID, "w", at, data, eof)
	}
	var all []byte
	for i := range 50 {
		piece := []byte(fmt.Sprintf("%d %s\n", i, strings.Repeat("p", i*300)))
		for range 1 + i%3 {
			if err := write(int64(len(all)), piece, false); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, piece...)
	}
	if err := write(int64(len(all)), nil, true); err != nil {
		t.Fatal(err)
	}
	s.want("sum", strings.Fields(s.output(s.wait(x), output.Stdout))[0], sumOf(all))
	s.want("after its end", sojourn.CodeOf(write(int64(len(all)), []byte("x"), false)), sojourn.CodeInvalidState)

	in = sh("exec <&-; echo deaf; sleep 0.5")
	in.Spec.Stdin = sojourn.StdinStream
	x = s.start(in)
	s.writes(x, "deaf")
	s.until("the closed input to show", func() bool {
		return sojourn.CodeOf(write(0, []byte("x"), false)) == sojourn.CodeInvalidState
	})
	s.wait(x)
	x = s.start(sh("sleep 0.2"))
	s.want("without a stream", sojourn.CodeOf(write(0, []byte("x"), false)), sojourn.CodeInvalidState)
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	in := sh("trap 'stty size; echo $TERM; exit 8' INT; trap 'echo sized' WINCH; echo up; while :; do sleep 0.05; done")
	in.Spec.TTY, in.Spec.Rows, in.Spec.Cols, in.Spec.Stdin = true, 10, 20, sojourn.StdinStream
	x := s.start(in)
	s.writes(x, "up")
	if err := s.engine().ResizeExec(s.patient(), s.ref, x.ID, 33, 44); err != nil {
		t.Fatal(err)
	}
	s.writes(x, "sized")
	s.want("no signal", sojourn.CodeOf(s.engine().SignalExec(s.patient(), s.ref, x.ID, "SIGNOTHING")), sojourn.CodeInvalid)
	if err := s.engine().SignalExec(s.patient(), s.ref, x.ID, "SIGINT"); err != nil {
		t.Fatal(err)
	}
	x = s.wait(x)
	s.want("code", code(x), 8)
	if out := s.output(x, output.Stdout); !strings.Contains(out, "33 44\r\nxterm-256color\r\n") {
		t.Errorf("it wrote %q", out)
	}
	s.want("over", sojourn.CodeOf(s.engine().SignalExec(s.patient(), s.ref, x.ID, "SIGINT")), sojourn.CodeInvalidState)

	in = sh("[ -t 0 ] && cat; exit 9") // nobody types
	in.Spec.TTY = true
	s.want("code", code(s.run(in)), 9)
}

// TestNumberedInputHasNoHoles: of pieces that overlap each byte is taken once, also by
// the next server, and one behind a hole is refused with where to go on.
func TestNumberedInputHasNoHoles(t *testing.T) { // EX-12
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	in := sh("cat")
	in.Spec.Stdin = sojourn.StdinStream
	x := s.start(in)
	write := func(at int64, data string, eof bool) error {
		return s.engine().WriteExec(s.patient(), s.ref, x.ID, engine.NumberedInput, at, []byte(data), eof)
	}
	must := func(at int64, data string, eof bool) {
		t.Helper()
		if err := write(at, data, eof); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(at int64, data string, eof bool, expected string) {
		t.Helper()
		e, _ := errors.AsType[*sojourn.Error](write(at, data, eof))
		if e == nil || e.Code != sojourn.CodeInvalidState || e.Details["expectedOffset"] != expected {
			t.Errorf("%q at %d: %v, want one that expects %s", data, at, e, expected)
		}
	}
	refused(1, "x", false, "0")
	must(0, "hello", false)
	refused(20, "x", true, "5")
	refused(6, "", true, "5")
	must(0, "hel", false)
	must(3, "lo wor", false)
	s.Restart()
	refused(10, "x", false, "9")
	must(5, " world", false)
	must(0, "hello world", false)
	must(11, "", true)
	s.want("what it read", s.output(s.wait(x), output.Stdout), "hello world")
}
