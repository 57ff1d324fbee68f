package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"gocloud.dev/blob/memblob"
)

func newStore(t testing.TB) *Store {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { bucket.Close() })
	return New(bucket, id)
}

// source is a directory with files like those of a sandbox's memory.
func source(t testing.TB, size int) (dir string, files map[string][]byte) {
	t.Helper()
	dir = t.TempDir()
	files = map[string][]byte{"empty": {}, "pages.img": make([]byte, size), "state.img": []byte("the secret of a process")}
	rand.Read(files["pages.img"][:size/2])
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, files
}

func TestLoadGivesWhatWasSaved(t *testing.T) {
	s := newStore(t)
	dir, files := source(t, 3<<20)
	key, stored, err := s.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := s.bucket.ReadAll(t.Context(), key)
	if err != nil || int64(len(raw)) != stored {
		t.Errorf("stored %d bytes, said %d: %v", len(raw), stored, err)
	}
	if bytes.Contains(raw, []byte("secret")) || bytes.Contains(raw, []byte("state.img")) {
		t.Error("the object shows what it holds")
	}
	into := t.TempDir()
	if err := s.Load(t.Context(), key, into); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(into, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came back with %d bytes: %v", name, len(got), err)
		}
	}
	if err := s.Load(t.Context(), key, into); err == nil {
		t.Error("a load over existing files succeeded")
	}
}

// TestDamageIsNoticed flips and cuts bytes all over an object.
func TestDamageIsNoticed(t *testing.T) {
	s := newStore(t)
	dir, _ := source(t, 300<<10)
	key, _, err := s.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := s.bucket.ReadAll(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, damaged []byte) {
		t.Helper()
		if err := s.bucket.WriteAll(t.Context(), key, damaged, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Load(t.Context(), key, t.TempDir()); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: Load = %v, want ErrDamaged", what, err)
		}
	}
	for i := 1; i <= 40; i++ {
		at := len(raw) * i / 41
		flipped := bytes.Clone(raw)
		flipped[at] ^= 1
		try("a flipped bit", flipped)
		try("a cut end", raw[:at])
	}
	try("more at the end", append(bytes.Clone(raw), 0))
	other := newStore(t)
	theirs, _, err := other.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.bucket.ReadAll(t.Context(), theirs)
	if err != nil {
		t.Fatal(err)
	}
	try("another key", foreign)
	// Stored by this store, for somebody else.
	elsewhere, _, err := s.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if foreign, err = s.bucket.ReadAll(t.Context(), elsewhere); err != nil {
		t.Fatal(err)
	}
	try("another object", foreign)
}

func TestSaveBrokenOffLeavesNothing(t *testing.T) {
	s := newStore(t)
	dir, _ := source(t, 1<<20)
	if err := os.Mkdir(filepath.Join(dir, "zz"), 0o700); err != nil { // met after the files
		t.Fatal(err)
	}
	if _, _, err := s.Save(t.Context(), dir); err == nil {
		t.Error("a directory in a directory was stored")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Save(ctx, dir); err == nil {
		t.Error("a cancelled save succeeded")
	}
	if keys, err := s.Older(t.Context(), time.Now().Add(time.Hour)); err != nil || len(keys) > 0 {
		t.Errorf("left behind: %v, %v", keys, err)
	}
}

func TestOlderAndDelete(t *testing.T) {
	s := newStore(t)
	dir, _ := source(t, 1<<10)
	key, _, err := s.Save(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := s.Older(t.Context(), time.Now().Add(-time.Hour)); err != nil || len(keys) > 0 {
		t.Errorf("older than an hour: %v, %v", keys, err)
	}
	if keys, err := s.Older(t.Context(), time.Now().Add(time.Hour)); err != nil || len(keys) != 1 || keys[0] != key {
		t.Errorf("all: %v, %v", keys, err)
	}
	for range 2 {
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete = %v", err)
		}
	}
	if err := s.Load(t.Context(), key, t.TempDir()); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("Load of a deleted object = %v", err)
	}
	for _, bad := range []string{"", "packs/x", "processes/../packs/x.tar.zst.age", "processes/x"} {
		if s.Delete(t.Context(), bad) == nil || s.Load(t.Context(), bad, t.TempDir()) == nil {
			t.Errorf("key %q was accepted", bad)
		}
	}
}

func TestKeyIsMadeOnceAndPrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys", "processes.key")
	first, err := OpenKey(file)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenKey(file)
	if err != nil || again.String() != first.String() {
		t.Errorf("the second time: another key, %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key file: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file, []byte("AGE-SECRET-KEY-1BROKEN"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKey(file); err == nil || strings.Contains(err.Error(), "BROKEN") {
		t.Errorf("a broken key file: %v", err)
	}
}

// BenchmarkSave compares storing saved processes with copying their bytes.
func BenchmarkSave(b *testing.B) {
	s := newStore(b)
	dir, _ := source(b, 64<<20)
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, _, err := s.Save(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	start := time.Now()
	var buf bytes.Buffer
	f, err := os.Open(filepath.Join(dir, "pages.img"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(&buf, f); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/time.Since(start).Seconds(), "x-copy")
}
