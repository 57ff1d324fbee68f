package engine_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// testRates are no round numbers.
var testRates = server.Rates{VCPUSecond: 1400, GiBSecond: 450, Exec: 7}

// TestExecReachesTheProgramByteForByte is EX-01 and EX-10: argv and variables are not
// looked at by any shell.
func TestExecReachesTheProgramByteForByte(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	argv := []string{"", " a  b ", "'\"\\`$(id)$HOME*?;&|", "line\nbreak\r\n", "-n", "--", "ü€𝄞\u202e", "\x01\x7f", strings.Repeat("x", 100_000)}
	in := engine.ExecRequest{Spec: sojourn.ExecSpec{
		Argv: append([]string{"/bin/sh", "-c", `printf '%s\0' "$@"`, "sh"}, argv...), Timeout: patience,
	}}
	x := s.run(in)
	s.want("code", code(x), 0)
	if got := strings.Split(s.output(x, output.Stdout), "\x00"); !slices.Equal(got[:len(got)-1], argv) {
		t.Errorf("the program got %q", got)
	}

	env := map[string]string{"A": "", "B": "x=y z\n'\"$A", "_u": "ü", "PATH": "/usr/bin:/bin", "HOME": "/else"}
	in.Spec.Argv, in.Spec.Env = []string{"env", "-0"}, env
	x = s.run(in)
	got := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(s.output(x, output.Stdout), "\x00"), "\x00") {
		k, v, _ := strings.Cut(line, "=")
		got[k] = v
	}
	for k, v := range env {
		if got[k] != v {
			t.Errorf("%s is %q, want %q", k, got[k], v)
		}
	}
	if len(got) > len(env)+8 {
		t.Errorf("what the server has in its own environment must not be seen: %v", slices.Sorted(maps.Keys(got)))
	}
}

// TestEndsOfExecs: every end is told apart from every other (EX-07, EX-17, EX-32).
func TestEndsOfExecs(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{Rates: testRates}, sojourn.Limits{})
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	argv := func(argv ...string) engine.ExecRequest {
		return engine.ExecRequest{Spec: sojourn.ExecSpec{Argv: argv, Timeout: patience}}
	}
	in := func(r engine.ExecRequest, dir string) engine.ExecRequest { r.Spec.Dir = dir; return r }
	within := func(r engine.ExecRequest, limit, grace time.Duration) engine.ExecRequest {
		r.Spec.Timeout, r.Spec.Grace = limit, grace
		return r
	}
	for name, c := range map[string]struct {
		in     engine.ExecRequest
		code   int
		signal string
		reason sojourn.ExecReason
		failed string
	}{
		"zero":            {in: sh("true")},
		"code":            {in: sh("exit 255"), code: 255},
		"137 of its own":  {in: sh("exit 137"), code: 137},
		"signal":          {in: sh("kill -9 $$"), code: -1, signal: "SIGKILL"},
		"missing":         {in: argv("/no/such/program"), code: 127, reason: sojourn.ExecNotStarted, failed: "no such file"},
		"not in PATH":     {in: argv("no-such-program"), code: 127, reason: sojourn.ExecNotStarted, failed: "no-such-program"},
		"not executable":  {in: argv(plain), code: 126, reason: sojourn.ExecNotStarted, failed: "permission"},
		"missing dir":     {in: in(sh("true"), "nowhere"), code: -1, reason: sojourn.ExecNotStarted, failed: "/workspace/nowhere"},
		"dir is a file":   {in: in(sh("true"), "../etc/passwd/x"), code: -1, reason: sojourn.ExecNotStarted, failed: "/etc/passwd/x"},
		"timeout":         {in: within(sh("exec sleep 300"), time.Second, patience), code: -1, signal: "SIGTERM", reason: sojourn.ExecTimeout},
		"deaf to TERM":    {in: within(sh("trap '' TERM; while :; do sleep 0.1; done"), 3*time.Second, 100*time.Millisecond), code: -1, signal: "SIGKILL", reason: sojourn.ExecTimeout},
		"obeys TERM":      {in: within(sh("trap 'exit 7' TERM; while :; do sleep 0.1; done"), 3*time.Second, patience), code: 7, reason: sojourn.ExecTimeout},
		"no stdin":        {in: sh("cat; exit 4"), code: 4},
		"leaves a child":  {in: sh("touch here; while [ -e here ]; do sleep 0.1; done & exit 5"), code: 5},
		"closes its pipe": {in: sh("exec >&- 2>&-; sleep 0.2; exit 6"), code: 6},
	} {
		in := c.in
		in.Spec.Detached = true // all at once
		x := s.start(in)
		t.Run(name, func(t *testing.T) {
			x := s.wait(x)
			r := x.Result
			if x.State != sojourn.ExecEnded || code(x) != c.code || r.Signal != c.signal || x.Reason != c.reason {
				t.Errorf("it is %s (%q) with %d %q %q", x.State, x.Reason, code(x), r.Signal, r.Failure)
			}
			if (c.failed == "") != (r.Failure == "") || !strings.Contains(r.Failure, c.failed) {
				t.Errorf("the failure is %q, want %q in it", r.Failure, c.failed)
			}
			if want := x.Rate.Cost(r.RunTime); x.Cost != want || r.Failure == "" && r.RunTime <= 0 {
				t.Errorf("it cost %d for %v, want %d", x.Cost, r.RunTime, want)
			}
		})
	}
}

