package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// resumer returns the driver as one that saves and resumes processes, or skips the test.
func resumer(t testing.TB, d sandbox.Driver) sandbox.Resumer {
	t.Helper()
	if !d.Capabilities().ProcessSnapshot {
		t.Skipf("SKIPPED: driver %s cannot save processes", d.Name())
	}
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		t.Skipf("SKIPPED: driver %s runs no programs that could be saved", d.Name())
	}
	r, ok := d.(sandbox.Resumer)
	if !ok {
		t.Fatalf("driver %s claims process snapshots and is no sandbox.Resumer", d.Name())
	}
	return r
}

// snapshot saves a sandbox's processes into a directory of its own.
func (c *cell) snapshot() *sandbox.Resume {
	c.t.Helper()
	s, ok := c.Sandbox.(sandbox.Snapshotter)
	if !ok {
		c.t.Fatal("the sandbox is no sandbox.Snapshotter")
	}
	dir := c.t.TempDir()
	snap, err := s.Snapshot(within(c.t), dir)
	if err != nil {
		c.t.Fatalf("Snapshot = %v", err)
	}
	ended(c.t, c)
	if reason := sandbox.ReasonOf(c.Err()); reason != sandbox.EndSnapshot {
		c.t.Errorf("reason of the end = %q, want %q", reason, sandbox.EndSnapshot)
	}
	if onDisk := bytesIn(c.t, dir); snap.Bytes != onDisk || onDisk == 0 {
		c.t.Errorf("Snapshot.Bytes = %d, want %d", snap.Bytes, onDisk)
	}
	return &sandbox.Resume{Dir: dir, Snapshot: throughJSON(c.t, snap)}
}

// resume makes a sandbox of a snapshot, with copies of the files.
func resume(t testing.TB, d sandbox.Driver, epoch int64, from sandbox.Sandbox, r *sandbox.Resume) *cell {
	t.Helper()
	spec := sandbox.Spec{Session: from.Handle().Session, Epoch: epoch, Resume: r}
	dirs, err := resumer(t, d).Prepare(within(t), spec)
	if err != nil {
		t.Fatalf("Prepare = %v", err)
	}
	old, err := d.Remains(within(t), from.Handle())
	if err != nil {
		t.Fatalf("Remains of a sandbox that was saved = %v", err)
	}
	copyTree(t, old.Workspace, dirs.Workspace)
	copyTree(t, old.Home, dirs.Home)
	sb, err := d.Create(within(t), spec)
	if err != nil {
		t.Fatalf("Create with a snapshot = %v", err)
	}
	if got := sb.Dirs(); got != dirs {
		t.Errorf("Dirs = %+v, want those of Prepare, %+v", got, dirs)
	}
	return connect(t, sb)
}

// testSnapshot saves processes of all kinds and resumes them, twice, each time under a
// greater epoch and with the workspace at another place of the host.
func testSnapshot(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	resumer(t, d)
	c := start(t, d, "move", 3)
	r := startRemembering(t, c)
	startOthers(c)
	first := c
	for i, epoch := range []int64{7, 8} {
		spooled, _ := c.readSome("spool", 0, 200)
		taken := c.snapshot()
		if _, err := d.Recover(within(t), c.Handle()); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Recover of a sandbox that was saved = %v, want ErrGone", err)
		}
		next := resume(t, d, epoch, c, taken)
		if err := d.Remove(within(t), c.Handle()); err != nil {
			t.Errorf("Remove of a sandbox that was saved = %v", err)
		}
		c = next
		r.check(c, i+1)
		checkShell(c, i+1)
		checkSpool(c, spooled)
	}
	checkStopped(c)
	if _, err := link.Open(within(t), link.Framed(mustDial(t, c)), link.Options{Epoch: first.Handle().Epoch}); err == nil {
		t.Error("the keeper takes a client of the epoch before the snapshot")
	}
	again := connect(t, c.Sandbox)
	if got := again.must("echo", "new"); got != "new\n" {
		t.Errorf("a new process after a restore printed %q", got)
	}
	if err := c.Destroy(within(t)); err != nil {
		t.Errorf("Destroy = %v", err)
	}
	if hs := list(t, d); len(hs) != 0 {
		t.Errorf("List = %+v, want none", hs)
	}
}

