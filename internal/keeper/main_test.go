package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

const testToken = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// TestMain lets the test binary be the keeper command.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		if os.Getpid() == 1 { // the namespace was made without one
			if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
				fmt.Fprintln(os.Stderr, "mount proc:", err)
				os.Exit(3)
			}
		}
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// driver is the listening side of a keeper process.
type driver struct {
	t      testing.TB
	socket string
	cmd    *exec.Cmd
	log    bytes.Buffer
	exited chan struct{}

	mu sync.Mutex
	ln net.Listener
}

// launchKeeper starts the keeper command; with asInit as PID 1 of its own
// namespace.
func launchKeeper(t testing.TB, asInit bool) *driver {
	t.Helper()
	return launchKeeperBy(t, asInit)
}

// launchKeeperBy is launchKeeper with a command in front that starts it.
func launchKeeperBy(t testing.TB, asInit bool, by ...string) *driver {
	t.Helper()
	d := &driver{t: t, socket: filepath.Join(t.TempDir(), "keeper.sock"), exited: make(chan struct{})}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(by, exe, "keeper", "--socket", d.socket, "--epoch", "3")
	d.cmd = exec.Command(argv[0], argv[1:]...)
	d.cmd.Env = append(os.Environ(), "SOJOURN_KEEPER_TOKEN="+testToken)
	d.cmd.Stderr = &d.log
	if asInit {
		d.cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWNS}
	}
	d.listen()
	if err := d.cmd.Start(); err != nil {
		if asInit && errors.Is(err, unix.EPERM) {
			t.Skipf("SKIPPED: a PID namespace needs privileges that this machine does not give: %v", err)
		}
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // the tests look at ProcessState
		close(d.exited)
	}()
	t.Cleanup(func() {
		d.hangUp()
		_ = d.cmd.Process.Kill() // it may have ended long ago
		<-d.exited
		if t.Failed() {
			t.Logf("keeper said:\n%s", d.log.Bytes())
		}
	})
	return d
}

func (d *driver) listen() {
	d.t.Helper()
	ln, err := net.Listen("unix", d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ln = ln
}

func (d *driver) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ln.Close()
}

// dial waits for the keeper to call, as a driver does.
func (d *driver) dial(context.Context) (link.Transport, error) {
	d.mu.Lock()
	ln := d.ln
	d.mu.Unlock()
	nc, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	// Byte by byte, so that nothing of the first frame is lost.
	head := make([]byte, len(testToken)+1)
	if _, err := io.ReadFull(nc, head); err != nil {
		return nil, err
	}
	if string(head) != testToken+"\n" {
		return nil, fmt.Errorf("token %q: %w", head, link.ErrGone)
	}
	return link.Framed(nc), nil
}

func (d *driver) peer(epoch int64) *link.Peer {
	p := link.NewPeer(d.dial, link.Options{Epoch: epoch})
	d.t.Cleanup(func() {
		d.hangUp() // an Accept under way ends with it
		p.Close()
	})
	return p
}

func startOn(t *testing.T, p *link.Peer, id string, argv ...string) {
	t.Helper()
	if err := p.Start(t.Context(), link.StartParams{ProcessID: id, Argv: argv, Cwd: "/", Env: env(), Retain: link.RetainAck}); err != nil {
		t.Fatal(err)
	}
}

