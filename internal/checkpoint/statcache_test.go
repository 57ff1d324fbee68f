package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitOutSlack lets files become old enough to be believed.
func waitOutSlack() { time.Sleep(2 * ctimeSlack) }

func TestUnbelievableChangesAreRead(t *testing.T) {
	type change func(t *testing.T, path string)
	changes := map[string]change{
		"same size and mtime": func(t *testing.T, path string) {
			var st unix.Stat_t
			must(t, unix.Stat(path, &st), os.WriteFile(path, []byte("bbbb"), 0o644))
			setMTime(t, path, st.Mtim.Sec, st.Mtim.Nsec)
		},
		"renamed over with same mtime": func(t *testing.T, path string) {
			var st unix.Stat_t
			must(t, unix.Stat(path, &st), os.WriteFile(path+".new", []byte("bbbb"), 0o644))
			setMTime(t, path+".new", st.Mtim.Sec, st.Mtim.Nsec)
			must(t, os.Rename(path+".new", path))
		},
		"written through a mapping that stays dirty": func(t *testing.T, path string) {
			fd, err := unix.Open(path, unix.O_RDWR, 0)
			must(t, err)
			m, err := unix.Mmap(fd, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			copy(m, "bbbb")
			t.Cleanup(func() { unix.Munmap(m); unix.Close(fd) })
		},
		"attribute": func(t *testing.T, path string) { must(t, unix.Setxattr(path, "user.x", []byte("y"), 0)) },
		"mode":      func(t *testing.T, path string) { must(t, os.Chmod(path, 0o600)) },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			s := New(localBucket(t), Config{})
			cache, err := OpenCache(t.TempDir(), 0)
			must(t, err)
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			must(t, os.WriteFile(path, []byte("aaaa"), 0o644))
			waitOutSlack()
			one, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache})
			must(t, err)
			change(t, path)
			two, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &one.Ref})
			must(t, err)
			dst := t.TempDir()
			_, err = s.Restore(t.Context(), two.Ref, Target{Workspace: dst})
			must(t, err)
			mustEqualTrees(t, look(t, dir), look(t, dst))
			if two.ReadFiles != 1 {
				t.Errorf("read %d files, want 1", two.ReadFiles)
			}
		})
	}
}

// A mapping that was written, captured while dirty and written again shows no
// further change of times without a sync before the walk.
func TestMappingWrittenBetweenCaptures(t *testing.T) {
	s := New(localBucket(t), Config{})
	cache, err := OpenCache(t.TempDir(), 0)
	must(t, err)
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, []byte("aaaa"), 0o644))
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	must(t, err)
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(m)
	var parent *Ref
	for _, text := range []string{"bbbb", "cccc", "dddd"} {
		copy(m, text)
		waitOutSlack()
		c, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: parent})
		must(t, err)
		dst := t.TempDir()
		_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
		must(t, err)
		got, err := os.ReadFile(filepath.Join(dst, "f"))
		must(t, err)
		if string(got) != text {
			t.Fatalf("captured %q, want %q", got, text)
		}
		parent = &c.Ref
	}
}

func TestTmpfsIsNeverBelieved(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "checkpoint-test-")
	if err != nil {
		t.Skipf("NO TMPFS AT /dev/shm, so the rule for it is not tested: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := New(localBucket(t), Config{})
	cache, err := OpenCache(t.TempDir(), 0)
	must(t, err, os.WriteFile(filepath.Join(dir, "f"), []byte("aaaa"), 0o644))
	waitOutSlack()
	one, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache})
	must(t, err)
	two, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &one.Ref})
	must(t, err)
	if two.ReadFiles != 1 {
		t.Errorf("read %d files on tmpfs, want 1", two.ReadFiles)
	}
}

// TestRestoreTeachesTheCache: what was restored is not read again, but for the files of
// the last moment. The more there are, the fewer are of it, however fast the machine is.
func TestRestoreTeachesTheCache(t *testing.T) {
	s := New(localBucket(t), Config{})
	cache, err := OpenCache(t.TempDir(), 0)
	must(t, err)
	for n := 500; ; n *= 4 {
		dir, dst := t.TempDir(), t.TempDir()
		sourceTree(t, dir, n)
		one, err := s.Capture(t.Context(), Spec{Workspace: dir})
		must(t, err)
		_, err = s.Restore(t.Context(), one.Ref, Target{Workspace: dst, Cache: cache})
		must(t, err)
		two, err := s.Capture(t.Context(), Spec{Workspace: dst, Cache: cache, Parent: &one.Ref})
		must(t, err)
		if two.Workspace.Digest != one.Workspace.Digest {
			t.Error("digest differs after restore")
		}
		if two.ReadFiles <= int64(n)*4/5 {
			return
		}
		t.Logf("read %d of %d files after a restore", two.ReadFiles, n)
		if n > 5000 {
			t.Fatal("want only those of its last moment")
		}
	}
}

func TestDamagedCacheIsIgnored(t *testing.T) {
	s := New(localBucket(t), Config{})
	cacheDir := t.TempDir()
	cache, err := OpenCache(cacheDir, 0)
	must(t, err)
	dir := t.TempDir()
	sourceTree(t, dir, 50)
	waitOutSlack()
	one, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache})
	must(t, err)
	files, err := filepath.Glob(filepath.Join(cacheDir, "*"))
	if must(t, err); len(files) != 1 {
		t.Fatalf("cache holds %v, want one file", files)
	}
	good, err := os.ReadFile(files[0])
	must(t, err)
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 1
	for _, bad := range [][]byte{nil, good[:len(good)-1], flipped} {
		must(t, os.WriteFile(files[0], bad, 0o600))
		two, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &one.Ref})
		must(t, err)
		if two.ReadFiles != 50 || two.Workspace.Digest != one.Workspace.Digest {
			t.Errorf("read %d files, want all 50", two.ReadFiles)
		}
	}
}