// remembered is the program "remember" of a sandbox.
type remembered struct {
	t     testing.TB
	first memory
	seen  int64 // the last chunk of its output that was read
}

func startRemembering(t testing.TB, c *cell) *remembered {
	t.Helper()
	if err := c.client.CreateDirectory(within(t), rememberIn, true); err != nil {
		t.Fatal(err)
	}
	p := link.StartParams{
		ProcessID: "remember", Argv: []string{sandbox.KeeperPath, commandInside, "remember", "16"}, Cwd: rememberIn,
		Env: map[string]string{"REMEMBER": "me", "PATH": env["PATH"]}, PipeStdin: true,
	}
	if err := c.client.Start(within(t), p); err != nil {
		t.Fatalf("start: %v", err)
	}
	r := &remembered{t: t}
	out, seq := c.readUntil("remember", 0, "\n")
	if out != "ready\n" {
		t.Fatalf("remember says %q", out)
	}
	r.seen = seq
	r.first = r.ask(c, "first")
	return r
}

// ask asks the program what it knows.
func (r *remembered) ask(c *cell, writeID string) memory {
	r.t.Helper()
	if err := c.client.Write(within(r.t), "remember", writeID, []byte("?\n")); err != nil {
		r.t.Fatalf("ask: %v", err)
	}
	out, seq := c.readUntil("remember", r.seen, "\n")
	r.seen = seq
	var m memory
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		r.t.Fatalf("the program says %q", out)
	}
	return m
}

// check asks the program the n-th time and compares.
func (r *remembered) check(c *cell, n int) {
	r.t.Helper()
	got, want := r.ask(c, fmt.Sprint("again ", n)), r.first
	want.Asked = n
	want.Offset, want.Next = int64(8*n), fmt.Sprintf("%07d\n", n)
	want.Appended = int64(len("asked\n") * (n + 1))
	want.Child = fmt.Sprintf("asked %d\n", n)
	want.Loopback = want.Child
	if got != want {
		r.t.Errorf("after restore %d the program knows\n%+v, want\n%+v", n, got, want)
	}
	b, err := os.ReadFile(filepath.Join(c.Dirs().Workspace, "deep/er/log"))
	if err != nil || int64(len(b)) != want.Appended {
		r.t.Errorf("the file in the new workspace has %d bytes, %v, want %d", len(b), err, want.Appended)
	}
}

// startOthers starts a shell on a terminal, a process that stands still, and one whose
// output waits to be read.
func startOthers(c *cell) {
	c.t.Helper()
	shell := link.StartParams{ProcessID: "shell", Argv: []string{"sh"}, Cwd: "/tmp", Env: map[string]string{"PS1": ""}, TTY: true, PipeStdin: true}
	stopped := link.StartParams{ProcessID: "stopped", Argv: []string{"sh", "-c", "echo stop; kill -STOP $$; echo woke"}, Cwd: "/", Env: env}
	spool := link.StartParams{
		ProcessID: "spool", Retain: link.RetainAck, Cwd: "/", Env: env,
		Argv: []string{"sh", "-c", "echo line 0; until [ -e /tmp/on ]; do sleep 0.05; done; i=1; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; sleep 600"},
	}
	for _, p := range []link.StartParams{shell, stopped, spool} {
		if err := c.client.Start(within(c.t), p); err != nil {
			c.t.Fatalf("start %s: %v", p.ProcessID, err)
		}
	}
	c.readUntil("stopped", 0, "stop\n")
	// What was read is a chunk of its own, so there is a place in the output to go on from.
	c.readUntil("spool", 0, "line 0\n")
	c.sh("touch /tmp/on")
	c.readUntil("spool", 0, "line 499\n")
	// What a terminal shows also holds what was typed, so the answer is computed.
	if err := c.client.Write(within(c.t), "shell", "set", []byte("N=40; cd /var; echo s$((1+1))t\n")); err != nil {
		c.t.Fatal(err)
	}
	c.readUntil("shell", 0, "s2t\r\n")
}

