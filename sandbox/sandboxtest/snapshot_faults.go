package sandboxtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// testSnapshotRefused tries what must not work, and what is between a snapshot and its
// sandbox.
func testSnapshotRefused(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	r := resumer(t, d)
	c := start(t, d, "saved", 1)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sandbox.(sandbox.Snapshotter).Snapshot(within(t), full); err == nil {
		t.Error("Snapshot into a directory with files worked")
	}
	c.must("echo", "it runs on")
	if _, err := r.Prepare(within(t), sandbox.Spec{Session: "saved", Epoch: 2}); !errors.Is(err, sandbox.ErrInvalidSpec) {
		t.Errorf("Prepare without a snapshot = %v, want ErrInvalidSpec", err)
	}
	taken := c.snapshot()
	if _, err := c.Sandbox.(sandbox.Snapshotter).Snapshot(within(t), t.TempDir()); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Snapshot of a sandbox that has ended = %v, want ErrGone", err)
	}
	if _, err := r.Prepare(within(t), sandbox.Spec{Session: "saved", Epoch: 1, Resume: taken}); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Prepare of an epoch that was used = %v, want ErrGone", err)
	}
	if err := d.Remove(within(t), c.Handle()); err != nil {
		t.Fatal(err)
	}
	t.Run("Other", func(t *testing.T) { refusesOther(t, d, taken) })
	t.Run("Prepared", func(t *testing.T) { preparedCells(t, d, taken) })
	t.Run("Broken", func(t *testing.T) { refusesBroken(t, d, dir, taken) })
}

// refusesOther changes what a snapshot says about itself.
func refusesOther(t *testing.T, d sandbox.Driver, taken *sandbox.Resume) {
	for name, change := range map[string]func(*sandbox.Snapshot){
		"driver": func(s *sandbox.Snapshot) { s.Driver = "another" },
		"build":  func(s *sandbox.Snapshot) { s.Build += "x" },
		"form":   func(s *sandbox.Snapshot) { s.Build = "x" },
		"data":   func(s *sandbox.Snapshot) { s.Data = []byte(`{"token":"x"}`) },
		"none":   func(s *sandbox.Snapshot) { s.Data = nil },
	} {
		resume := *taken
		change(&resume.Snapshot)
		spec := sandbox.Spec{Session: "other", Epoch: 2, Resume: &resume}
		for what, try := range map[string]func() error{
			"Prepare": func() error { _, err := resumer(t, d).Prepare(within(t), spec); return err },
			"Create":  func() error { _, err := d.Create(within(t), spec); return err },
		} {
			err := try()
			if !errors.Is(err, sandbox.ErrUnsupported) && !errors.Is(err, sandbox.ErrInvalidSpec) {
				t.Errorf("%s with a snapshot whose %s is another = %v, want a refusal", what, name, err)
			}
		}
	}
	if hs := list(t, d); len(hs) != 0 {
		t.Errorf("List after refusals = %+v, want none", hs)
	}
}