// TestKeeperOutlivesServer: the server goes away in the middle of a process
// and another one listens on the same path.
func TestKeeperOutlivesServer(t *testing.T) {
	d := launchKeeper(t, false)
	p := d.peer(3)
	startOn(t, p, "p", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done")
	r, err := p.Read(t.Context(), link.ReadParams{ProcessID: "p", Wait: link.MaxWait})
	if err != nil || len(r.Chunks) == 0 {
		t.Fatalf("first read = %+v, %v", r, err)
	}
	p.Close()
	d.hangUp()
	time.Sleep(100 * time.Millisecond) // the keeper dials in vain meanwhile
	d.listen()
	o := follow(t, d.peer(4), "p")
	wantCode(t, o, 0)
	if got := string(o.out["stdout"]); got != "1\n2\n3\n4\n5\n6\n7\n8\n" {
		t.Fatalf("stdout = %q", got)
	}
}

func TestTokenLeavesNoTrace(t *testing.T) {
	d := launchKeeper(t, false)
	p := d.peer(3)
	startOn(t, p, "p", "sh", "-c", fmt.Sprintf("env; cat /proc/%d/environ", d.cmd.Process.Pid))
	o := follow(t, p, "p")
	wantCode(t, o, 0)
	if out := string(o.out["stdout"]); strings.Contains(out, testToken[:16]) || !strings.Contains(out, "PATH=") {
		t.Fatalf("environment as others see it: %q", out)
	}
}

func TestShutdownEndsKeeper(t *testing.T) {
	d := launchKeeper(t, false)
	p := d.peer(3)
	startOn(t, p, "p", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done")
	if err := p.Shutdown(t.Context(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	<-d.exited
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("keeper ended with %d", code)
	}
}

// TestShutdownIsAnswered: with nothing to wait for the keeper ends at once, but
// not before it has said yes.
func TestShutdownIsAnswered(t *testing.T) {
	for range 20 {
		k, dial := serve(t, keeper.Config{})
		if err := dial().Shutdown(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		<-k.Over()
	}
}

func TestKeeperRefusesToRunWithoutToken(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "abc", strings.Repeat("zz", 32)} {
		cmd := exec.Command(exe, "keeper", "--socket", "/nowhere")
		cmd.Env = append(os.Environ(), "SOJOURN_KEEPER_TOKEN="+token)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("token %q: %v\n%s", token, err, out)
		}
		if token != "" && strings.Contains(string(out), token) {
			t.Errorf("the token is in the log: %s", out)
		}
	}
}

// TestInitDuties: as PID 1 the keeper reaps orphans, freezes and signals all,
// and still knows every exit of its own processes.
func TestInitDuties(t *testing.T) {
	d := launchKeeper(t, true)
	p := d.peer(3)
	ctx := t.Context()

	base, err := p.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	orphans := 600
	if testing.Short() {
		orphans = 60
	}
	startOn(t, p, "orphans", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do (sleep 0.05 &); i=$((i+1)); done", orphans))
	wantCode(t, follow(t, p, "orphans"), 0)
	for i := range 50 { // each by itself, with the reaper busy
		id := fmt.Sprint(i)
		startOn(t, p, id, "sh", "-c", "exit "+id)
		wantCode(t, follow(t, p, id), i)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		s, err := p.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.Tasks == base.Tasks {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d processes are left, %d were there before", s.Tasks, base.Tasks)
		}
	}

	// A daemon that nothing ties to its starter any more.
	startOn(t, p, "daemon", "sh", "-c", "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01; done' >/dev/null 2>&1 </dev/null & sleep 0.2")
	wantCode(t, follow(t, p, "daemon"), 0)
	if n, err := p.Freeze(ctx); err != nil || n < 1 {
		t.Fatalf("freeze stopped %d, %v", n, err)
	}
	if err := p.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(ctx, "", "SIGKILL", link.TargetAll); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		s, err := p.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.Tasks == 1 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d processes are left after a signal to all", s.Tasks)
		}
	}
	startOn(t, p, "after", "true")
	wantCode(t, follow(t, p, "after"), 0)
}

// TestFreezeUnderForks: while a shell forks without a pause, a freeze comes to
// an end, and then nothing runs.
func TestFreezeUnderForks(t *testing.T) {
	d := launchKeeper(t, true)
	p := d.peer(3)
	file := filepath.Join(t.TempDir(), "ticks")
	startOn(t, p, "forks", "sh", "-c", `for j in 1 2 3; do while :; do /bin/sh -c "echo x >>$0"; done & done; wait`, file)
	for info, err := os.Stat(file); err != nil || info.Size() < 20; info, err = os.Stat(file) {
		time.Sleep(time.Millisecond)
	}
	for range 10 {
		if _, err := p.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // time in which a free process would write
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(a) != len(b) {
			t.Fatalf("file grew from %d to %d during a freeze", len(a), len(b))
		}
		if err := p.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Terminate(t.Context(), "forks", 0); err != nil {
		t.Fatal(err)
	}
	if o := follow(t, p, "forks"); o.Signal != "SIGKILL" {
		t.Fatalf("%+v", o.ReadResult)
	}
}
