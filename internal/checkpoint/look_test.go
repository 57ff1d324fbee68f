package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFilesAreReadOutOfACheckpoint compares every way in with what was captured.
func TestFilesAreReadOutOfACheckpoint(t *testing.T) {
	t.Parallel()
	s := New(localBucket(t), Config{})
	src := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	big := make([]byte, 5<<20)
	for i := range big {
		big[i] = byte(rng.Uint32())
	}
	contents := map[string][]byte{"empty": nil, "a/b/small": []byte("text"), "big": big, "a.txt": []byte("behind a/"), "\xff": []byte("odd")}
	for i := range 400 { // several pages
		contents[fmt.Sprintf("many/f%03d", i)] = []byte(fmt.Sprint(i))
	}
	for name, data := range contents {
		if err := errors.Join(os.MkdirAll(filepath.Join(src, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(src, name), data, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	sparse := make([]byte, 4<<20)
	copy(sparse[3<<20:], "behind a hole")
	f, err := os.Create(filepath.Join(src, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(sparse[3<<20:], 3<<20)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	contents["sparse"] = sparse
	got, err := s.Capture(t.Context(), Spec{Workspace: src})
	if err != nil {
		t.Fatal(err)
	}
	root, err := s.Read(t.Context(), got.Ref)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range contents {
		e, err := s.Find(t.Context(), root, Workspace, name)
		if err != nil || e == nil || e.Size != int64(len(data)) || e.Mode&0o777 != 0o640 && name != "sparse" {
			t.Fatalf("find %q = %+v, %v", name, e, err)
		}
		size := int64(len(data))
		for range 5 {
			from := rng.Int64N(size + 1)
			n := rng.Int64N(size - from + 1)
			var b bytes.Buffer
			if err := s.Copy(t.Context(), &b, root, Workspace, e, from, n); err != nil || !bytes.Equal(b.Bytes(), data[from:from+n]) {
				t.Errorf("bytes %d+%d of %q: %d bytes, %v", from, n, name, b.Len(), err)
			}
		}
		if err := s.Copy(t.Context(), &bytes.Buffer{}, root, Workspace, e, size, 1); err == nil {
			t.Errorf("a byte behind the end of %q was read", name)
		}
	}
	for _, name := range []string{"none", "a/b/none", "many/f4", "zzz", "a/b/small/x"} {
		if e, err := s.Find(t.Context(), root, Workspace, name); e != nil || err != nil {
			t.Errorf("find %q = %+v, %v", name, e, err)
		}
	}
	var all []string
	for e, err := range s.Entries(t.Context(), root, Workspace) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Path)
	}
	for i, name := range all {
		var tail []string
		for e, err := range s.From(t.Context(), root, Workspace, name) {
			if err != nil {
				t.Fatal(err)
			}
			if tail = append(tail, e.Path); len(tail) == 3 {
				break
			}
		}
		if want := all[i:min(i+3, len(all))]; !slices.Equal(tail, want) {
			t.Errorf("from %q: %q, want %q", name, tail, want)
		}
	}
}
