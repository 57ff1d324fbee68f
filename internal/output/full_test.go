package output_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// volume returns a file system of 1 MiB.
func volume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIPPED, the full disk is NOT tested: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fill leaves less than a block free.
func fill(t *testing.T, dir string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return ballast
}

// TestFullDiskCutsAndSaysSo: an exec that fills the disk is not failed and not
// held up; what was shown of it stays.
func TestFullDiskCutsAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most  int
		least int64 // kept: where runs are tiny, records take most of the room
	}{{2, 100_000}, {100, 500_000}, {5000, 500_000}, {100_000, 500_000}} {
		most := c.most
		dir := volume(t)
		s := reopen(t, filepath.Join(dir, "outputs"), output.Config{})
		all := chunks(7, 3_000_000/most, most)
		want := modelOf(all)
		w := writer(t, s, "exec")
		write(t, w, all)
		sizes := w.Sizes()
		total := int64(len(want.all))
		if sizes.Stdout+sizes.Stderr != total || sizes.Cut != output.CutNoSpace || sizes.KeptTotal < c.least || sizes.KeptTotal > 1<<20 {
			t.Errorf("chunks of %d: Sizes of %d bytes on 1 MiB are %+v", most, total, sizes)
		}
		if behind := total - w.Durable(); behind > 16<<10 {
			t.Errorf("chunks of %d: a keeper has to hold %d bytes that will not be kept", most, behind)
		}
		live := reader(t, s, "exec", nil)
		if inline := finish(t, w); inline != nil {
			t.Errorf("chunks of %d: Finish gives a blob of %d bytes beside files", most, len(inline))
		}
		check(t, live, want.prefix(sizes.KeptTotal), 0)
		r := reader(t, s, "exec", nil)
		check(t, r, want.prefix(sizes.KeptTotal), 100_000)
		if got, finished := r.Sizes(); got != sizes || !finished {
			t.Errorf("chunks of %d: the reader's Sizes are %+v, %v, want %+v", most, got, finished, sizes)
		}
	}
}

// TestWhatWasShownFindsRoom: the disk fills while the newest bytes are in memory
// only. A reader has seen them, so they are kept.
func TestWhatWasShownFindsRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		runs, bytes int
		cut         output.Cut
	}{{1, 9000, ""}, {250, 30, ""}, {2000, 1, output.CutNoSpace}} {
		dir := volume(t)
		s := reopen(t, filepath.Join(dir, "outputs"), output.Config{})
		w := writer(t, s, "exec")
		live := reader(t, s, "exec", nil)
		all := []chunk{{false, make([]byte, 3<<12)}, {false, make([]byte, 2<<12)}, {true, make([]byte, c.bytes)}}
		write(t, w, all)
		fill(t, dir)
		for i := 1; i < c.runs; i++ {
			all = append(all, chunk{i%2 == 0, bytes.Repeat([]byte{byte(i)}, c.bytes)})
		}
		write(t, w, all)
		sizes := w.Sizes()
		if sizes.Cut != c.cut || c.cut == "" && sizes.KeptTotal != w.Total() {
			t.Errorf("%d runs: Sizes of %d bytes are %+v, want cut %q", c.runs, w.Total(), sizes, c.cut)
		}
		finish(t, w)
		want := modelOf(all).prefix(sizes.KeptTotal)
		check(t, live, want, 0)
		check(t, reader(t, s, "exec", nil), want, 0)
	}
}

// TestNoRoomForFilesKeepsTheHead: the first bytes stay in memory, and go to the
// database with the end.
func TestNoRoomForFilesKeepsTheHead(t *testing.T) {
	t.Parallel()
	dir := volume(t)
	s := reopen(t, filepath.Join(dir, "outputs"), output.Config{})
	ballast := fill(t, dir)
	for _, size := range []int{100, 20_000, 300_000} {
		all := []chunk{{true, bytes.Repeat([]byte("e"), 50)}, {false, bytes.Repeat([]byte("o"), size)}, {true, bytes.Repeat([]byte("e"), 20_000)}}
		want := modelOf(all)
		w := writer(t, s, "exec")
		write(t, w, all)
		sizes := w.Sizes()
		if sizes.Stderr != 20_050 || sizes.Stdout != int64(size) || sizes.KeptTotal < 150 || sizes.KeptTotal > 16<<10 || sizes.Cut != output.CutNoSpace {
			t.Errorf("Sizes are %+v", sizes)
		}
		if behind := w.Total() - w.Durable(); behind > 16<<10 {
			t.Errorf("a keeper has to hold %d bytes that will not be kept", behind)
		}
		inline := finish(t, w)
		check(t, reader(t, s, "exec", inline), want.prefix(sizes.KeptTotal), 0)
		if left, err := filepath.Glob(filepath.Join(dir, "outputs", "*", "*")); err != nil || len(left) > 0 {
			t.Errorf("left are %v (%v)", left, err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	w := writer(t, s, "exec")
	all := chunks(8, 10, 10_000)
	write(t, w, all)
	check(t, reader(t, s, "exec", finish(t, w)), modelOf(all), 0)
}

// TestLowDiskKeepsTheHead: below the reserve an output has its first bytes in
// files, and is counted from there.
func TestLowDiskKeepsTheHead(t *testing.T) {
	t.Parallel()
	s, dir := open(t, output.Config{MinFree: 1 << 60})
	all := []chunk{{false, bytes.Repeat([]byte("o"), 10_000)}, {true, bytes.Repeat([]byte("e"), 100_000)}}
	want := output.Sizes{Stdout: 10_000, Stderr: 100_000, KeptTotal: 16 << 10, Cut: output.CutNoSpace}
	w := writer(t, s, "exec")
	write(t, w, all)
	if got := w.Sizes(); got != want || w.Durable() != 110_000 {
		t.Errorf("Sizes are %+v, %d durable, want %+v, all", got, w.Durable(), want)
	}
	w.Close()
	w = writer(t, reopen(t, dir, output.Config{}), "exec") // counts are durable as well
	if got := w.Sizes(); got != want || w.Total() != 110_000 {
		t.Errorf("after a crash Sizes are %+v of %d, want %+v", got, w.Total(), want)
	}
	finish(t, w)
	check(t, reader(t, s, "exec", nil), modelOf(all).prefix(16<<10), 0)
}
