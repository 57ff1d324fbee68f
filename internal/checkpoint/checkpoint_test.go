package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
)

func localBucket(t testing.TB) *blob.Bucket {
	t.Helper()
	b, err := fileblob.OpenBucket(t.TempDir(), &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestRoundTrip(t *testing.T) {
	s := New(localBucket(t), Config{})
	src := t.TempDir()
	os.MkdirAll(filepath.Join(src, "a/b"), 0o755)
	os.WriteFile(filepath.Join(src, "a/b/c"), []byte("hello"), 0o644)
	os.WriteFile(filepath.Join(src, "big"), make([]byte, 3<<20), 0o644)
	os.Symlink("nowhere", filepath.Join(src, "l"))
	c, err := s.Capture(t.Context(), Spec{Workspace: src})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c)
	dst := t.TempDir()
	r, err := s.Restore(t.Context(), c.Ref, Target{Workspace: dst})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if err := s.Verify(t.Context(), c.Ref); err != nil {
		t.Fatal(err)
	}
}
