package quota

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// nobody is a user without privileges.
const nobody = 65534

func asNobody() *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

func TestMeasureCountsWhatIsOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, err := Measure(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 1<<20)
	for i := range big {
		big[i] = byte(i)
	}
	sub := filepath.Join(dir, "sub")
	if err := errors.Join(
		os.Mkdir(sub, 0o755),
		os.WriteFile(filepath.Join(sub, "one"), big, 0o644),
		os.Link(filepath.Join(sub, "one"), filepath.Join(dir, "again")),
		os.Symlink("/usr", filepath.Join(dir, "usr")),
		os.Symlink("loop", filepath.Join(dir, "loop")),
		os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o644),
		os.Truncate(filepath.Join(dir, "sparse"), 1<<40),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	got, err := Measure(t.Context(), dir, 0)
	if err != nil || got-empty < 1<<20 || got-empty > 1<<20+64<<10 {
		t.Errorf("Measure = %d more than %d, %v, want one MiB", got-empty, empty, err)
	}
	if got, err := Measure(t.Context(), dir, 4096); err != nil || got <= 4096 {
		t.Errorf("Measure up to a bound = %d, %v", got, err)
	}
}

func TestMeasureOpensWhatIsShut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shut := filepath.Join(dir, "shut")
	if err := errors.Join(os.Mkdir(shut, 0o755), os.WriteFile(filepath.Join(shut, "f"), make([]byte, 1<<20), 0o644), os.Chmod(shut, 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(shut, 0o755) })
	if got, err := Measure(t.Context(), dir, 0); err != nil || got < 1<<20 {
		t.Errorf("Measure = %d, %v, want what is in the shut directory", got, err)
	}
	if st, err := os.Stat(shut); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("afterwards the directory is %v, %v, want shut", st.Mode(), err)
	}
}

func TestMeasureGivesUpOnDepth(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	root, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	for i := range measureDepth + 2 {
		name := "d" + strconv.Itoa(i%10)
		if err := root.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := root.OpenRoot(name)
		root.Close()
		if err != nil {
			t.Fatal(err)
		}
		root = next
	}
	root.Close()
	if _, err := Measure(t.Context(), top, 0); !errors.Is(err, ErrTooDeep) {
		t.Errorf("Measure = %v, want ErrTooDeep", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx, top, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("Measure without time = %v, want Canceled", err)
	}
}
