package keeper_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

func TestFiles(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c, ctx, dir := dial(), t.Context(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Fatalf("error = %v, want %v", err, want)
		}
	}

	must(c.CreateDirectory(ctx, at("a/b"), true))
	must(c.CreateDirectory(ctx, at("a/b"), true))
	is(c.CreateDirectory(ctx, at("a/b"), false), fs.ErrExist)
	is(c.CreateDirectory(ctx, at("x/y"), false), fs.ErrNotExist)

	data := []byte{0, 0xff, '\n', 0xe9}
	odd := at("a/f\xff #?%")
	must(c.WriteFile(ctx, odd, []byte("something longer")))
	must(c.WriteFile(ctx, odd, data))
	got, err := c.ReadFile(ctx, odd)
	must(err)
	if !bytes.Equal(got, data) {
		t.Fatalf("read %q, want %q", got, data)
	}
	must(c.WriteFile(ctx, at("empty"), nil))
	if got, err = c.ReadFile(ctx, at("empty")); err != nil || len(got) != 0 {
		t.Fatalf("empty file: %q, %v", got, err)
	}
	_, err = c.ReadFile(ctx, at("none"))
	is(err, fs.ErrNotExist)
	_, err = c.ReadFile(ctx, at("empty/below"))
	is(err, fs.ErrNotExist)

	must(os.Symlink("f\xff #?%", at("a/link")))
	must(os.Symlink("nowhere", at("a/dangling")))
	entries, err := c.ReadDirectory(ctx, at("a"))
	must(err)
	want := []link.DirEntry{{Name: "b", IsDirectory: true}, {Name: "dangling"}, {Name: "f\xff #?%", IsFile: true}, {Name: "link"}}
	if fmt.Sprint(entries) != fmt.Sprint(want) {
		t.Fatalf("entries = %+v, want %+v", entries, want)
	}
	for name, want := range map[string]link.Metadata{
		"a": {IsDirectory: true}, "a/link": {IsFile: true, IsSymlink: true, Size: 4}, "a/dangling": {IsSymlink: true, Size: 7},
	} {
		m, err := c.GetMetadata(ctx, at(name))
		must(err)
		if m.IsDirectory != want.IsDirectory || m.IsFile != want.IsFile || m.IsSymlink != want.IsSymlink || (want.Size > 0 && m.Size != want.Size) || m.ModifiedAtMs == 0 {
			t.Errorf("metadata of %s = %+v, want %+v", name, m, want)
		}
	}
	real, err := c.Canonicalize(ctx, at("a/b/../link"))
	must(err)
	if real != odd {
		t.Fatalf("canonical = %q, want %q", real, odd)
	}
	walked, err := c.Walk(ctx, dir)
	must(err)
	if len(walked) != 6 || walked[0].Path != at("a") {
		t.Fatalf("walk = %+v", walked)
	}

	if err := c.CopyPath(ctx, at("a"), at("copy"), false); err == nil {
		t.Fatal("copied a directory although recursive was not set")
	}
	if err := c.CopyPath(ctx, at("a"), at("a/b/c"), true); err == nil {
		t.Fatal("copied a directory into itself")
	}
	must(os.Chmod(odd, 0o640))
	must(c.CopyPath(ctx, at("a"), at("copy"), true))
	info, err := os.Stat(at("copy/link"))
	must(err)
	if info.Mode().Perm() != 0o640 || info.Size() != 4 {
		t.Fatalf("copied file: %v, %d bytes", info.Mode(), info.Size())
	}
	if target, err := os.Readlink(at("copy/dangling")); err != nil || target != "nowhere" {
		t.Fatalf("copied link: %q, %v", target, err)
	}

	if err := c.RemovePath(ctx, at("a"), false, false); err == nil {
		t.Fatal("removed a full directory although recursive was not set")
	}
	must(c.RemovePath(ctx, at("a"), true, false))
	must(c.RemovePath(ctx, at("a"), true, true))
	is(c.RemovePath(ctx, at("a"), true, false), fs.ErrNotExist)
}

// TestOddFilesAreRefused: a pipe would hold the call, a device has no end.
func TestOddFilesAreRefused(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c, dir := dial(), t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, link.MaxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fifo, "/dev/zero", dir} {
		if _, err := c.ReadFile(t.Context(), name); err == nil {
			t.Errorf("read %s", name)
		}
		if err := c.WriteFile(t.Context(), name, []byte("x")); err == nil {
			t.Errorf("wrote %s", name)
		}
	}
	if _, err := c.ReadFile(t.Context(), big); !errors.Is(err, link.ErrLimit) {
		t.Errorf("read %d bytes: %v, want ErrLimit", link.MaxFileBytes+1, err)
	}
	if err := c.WriteFile(t.Context(), big, make([]byte, link.MaxFileBytes+1)); !errors.Is(err, link.ErrLimit) {
		t.Errorf("write %d bytes: %v, want ErrLimit", link.MaxFileBytes+1, err)
	}
	if err := c.WriteFile(t.Context(), big, make([]byte, link.MaxFileBytes)); err != nil {
		t.Errorf("the largest file: %v", err)
	}
	if got, err := c.ReadFile(t.Context(), big); err != nil || len(got) != link.MaxFileBytes {
		t.Errorf("the largest file: %d bytes, %v", len(got), err)
	}
	if err := c.CopyPath(t.Context(), dir, filepath.Join(t.TempDir(), "c"), true); err == nil {
		t.Error("a copy without the pipe was called complete")
	}
}
