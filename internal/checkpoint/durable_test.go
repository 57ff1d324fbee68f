package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
)

// TestLocalObjectsAreSynced checks that files and directories of each kind of
// local bucket are found for syncing. That the kernel then keeps them over a
// power loss cannot be tested here.
func TestLocalObjectsAreSynced(t *testing.T) {
	for name, prefix := range map[string]string{"plain": "", "prefixed": "tenant/7/"} {
		for _, sidecar := range []bool{false, true} {
			dir := t.TempDir()
			o := &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite}
			if sidecar {
				o.Metadata = fileblob.MetadataInSidecar
			}
			b, err := fileblob.OpenBucket(dir, o)
			must(t, err)
			if prefix != "" {
				b = blob.PrefixedBucket(b, prefix)
			}
			defer b.Close()
			s := New(b, Config{})
			src := t.TempDir()
			smallTree(t, src)
			c, err := s.Capture(t.Context(), Spec{Workspace: src})
			must(t, err, s.Verify(t.Context(), c.Ref))
			dir, err = filepath.EvalSymlinks(dir)
			must(t, err)
			for _, d := range []string{"p", "r"} {
				if !s.sync.done[filepath.Join(dir, prefix, d)] {
					t.Errorf("%s: directory %s was not synced, only %v", name, d, s.sync.done)
				}
			}
			left, err := filepath.Glob(filepath.Join(dir, prefix, "*", "fileblob*"))
			if must(t, err); len(left) > 0 {
				t.Errorf("%s: temporary files left: %v", name, left)
			}
		}
	}
}

// TestSyncSeesTheFileGone makes the entry vanish between write and sync.
func TestSyncSeesTheFileGone(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "x")
	must(t, err, os.Remove(f.Name()))
	defer f.Close()
	b := localBucket(t)
	if err := (&dirSyncer{}).entry(b, int(f.Fd())); err == nil {
		t.Error("synced the entry of a deleted file")
	}
}