// preparedCells looks at sandboxes of which there are directories and nothing else.
func preparedCells(t *testing.T, d sandbox.Driver, taken *sandbox.Resume) {
	spec := sandbox.Spec{Session: "prepared", Epoch: 2, Resume: taken}
	if _, err := d.Create(within(t), spec); !errors.Is(err, sandbox.ErrInvalidSpec) {
		t.Errorf("Create with a snapshot and without Prepare = %v, want ErrInvalidSpec", err)
	}
	var dirs sandbox.Dirs
	for range 2 { // the second one starts anew
		var err error
		dirs, err = resumer(t, d).Prepare(within(t), spec)
		if err != nil {
			t.Fatalf("Prepare = %v", err)
		}
		if left := glob(t, dirs.Workspace, "*"); len(left) != 0 {
			t.Errorf("a prepared workspace has %q", left)
		}
		if err := os.WriteFile(filepath.Join(dirs.Workspace, "restored"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hs := list(t, d)
	if len(hs) != 1 || hs[0].Epoch != 2 {
		t.Fatalf("List = %+v, want the prepared one", hs)
	}
	if _, err := d.Recover(within(t), hs[0]); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Recover of a prepared sandbox = %v, want ErrGone", err)
	}
	if _, err := d.Remains(within(t), hs[0]); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Remains of a prepared sandbox = %v, want ErrGone", err)
	}
	fresh := start(t, d, "prepared", 2) // the cold start that follows on a failure
	if _, code := fresh.run("test", "-e", sandbox.WorkspacePath+"/restored"); code == 0 {
		t.Error("a fresh sandbox has the files of one that was prepared")
	}
	if _, err := resumer(t, d).Prepare(within(t), spec); err == nil {
		t.Error("Prepare in place of a running sandbox worked")
	}
	fresh.must("echo", "it runs on")
	if err := fresh.Destroy(within(t)); err != nil {
		t.Errorf("Destroy = %v", err)
	}
	if _, err := resumer(t, d).Prepare(within(t), spec); err != nil {
		t.Fatalf("Prepare = %v", err)
	}
	if err := d.Remove(within(t), hs[0]); err != nil {
		t.Errorf("Remove of a prepared sandbox = %v", err)
	}
	if _, err := os.Stat(dirs.Workspace); !os.IsNotExist(err) || len(list(t, d)) != 0 {
		t.Errorf("after Remove the prepared sandbox is still there: %v", err)
	}
}

// refusesBroken cuts the files of a snapshot short and writes over them.
func refusesBroken(t *testing.T, d sandbox.Driver, dir string, taken *sandbox.Resume) {
	for name, damage := range map[string]func(path string, size int64) error{
		"cut":   func(path string, size int64) error { return os.Truncate(path, size/2) },
		"empty": func(path string, _ int64) error { return os.Truncate(path, 0) },
		"gone":  func(path string, _ int64) error { return os.Remove(path) },
		"noise": func(path string, size int64) error {
			return os.WriteFile(path, []byte(strings.Repeat("noise", int(min(size, 1<<20)/5+1))), 0o600)
		},
	} {
		broken := t.TempDir()
		copyTree(t, taken.Dir, broken)
		for _, path := range glob(t, broken, "*") {
			info, err := os.Stat(path)
			if err == nil {
				err = damage(path, info.Size())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		spec := sandbox.Spec{Session: "broken", Epoch: 2, Resume: &sandbox.Resume{Dir: broken, Snapshot: taken.Snapshot}}
		if _, err := resumer(t, d).Prepare(within(t), spec); err != nil {
			t.Fatalf("Prepare = %v", err)
		}
		if _, err := d.Create(within(t), spec); err == nil {
			t.Errorf("Create with files that are %s worked", name)
		}
		if hs := list(t, d); len(hs) != 0 {
			t.Errorf("files that are %s: List = %+v, want none", name, hs)
		}
		if ps := processesOf(t, filepath.Join(dir, "sandboxes", "broken-2")); len(ps) != 0 {
			t.Errorf("files that are %s: processes left: %q", name, ps)
		}
	}
}

// testSnapshotBrokenOff ends snapshots early, and lets the disk run full: the sandbox runs
// on or it has ended, and its files are there.
func testSnapshotBrokenOff(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	resumer(t, d)
	moments := []time.Duration{0, 5, 20, 40, 70, 100, 150, 250, 400}
	if testing.Short() {
		moments = []time.Duration{0, 30, 90, 200}
	}
	var c *cell
	for i, ms := range moments {
		if c == nil {
			c = start(t, d, "early", int64(i))
			c.launch("sleeper", "sleep", "600")
		}
		ctx, cancel := context.WithTimeout(context.Background(), ms*time.Millisecond)
		_, err := c.Sandbox.(sandbox.Snapshotter).Snapshot(ctx, t.TempDir())
		cancel()
		if running := checkBrokenOff(t, d, c, err); !running {
			c = nil
		}
	}
	t.Run("FullDisk", func(t *testing.T) { snapshotOnFullDisk(t, d) })
}

// checkBrokenOff looks at a sandbox after a snapshot and reports whether it runs on.
func checkBrokenOff(t *testing.T, d sandbox.Driver, c *cell, err error) bool {
	t.Helper()
	select {
	case <-c.Done():
	default:
		if err == nil {
			t.Error("the sandbox runs after its snapshot")
		}
		again := connect(t, c.Sandbox)
		if got := again.must("echo", "on"); got != "on\n" || !again.alive("sleeper") {
			t.Errorf("after a snapshot that failed with %v the sandbox answers %q", err, got)
		}
		return true
	}
	if saved := sandbox.ReasonOf(c.Err()) == sandbox.EndSnapshot; saved != (err == nil) {
		t.Errorf("Snapshot = %v, and the sandbox ended with %v", err, c.Err())
	}
	if _, err := d.Remains(within(t), c.Handle()); err != nil {
		t.Errorf("Remains = %v", err)
	}
	if err := c.Destroy(within(t)); err != nil {
		t.Errorf("Destroy = %v", err)
	}
	return false
}

func snapshotOnFullDisk(t *testing.T, d sandbox.Driver) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("SKIPPED: a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c := start(t, d, "full", 1)
	c.launch("sleeper", "sleep", "600")
	_, err := c.Sandbox.(sandbox.Snapshotter).Snapshot(within(t), dir)
	if err == nil {
		t.Fatal("Snapshot on a full disk worked")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Bfree < fs.Blocks*9/10 {
		t.Errorf("the failed snapshot fills the disk still: %d of %d blocks are free, %v", fs.Bfree, fs.Blocks, err)
	}
	if !checkBrokenOff(t, d, c, err) {
		t.Fatalf("a full disk ended the sandbox: %v", c.Err())
	}
	c = connect(t, c.Sandbox)
	again := resume(t, d, 2, c, c.snapshot())
	if !again.alive("sleeper") {
		t.Error("a snapshot after one that failed lost a process")
	}
}

// The stages of the server that testSnapshotCrash kills.
const (
	stageCreate   = 'c'
	stageSnapshot = 's'
	stagePrepare  = 'p'
	stageRestore  = 'r'
	stageDestroy  = 'd'
)

// testSnapshotCrash kills servers at every stage from one sandbox to the next.
func testSnapshotCrash(t *testing.T, s *Suite) {
	if s.InProcess {
		t.Skip("SKIPPED: sandboxes of this driver die with the server's process")
	}
	if s.Pool {
		t.Skip("SKIPPED: the server that is killed has no pool; the suite without one has tried this")
	}
	dir := s.newDir(t)
	d := s.open(t, dir)
	resumer(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		for _, stage := range []byte{stageCreate, stageSnapshot, stageRestore, stageDestroy} {
			delay := time.Duration(rand.IntN(250)) * time.Millisecond
			crashAt(t, stage, delay, commandSnapshotCrash, dir, t.TempDir())
			d := s.open(t, dir)
			left := list(t, d)
			running := checkLeft(t, s, d, dir, left)
			t.Logf("killed %v after stage %c: left %d sandboxes, of which %d ran on", delay, stage, len(left), running)
			if running > 1 {
				t.Errorf("a sandbox and the one that was resumed from it both run")
			}
			if err := d.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
		}
	}
}

// saveForever is the server that is killed: it moves the processes of one sandbox to the
// next, and says at which stage it is.
func saveForever(open Open, dir, images string) int {
	d, err := open(dir)
	if err != nil {
		return 1
	}
	for i := int64(0); ; i += 2 {
		if err := saveOnce(d, i, filepath.Join(images, strconv.FormatInt(i, 10))); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
	}
}

func saveOnce(d sandbox.Driver, epoch int64, image string) error {
	ctx := context.Background()
	at := func(stage byte) { _, _ = os.Stdout.Write([]byte{stage}) }
	at(stageCreate)
	first, err := d.Create(ctx, sandbox.Spec{Session: "crash", Epoch: epoch})
	if err != nil {
		return err
	}
	if _, err := first.Dial(ctx); err != nil { // so that the keeper runs
		return err
	}
	if err := os.Mkdir(image, 0o700); err != nil {
		return err
	}
	at(stageSnapshot)
	snap, err := first.(sandbox.Snapshotter).Snapshot(ctx, image)
	if err != nil {
		return err
	}
	spec := sandbox.Spec{Session: "crash", Epoch: epoch + 1, Resume: &sandbox.Resume{Dir: image, Snapshot: snap}}
	at(stagePrepare)
	if _, err := d.(sandbox.Resumer).Prepare(ctx, spec); err != nil {
		return err
	}
	at(stageRestore)
	second, err := d.Create(ctx, spec)
	if err != nil {
		return err
	}
	at(stageDestroy)
	return errors.Join(first.Destroy(ctx), second.Destroy(ctx), os.RemoveAll(image))
}
