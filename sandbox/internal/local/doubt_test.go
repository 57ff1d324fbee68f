package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/quota"
)

// starve calls do while this process can open nothing. It must not run beside others.
func starve(t *testing.T, do func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	do()
}

func TestNothingIsGoneForWantOfDescriptors(t *testing.T) {
	dir := t.TempDir()
	sb, err := machine(t, dir, &still{t: t}).Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(sb.Dirs().Workspace, "kept"), "kept")
	later := machine(t, dir, &still{t: t})
	h := sb.Handle()
	p := sb.(*box).cell.Record.Process

	starve(t, func() {
		if !p.Alive() {
			t.Error("a process that runs is not alive")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*pollWithoutPIDFD)
		defer cancel()
		if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait for a process that runs = %v, want a deadline", err)
		}
		if _, err := ProcessesNaming("sleep"); err == nil {
			t.Error("ProcessesNaming tells that there are none")
		}
		for name, do := range map[string]func() error{
			"Recover":     func() error { _, err := later.Recover(t.Context(), h); return err },
			"Remains":     func() error { _, err := later.Remains(t.Context(), h); return err },
			"Create":      func() error { _, err := later.Create(t.Context(), sandbox.Spec{Session: "s", Epoch: 1}); return err },
			"Remove":      func() error { return later.Remove(t.Context(), h) },
			"ImagesInUse": func() error { _, err := later.ImagesInUse(); return err },
		} {
			if err := do(); err == nil || errors.Is(err, sandbox.ErrGone) {
				t.Errorf("%s = %v, want an error that is not ErrGone", name, err)
			}
		}
	})
	if sb.Err() != nil {
		t.Errorf("the sandbox has ended: %v", sb.Err())
	}
	again, err := later.Recover(t.Context(), h)
	if err != nil {
		t.Fatalf("Recover with descriptors = %v", err)
	}
	if _, err := os.Stat(filepath.Join(again.Dirs().Workspace, "kept")); err != nil {
		t.Errorf("its files: %v", err)
	}
}

// TestDiskIsMountedOnceByAllWhoWantIt asks for the files of a sandbox many times at once
// after the machine was off.
func TestDiskIsMountedOnceByAllWhoWantIt(t *testing.T) {
	t.Parallel()
	m := machine(t, t.TempDir(), &still{t: t})
	if m.disks.Method() != quota.Image {
		t.Skipf("SKIPPED: disks are not images here: %s", m.disks.Missing())
	}
	sb, err := m.Create(t.Context(), sandbox.Spec{Session: "s", Limits: sandbox.Limits{DiskBytes: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	c := sb.(*box).cell
	if err := errors.Join(c.Record.Process.Kill(), unix.Unmount(c.disk(), unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
	awaitLoops(t, c.disk(), 0)

	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			dirs, err := m.Remains(t.Context(), sb.Handle())
			if err == nil {
				_, err = os.Stat(dirs.Workspace)
			}
			if err != nil {
				t.Errorf("Remains = %v", err)
			}
		})
	}
	all.Wait()
	awaitLoops(t, c.disk(), 1)
	if err := sb.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy = %v", err)
	}
}

// awaitLoops waits until as many loop devices have the image of a disk as are wanted.
func awaitLoops(t *testing.T, disk string, want int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		n := 0
		backings, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, b := range backings {
			if name, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(name), disk) {
				n++
			}
		}
		if err != nil || n == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d loop devices have %s.img, want %d", n, disk, want)
		}
	}
}

func TestGroupOfAKernelIsBoundOnlyWithALimit(t *testing.T) {
	for _, c := range []struct {
		processes         int
		supported, kernel bool
		want              int
	}{
		{0, true, false, 0},
		{7, true, false, 7},
		{7, false, false, 0},
		{0, true, true, 0}, // no limit is none, whatever the sandbox's kernel needs on the host
		{7, true, true, kernelProcesses + 7*processesOfProcess},
		{7, false, true, 0},
	} {
		got := groupLimits(sandbox.Limits{Processes: c.processes, MemoryBytes: 1}, c.supported, c.kernel)
		if got.Processes != c.want || got.KillTogether != c.kernel || got.MemoryBytes != 1 {
			t.Errorf("groupLimits of %+v = %+v, want %d processes", c, got, c.want)
		}
	}
}

// killNamingAs is the variable that makes a test of this binary call KillNaming.
const killNamingAs = "SOJOURN_TEST_KILL_NAMING"

func TestKillNamingLeavesOthersProcesses(t *testing.T) {
	if id := os.Getenv(killNamingAs); id != "" { // as another user
		if err := KillNaming(t.Context(), id); err != nil {
			t.Errorf("KillNaming = %v", err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can be another user")
	}
	const nobody = 65534
	id := NewToken()
	roots := naming(t, id)
	own := exec.Command("sh", "-c", "read x", "sh", id)
	own.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	in, err := own.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	again := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.timeout=30s")
	again.Dir, again.Env = "/", []string{killNamingAs + "=" + id}
	again.SysProcAttr = own.SysProcAttr
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("as another user: %v: %s", err, out)
	}
	if err := own.Wait(); err == nil {
		t.Error("the user's own process was not killed: " + strconv.Itoa(own.Process.Pid))
	}
	if !roots.Alive() {
		t.Error("the process of root was killed")
	}
}
