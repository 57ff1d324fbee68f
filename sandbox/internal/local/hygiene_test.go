package local

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// naming starts a process that has the words among its arguments.
func naming(t *testing.T, words ...string) Process {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", "echo; read x", "sh"}, words...)...)
	in, err := cmd.StdinPipe() // open until the test ends
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has its arguments by now
		t.Fatal(err)
	}
	p, err := FindProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = p.Kill()
		_ = p.Wait(t.Context())
	})
	return p
}

func TestProcessesOfCellsThatAreGoneAreEnded(t *testing.T) {
	dir := t.TempDir()
	m := machine(t, dir, &still{t: t})
	gone, warm := newCell(m.root, "gone", 1), newWarmCell(m.root)
	here := newCell(m.root, "here", 1)
	if err := beginCell(here); err != nil {
		t.Fatal(err)
	}
	strays := map[string]Process{
		"runtime":        naming(t, "--root="+gone.Dir+"/private/state", "run", gone.ID),
		"helper":         naming(t, "helper", gone.ID), // names the id only, but its runtime gave the cell away
		"of a warm cell": naming(t, "--root="+warm.Dir+"/private/state", warm.ID),
	}
	others := map[string]Process{
		"of a cell that exists": naming(t, here.Dir+"/x", here.ID),
		"of another server":     naming(t, "/elsewhere/sandboxes/gone-1/x", newCell("/elsewhere/sandboxes", "gone", 1).ID),
		"reader of a log":       naming(t, gone.Dir+"/private/runsc.log"),
		"root and name only":    naming(t, m.root+"/notes.txt"),
	}
	if err := machine(t, dir, &still{t: t}).Leftovers(); err != nil {
		t.Errorf("Leftovers = %v", err)
	}
	for name, p := range strays {
		if p.Alive() {
			t.Errorf("%s is left", name)
		}
	}
	for name, p := range others {
		if !p.Alive() {
			t.Errorf("%s was killed", name)
		}
	}
}

func TestReconcilerHearsOfAllThatExists(t *testing.T) {
	dir := t.TempDir()
	first := callingMachine(t, dir, &calling{})
	if err := first.Warm(t.Context(), sandbox.Spec{}, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Create(t.Context(), sandbox.Spec{Session: "warm", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Create(t.Context(), sandbox.Spec{Session: "cold", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if err := beginCell(newCell(first.root, "half", 1)); err != nil {
		t.Fatal(err)
	}
	if err := first.Warm(t.Context(), sandbox.Spec{}, 1); err != nil {
		t.Fatal(err)
	}
	first.spares[0].stop() // a killed server watches nothing
	l := &calling{trouble: errors.New("a mount is busy")}
	second := callingMachine(t, dir, l)
	for _, session := range []string{"warm", "cold", "half"} {
		if id := newCell(second.root, session, 1).ID; !l.live[id] {
			t.Errorf("%s (%s) is not among the live: %v", session, id, l.live)
		}
	}
	if len(l.live) != 3 {
		t.Errorf("%d are alive, want 3: the one that is nobody's was ended", len(l.live))
	}
	if !errors.Is(second.Leftovers(), l.trouble) {
		t.Errorf("Leftovers = %v, want %v", second.Leftovers(), l.trouble)
	}
}

func TestMountPointsAreDecoded(t *testing.T) {
	text := "36 35 98:0 /mnt1 /d/a\\040b/c rw,noatime master:1 - ext3 /dev/root rw\n" +
		"37 36 0:1 / /d/a\\040b/c/\\134040 rw - tmpfs tmpfs rw\n" +
		"38 35 0:1 / /d/ab rw - overlay overlay lowerdir=" + strings.Repeat("/x:", 40_000) + "\n" +
		"39 35 0:1 / /dd rw - tmpfs tmpfs rw\nbroken\n40 35 0:1 / /d/last rw - tmpfs"
	got, err := mountPoints(strings.NewReader(text), "/d/")
	if want := []string{"/d/a b/c", `/d/a b/c/\040`, "/d/ab", "/d/last"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("mountPoints = %q, %v, want %q", got, err, want)
	}
}

// TestMountsAreUndoneBeforeFilesAreRemoved mounts in a cell's directory something that
// must not be emptied with it.
func TestMountsAreUndoneBeforeFilesAreRemoved(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "keep"), "keep")
	m := machine(t, t.TempDir(), &still{t: t})
	c := newCell(m.root, "s", 1)
	if err := beginCell(c); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(c.Workspace(), "a b")
	mkdir(t, at)
	for range 2 { // one on top of the other
		if err := unix.Mount(outside, at, "", unix.MS_BIND, ""); errors.Is(err, unix.EPERM) {
			t.Skip("SKIPPED: only root can mount")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for unix.Unmount(at, unix.MNT_DETACH) == nil {
		}
	})
	if err := m.Remove(t.Context(), c.handle("still")); err != nil {
		t.Fatalf("Remove = %v", err)
	}
	gone(t, c.Dir)
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Errorf("what was mounted was emptied: %v", err)
	}
}