// checkShell has the shell count on, with its variable, in its directory.
func checkShell(c *cell, n int) {
	c.t.Helper()
	line := fmt.Sprintf("N=$((N+1)); echo it is $N in $PWD on $(tty); # %d\n", n)
	if err := c.client.Write(within(c.t), "shell", fmt.Sprint("count ", n), []byte(line)); err != nil {
		c.t.Fatalf("write to the shell: %v", err)
	}
	out, _ := c.readUntil("shell", 0, fmt.Sprintf("it is %d in /var on /dev/pts/", 40+n))
	_ = out // it is there
}

// checkSpool reads what was not read before the snapshot.
func checkSpool(c *cell, seen int64) {
	c.t.Helper()
	rest, _ := c.readUntil("spool", seen, "line 499\n")
	all, _ := c.readUntil("spool", 0, "line 499\n")
	if !strings.HasSuffix(all, rest) || !strings.HasPrefix(all, "line 0\n") || len(rest) == len(all) {
		c.t.Errorf("reading on after chunk %d gives %d bytes of %d, which begin with %.20q", seen, len(rest), len(all), rest)
	}
}

// checkStopped wakes the process that stood still.
func checkStopped(c *cell) {
	c.t.Helper()
	if out, _ := c.readUntil("stopped", 0, "\n"); out != "stop\n" || !c.alive("stopped") {
		c.t.Errorf("a process that stood still has printed %q", out)
	}
	if err := c.client.Signal(within(c.t), "stopped", "SIGCONT", ""); err != nil {
		c.t.Fatalf("wake: %v", err)
	}
	c.readUntil("stopped", 0, "woke\n")
}

// readUntil reads the output of a process after a chunk until it contains text. It
// returns that output and the last chunk.
func (c *cell) readUntil(id string, after int64, text string) (string, int64) {
	c.t.Helper()
	var out strings.Builder
	for {
		r, err := c.client.Read(within(c.t), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			c.t.Fatalf("read output of %s after %q: %v", id, out.String(), err)
		}
		for _, chunk := range r.Chunks {
			out.Write(chunk.Data)
		}
		after = r.NextSeq - 1
		if strings.Contains(out.String(), text) {
			return out.String(), after
		}
		if r.Closed {
			c.t.Fatalf("%s has ended, and its output is %q without %q", id, out.String(), text)
		}
	}
}

// readSome reads one piece of output and returns its last chunk.
func (c *cell) readSome(id string, after int64, limit int) (seq int64, n int) {
	c.t.Helper()
	r, err := c.client.Read(within(c.t), link.ReadParams{ProcessID: id, AfterSeq: after, MaxBytes: limit, Wait: link.MaxWait})
	if err != nil {
		c.t.Fatalf("read output of %s: %v", id, err)
	}
	for _, chunk := range r.Chunks {
		n += len(chunk.Data)
	}
	return r.NextSeq - 1, n
}

func mustDial(t testing.TB, sb sandbox.Sandbox) interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
	Close() error
} {
	t.Helper()
	conn, err := sb.Dial(within(t))
	if err != nil {
		t.Fatalf("Dial = %v", err)
	}
	return conn
}

// copyTree copies what is in a host directory into another.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(context.Background(), "cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, out)
	}
}

func bytesIn(t testing.TB, dir string) (total int64) {
	t.Helper()
	for _, path := range glob(t, dir, "*") {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	return total
}

// throughJSON is a snapshot as a database gives it back.
func throughJSON(t testing.TB, s sandbox.Snapshot) (back sandbox.Snapshot) {
	t.Helper()
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil {
		t.Fatal(err)
	}
	return back
}
