package local

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

func TestSkeletonIsMadeOnceAndHoldsNothingPrivate(t *testing.T) {
	dir := t.TempDir()
	s, err := NewSkeletons(dir).For(nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := NewSkeletons(dir).For(nil)
	if err != nil || again.Dir != s.Dir {
		t.Errorf("a second skeleton is %s, %v, want %s", again.Dir, err, s.Dir)
	}
	for _, name := range []string{"etc/shadow", "etc/gshadow", "etc/sudoers", "etc/ssh", "etc/ssl/private", "etc/gitconfig", "etc/environment"} {
		if _, err := os.Lstat(filepath.Join(s.Dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is in the skeleton", name)
		}
	}
	for _, name := range []string{"etc/passwd", "workspace", "home/agent", ".sojourn/sojourn", "run/sojourn", "tmp", "proc", "dev", "usr"} {
		if _, err := os.Lstat(filepath.Join(s.Dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSkeletonHasMountPointsOfLayers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "x")
	s, err := NewSkeletons(dir).For([]sandbox.Mount{{Source: t.TempDir(), Target: "/agents/a"}, {Source: file, Target: "/agents/file"}})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(s.Dir, "agents/a")); err != nil || !info.IsDir() {
		t.Errorf("mount point of a directory: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(s.Dir, "agents/file")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("mount point of a file: %v, %v", info, err)
	}
	plain, err := NewSkeletons(dir).For(nil)
	if err != nil || plain.Dir == s.Dir {
		t.Errorf("the skeleton without layers is %s, %v: the same", plain.Dir, err)
	}
	if _, err := NewSkeletons(dir).For([]sandbox.Mount{{Source: "/does/not/exist", Target: "/x"}}); err == nil {
		t.Error("a layer that is not there is accepted")
	}
}

func TestPruneRemovesWhatIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	s := NewSkeletons(dir)
	made, err := s.For(nil)
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, dir, "root-new-x/etc", "sandboxes")
	if err := s.Prune(time.Now()); err != nil {
		t.Fatal(err)
	}
	gone(t, filepath.Join(dir, "root-new-x"))
	if _, err := os.Stat(made.Dir); err != nil {
		t.Errorf("a skeleton in use: %v", err)
	}
	if err := s.Prune(time.Now().Add(2 * unusedTime)); err != nil {
		t.Fatal(err)
	}
	gone(t, made.Dir)
	if _, err := os.Stat(filepath.Join(dir, "sandboxes")); err != nil {
		t.Errorf("what is no skeleton: %v", err)
	}
}

func BenchmarkSkeletonThatExists(b *testing.B) {
	s := NewSkeletons(b.TempDir())
	for b.Loop() {
		if _, err := s.For(nil); err != nil {
			b.Fatal(err)
		}
	}
}
