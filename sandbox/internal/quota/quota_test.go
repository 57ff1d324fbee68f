package quota

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const limit = 16 << 20

// newSpace makes a space with a method, or skips the test where it does not work.
func newSpace(t testing.TB, m Method, root string) string {
	t.Helper()
	d := &Disks{method: m}
	if err := d.try(t.Context(), root); err != nil {
		t.Skipf("SKIPPED: no spaces of the kind %s here: %v", m, err)
	}
	dir := filepath.Join(root, "space")
	t.Cleanup(func() {
		if err := Remove(context.Background(), dir); err != nil {
			t.Errorf("Remove = %v", err)
		}
	})
	if got, err := d.Make(t.Context(), dir, limit); err != nil || got != m {
		t.Fatalf("Make = %s, %v", got, err)
	}
	return dir
}

// fill writes to a file until it fails, and says how much went in.
func fill(t testing.TB, path string, most int64) (int64, error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := bytes.Repeat([]byte("fill"), 16<<10)
	var sum int64
	for sum < most {
		n, err := f.Write(block)
		sum += int64(n)
		if err != nil {
			return sum, err
		}
	}
	return sum, f.Sync()
}

func TestImageBoundsAndSurvives(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := newSpace(t, Image, root)
	if u, err := Used(dir, Image); err != nil || u.Full || u.Bytes > limit/2 {
		t.Errorf("Used of an empty space = %+v, %v", u, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	sum, err := fill(t, filepath.Join(dir, "big"), 4*limit)
	if !errors.Is(err, unix.ENOSPC) || sum > limit || sum < limit/2 {
		t.Errorf("%d bytes went in before %v, want at most %d and then ENOSPC", sum, err, limit)
	}
	if u, err := Used(dir, Image); err != nil || !u.Full || u.Bytes > limit {
		t.Errorf("Used of a full space = %+v, %v", u, err)
	}
	if err := os.WriteFile(filepath.Join(root, "neighbour"), make([]byte, limit), 0o644); err != nil {
		t.Errorf("write beside a full space: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "big")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "again"), make([]byte, limit/4), 0o644); err != nil {
		t.Errorf("write after room was made: %v", err)
	}

	// The machine was turned off: the mount is gone, the image is there.
	unix.Sync()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is mounted
		if err := Ensure(dir, Image); err != nil {
			t.Fatalf("Ensure = %v", err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "kept")); err != nil || string(b) != "kept" {
		t.Errorf("after a restart the file = %q, %v", b, err)
	}
	for range 2 {
		if err := Remove(t.Context(), dir); err != nil {
			t.Fatalf("Remove = %v", err)
		}
	}
	if _, err := os.Stat(imageOf(dir)); !os.IsNotExist(err) {
		t.Errorf("the image is left: %v", err)
	}
	wantNoLoop(t, imageOf(dir))
}

// wantNoLoop waits until no loop device has the image.
func wantNoLoop(t *testing.T, image string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := ""
		backings, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, b := range backings {
			if name, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(name), image) {
				left = b
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s still has the image", left)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestImageIsAttachedOnce mounts an image again while another mount namespace, played
// by a second mount, still has it.
func TestImageIsAttachedOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := newSpace(t, Image, root)
	second := t.TempDir()
	if err := unix.Mount(dir, second, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(second, unix.MNT_DETACH) })
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(dir, Image); err != nil {
		t.Fatalf("Ensure = %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(second, "one")); err != nil || string(b) != "one" {
		t.Errorf("through the other mount the file = %q, %v, want the same file system", b, err)
	}
}

func TestProjectBounds(t *testing.T) {
	t.Parallel()
	dir := newSpace(t, Project, quotaFileSystem(t))
	sum, err := fill(t, filepath.Join(dir, "big"), 2*limit)
	// Root is not held back by quotas on ext4; sandboxes are not the host's root.
	if os.Geteuid() == 0 && err == nil {
		t.Logf("root wrote %d bytes, as it may", sum)
	}
	u, err := Used(dir, Project)
	if err != nil || !u.Full || u.Bytes < limit/2 {
		t.Errorf("Used = %+v, %v, want it full", u, err)
	}
	if err := exec.Command("/bin/chmod", "0777", dir).Run(); err != nil {
		t.Fatal(err)
	}
	script := exec.Command("/bin/dd", "if=/dev/zero", "of="+filepath.Join(dir, "more"), "bs=64k", "count=16")
	script.SysProcAttr = asNobody()
	if out, err := script.CombinedOutput(); err == nil {
		t.Errorf("a user wrote to a full space: %s", out)
	}
}

// quotaFileSystem mounts a file system with project quotas.
func quotaFileSystem(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "img"), filepath.Join(dir, "at")
	if err := errors.Join(os.Mkdir(at, 0o755), os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/usr/sbin/mkfs.ext4", "-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota", image).CombinedOutput()
	if err == nil {
		out, err = exec.Command("/bin/mount", "-o", "loop,prjquota", image, at).CombinedOutput()
	}
	if err != nil {
		t.Skipf("SKIPPED: no file system with project quotas can be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for d := at; d != "/tmp" && d != "/"; d = filepath.Dir(d) { // for another user
		_ = os.Chmod(d, 0o755)
	}
	return at
}

func TestWatchMakesADirectory(t *testing.T) {
	t.Parallel()
	dir := newSpace(t, Watch, t.TempDir())
	if u, err := Used(dir, Watch); err != nil || u != (Use{}) {
		t.Errorf("Used = %+v, %v, want nothing", u, err)
	}
	if err := Ensure(dir, Watch); err != nil {
		t.Errorf("Ensure = %v", err)
	}
	if _, err := (&Disks{method: Watch}).Make(t.Context(), dir+"2", MinBytes-1); err == nil {
		t.Error("Make of less than the least succeeded")
	}
}

func TestOpenFindsAMethodAndLeavesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d := Open(t.Context(), root)
	if (d.Method() == Watch) != (d.Missing() != "") {
		t.Errorf("method %s, missing %q", d.Method(), d.Missing())
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("Open left %v, %v", left, err)
	}
}

// BenchmarkMake compares a space with a file system of its own with a directory.
func BenchmarkMake(b *testing.B) {
	root := b.TempDir()
	d := &Disks{method: Image}
	if err := d.try(b.Context(), root); err != nil {
		b.Skipf("SKIPPED: no images here: %v", err)
	}
	var space, mkfs time.Duration
	for b.Loop() {
		began := time.Now()
		dir := filepath.Join(root, "space")
		if _, err := d.Make(b.Context(), dir, 10<<30); err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(Remove(b.Context(), dir), os.Remove(dir)); err != nil {
			b.Fatal(err)
		}
		space += time.Since(began)

		began = time.Now()
		img := filepath.Join(root, "plain")
		if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, 10<<30)); err != nil {
			b.Fatal(err)
		}
		if out, err := exec.Command("/usr/sbin/mkfs.ext4", "-q", "-F", img).CombinedOutput(); err != nil {
			b.Fatal(err, string(out))
		}
		if err := os.Remove(img); err != nil {
			b.Fatal(err)
		}
		mkfs += time.Since(began)
	}
	b.ReportMetric(float64(space)/float64(mkfs), "x-plain-mkfs")
}

// TestSweepRemovesATrialThatWasKilled leaves what a server leaves that dies while it finds
// out what works.
func TestSweepRemovesATrialThatWasKilled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	d := Open(t.Context(), root)
	trial := filepath.Join(root, trialPrefix+"1")
	if err := os.Mkdir(trial, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Make(t.Context(), spaceOf(trial), MinBytes); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(root, "sandboxes")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Open(t.Context(), root).Sweep(t.Context()); err != nil {
		t.Fatalf("Sweep = %v", err)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != 1 || left[0].Name() != "sandboxes" {
		t.Errorf("left: %v, %v, want the directory of sandboxes alone", left, err)
	}
	wantNoLoop(t, imageOf(spaceOf(trial)))
}