func TestEachExecIsChargedOnce(t *testing.T) { // BU-01
	t.Parallel()
	s := beginExecs(t, servertest.Config{Rates: testRates}, sojourn.Limits{})
	var cost sojourn.Money
	for range 4 {
		x := s.run(sh("sleep 0.02"))
		if x.Rate.Exec != 7 || x.Rate.Second <= 0 || x.Cost <= 7 {
			t.Errorf("rate %+v, cost %d", x.Rate, x.Cost)
		}
		cost += x.Cost
	}
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(4))
	s.want("cost", s.state().Budget.Usage.Cost, cost)
}

// TestOutputOfAnySize: nothing is lost, changed or attributed to the other stream,
// whether it stays in memory or goes to files.
func TestOutputOfAnySize(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	for _, n := range []int{0, 1, 100, 16 << 10, 16<<10 + 1, 3<<20 + 7} {
		x := s.run(sh(fmt.Sprintf(`head -c %d /dev/zero | tr '\0' '\377'; printf 'e\0\376' >&2`, n)))
		out := s.output(x, output.Stdout)
		if out != strings.Repeat("\xff", n) {
			t.Errorf("of %d bytes there are %d (%x)", n, len(out), sha256.Sum256([]byte(out)))
		}
		s.want("stderr", s.output(x, output.Stderr), "e\x00\xfe")
		s.want("stdout bytes", x.Result.Stdout, int64(n))
		s.want("stderr bytes", x.Result.Stderr, int64(3))
		s.want("kept", x.Result.Kept, int64(n)+3)
	}
}

func TestCancelledExecs(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	cancel := func(x sojourn.Exec, kill bool) {
		t.Helper()
		if _, err := s.engine().CancelExec(s.patient(), s.ref, x.ID, kill); err != nil {
			t.Fatal(err)
		}
	}
	polite := s.start(sh("trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done"))
	s.writes(polite, "up")
	cancel(polite, false)
	polite = s.wait(polite)
	s.want("code", code(polite), 9)
	s.want("reason", polite.Reason, sojourn.ExecCancelled)
	s.want("output", s.output(polite, output.Stdout), "up\nbye\n")

	in := sh("trap '' TERM; echo $$; while :; do sleep 0.05; done")
	in.Spec.Grace = sojourn.MaxExecGrace
	deaf := s.start(in)
	s.writes(deaf, "\n")
	queued := s.start(sh("echo never"))
	s.want("behind it", queued.State, sojourn.ExecQueued)
	cancel(queued, false)
	s.want("cancelled in the queue", s.at(queued).State, sojourn.ExecRefused)
	cancel(deaf, false)
	cancel(deaf, true) // loses patience
	deaf = s.wait(deaf)
	s.want("signal", deaf.Result.Signal, "SIGKILL")
	s.want("reason", deaf.Reason, sojourn.ExecCancelled)
	cancel(deaf, true)
	s.want("cancelled again", s.at(deaf).EndedAt, deaf.EndedAt)
	var pid int
	if _, err := fmt.Sscan(s.output(deaf, output.Stdout), &pid); err != nil || syscall.Kill(pid, 0) == nil {
		t.Errorf("process %d is there (%v)", pid, err)
	}
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(2))
}

