package engine_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"testing"

	"github.com/sojourn-dev/sojourn"
)

// TestSavedFilesAreCopiedAsFromASandbox: what a session that is paused has left comes
// under the same names as it came from its sandbox.
func TestSavedFilesAreCopiedAsFromASandbox(t *testing.T) {
	t.Parallel()
	d := started(t)
	d.furnish()
	live := map[string]map[string]string{}
	for _, name := range []string{".", "tree", "tree/", "tree/mark"} {
		saved, err := d.engine().PackSaved(t.Context(), d.ref, name, deskWait)
		if saved != nil || err != nil {
			t.Fatalf("PackSaved beside a sandbox = %v, %v", saved, err)
		}
		v, err := d.engine().Visit(t.Context(), d.ref, deskWait)
		d.must(err)
		from, err := v.CopyOut(t.Context(), name)
		d.must(err)
		var archive bytes.Buffer
		for err == nil {
			var piece []byte
			piece, err = from.Next(t.Context())
			archive.Write(piece)
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		from.Close()
		v.Close()
		live[name] = entriesOf(t, &archive)
	}
	_, err := d.engine().PauseSession(t.Context(), d.ref)
	d.must(err)
	for name, want := range live {
		saved, err := d.engine().PackSaved(t.Context(), d.ref, name, deskWait)
		d.must(err)
		var archive bytes.Buffer
		left, err := saved.Copy(t.Context(), &archive)
		saved.Close()
		if got := entriesOf(t, &archive); err != nil || left != "" || !maps.Equal(got, want) {
			t.Errorf("%s: copied %q, left out %q, %v; want %q", name, got, left, err, want)
		}
	}
	if _, err := d.engine().PackSaved(t.Context(), d.ref, "none", deskWait); sojourn.CodeOf(err) != sojourn.CodeNotFound {
		t.Errorf("what is not there: %v", err)
	}
	if _, err := d.engine().PackSaved(t.Context(), d.ref, "../x", deskWait); sojourn.CodeOf(err) != sojourn.CodeInvalid {
		t.Errorf("what lies outside: %v", err)
	}
}

// entriesOf reads an archive: what each name is, and has.
func entriesOf(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		sum := crc32.NewIEEE()
		if _, err := io.Copy(sum, r); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeLink {
			h.Mode = 0 // it is that of the first name
		}
		all[h.Name] = fmt.Sprintf("%c %o %q %d %x", h.Typeflag, h.Mode, h.Linkname, h.Size, sum.Sum32())
	}
}