// TestCancelledWhileTheyStart: whoever is to be ended before the keeper has heard of
// its start is ended when it has.
func TestCancelledWhileTheyStart(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	s.Fake.SetFaults(fake.Faults{DialErr: errors.New("not now")})
	s.Fake.Cut(string(s.ref.ID))
	var all []sojourn.Exec
	for range 20 {
		in := sh("exec sleep 300")
		in.Spec.Detached, in.Spec.Timeout = true, 0
		x := s.start(in)
		if _, err := s.engine().CancelExec(s.patient(), s.ref, x.ID, true); err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	s.Fake.SetFaults(fake.Faults{})
	for _, x := range all {
		x = s.wait(x)
		s.want("reason", x.Reason, sojourn.ExecCancelled)
		s.want("signal", x.Result.Signal, "SIGKILL")
	}
}

// TestWhereExecsRun: the workspace, the carryover's directory, or what the request
// says.
func TestWhereExecsRun(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	s.want("made", code(s.run(sh("mkdir -p a/b c"))), 0)
	dir, one := "a", "one"
	if _, _, err := s.engine().UpdateCarryover(s.patient(), s.ref, sojourn.CarryoverPatch{Dir: &dir, Env: map[string]*string{"ONE": &one, "TWO": &one}}); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": "/a", "c": "/c", "/workspace/a/b": "/a/b", "/": "/rest"} {
		in := sh(`pwd -P; echo "$ONE $TWO"`)
		in.Spec.Dir, in.Spec.Env = dir, map[string]string{"TWO": "two"}
		got := strings.Fields(s.output(s.run(in), output.Stdout))
		if len(got) != 3 || !strings.HasSuffix(got[0], want) || got[1] != "one" || got[2] != "two" {
			t.Errorf("in %q: %q, want %s", dir, got, want)
		}
	}
}

func TestRefusedExecs(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	for name, c := range map[string]struct {
		spec sojourn.ExecSpec
		code sojourn.Code
	}{
		"ours":       {sojourn.ExecSpec{Argv: []string{"sojourn:fetch", "http://x"}, Timeout: time.Second}, sojourn.CodeInvalid},
		"nothing":    {sojourn.ExecSpec{Timeout: time.Second}, sojourn.CodeInvalid},
		"no text":    {sojourn.ExecSpec{Argv: []string{"a", "\xff"}, Timeout: time.Second}, sojourn.CodeInvalid},
		"no timeout": {sojourn.ExecSpec{Argv: []string{"true"}}, sojourn.CodeInvalid},
		"long":       {sojourn.ExecSpec{Argv: []string{"true"}, Timeout: time.Hour}, sojourn.CodeInvalid},
	} {
		_, _, err := s.engine().StartExec(s.patient(), s.ref, engine.ExecRequest{Spec: c.spec})
		s.want(name, sojourn.CodeOf(err), c.code)
	}
	_, _, err := s.engine().StartExec(s.patient(), engine.Ref{Project: "prj_other", ID: s.ref.ID}, sh("true"))
	s.want("another project", sojourn.CodeOf(err), sojourn.CodeNotFound)
	_, _, err = s.engine().WaitExec(s.patient(), s.ref, "no-such-exec")
	s.want("no such exec", sojourn.CodeOf(err), sojourn.CodeNotFound)
	s.want("execs", s.state().Execs, int64(0))
}
