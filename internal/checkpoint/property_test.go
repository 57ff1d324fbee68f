package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gocloud.dev/blob/memblob"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// drawTree makes a random small tree in dir.
func drawTree(t *rapid.T, dir string) {
	name := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "b", "a-b", "a.b", "\xff", " ", "\n", "..."}),
		rapid.Map(rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 8), func(b []byte) string {
			return strings.ReplaceAll(string(b), "/", "_")
		}).Filter(func(s string) bool { return s != "." && s != ".." }),
	)
	sizes := rapid.SampledFrom([]int{0, 1, 100, 4096, 8192, 70_000, 600_000})
	places := []string{dir}
	var files []string
	for range rapid.IntRange(0, 12).Draw(t, "entries") {
		path := filepath.Join(rapid.SampledFrom(places).Draw(t, "in"), name.Draw(t, "name"))
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		var err error
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			err = os.Mkdir(path, 0o755)
			places = append(places, path)
		case 1:
			err = os.Symlink(name.Draw(t, "target"), path)
		case 2:
			if len(files) > 0 {
				err = os.Link(rapid.SampledFrom(files).Draw(t, "file"), path)
			}
		case 3: // sparse
			var f *os.File
			if f, err = os.Create(path); err == nil {
				f.WriteAt([]byte("data"), int64(sizes.Draw(t, "at")))
				f.Truncate(int64(sizes.Draw(t, "size")))
				f.Close()
			}
			files = append(files, path)
		default:
			data := make([]byte, sizes.Draw(t, "size"))
			if rapid.Bool().Draw(t, "random") {
				data = randomBytes(rapid.Uint64().Draw(t, "seed"), len(data))
			}
			err = os.WriteFile(path, data, os.FileMode(rapid.Uint32Range(0, 0o777).Draw(t, "mode")))
			files = append(files, path)
			if err == nil && rapid.Bool().Draw(t, "attribute") {
				err = unix.Setxattr(path, "user.x", []byte(name.Draw(t, "value")), 0)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRandomTreesComeBack also checks that a second capture of the restored
// tree, on top of the first, stores nothing but a root.
func TestRandomTreesComeBack(t *testing.T) {
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		src, dst := filepath.Join(base, fmt.Sprint(n, "s")), filepath.Join(base, fmt.Sprint(n, "d"))
		must(t, os.Mkdir(src, 0o755), os.Mkdir(dst, 0o755))
		defer os.RemoveAll(src)
		defer os.RemoveAll(dst)
		drawTree(rt, src)
		b := memblob.OpenBucket(nil)
		defer b.Close()
		s := New(b, Config{Workers: rapid.IntRange(1, 3).Draw(rt, "workers")})
		c, err := s.Capture(t.Context(), Spec{Workspace: src})
		if err != nil || !c.Workspace.Captured {
			rt.Fatalf("capture: %v %+v", err, c.Workspace)
		}
		if err := s.Verify(t.Context(), c.Ref); err != nil {
			rt.Fatal(err)
		}
		if _, err := s.Restore(t.Context(), c.Ref, Target{Workspace: dst}); err != nil {
			rt.Fatal(err)
		}
		if d := differences(look(t, src), look(t, dst)); len(d) > 0 {
			rt.Fatalf("%s", strings.Join(d, "\n"))
		}
		again, err := s.Capture(t.Context(), Spec{Workspace: dst, Parent: &c.Ref})
		if err != nil || again.Workspace.Digest != c.Workspace.Digest || again.Stored != again.Ref.Bytes {
			rt.Fatalf("second capture: %v, digest %s, want %s, stored %d besides the root",
				err, again.Workspace.Digest, c.Workspace.Digest, again.Stored-again.Ref.Bytes)
		}
	})
}

// TestPagesHoldWhatWasPutIn goes through the codec alone, at sizes that a real
// tree would be slow to make.
func TestPagesHoldWhatWasPutIn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		paths := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c./-]{1,12}`), 1, 40, rapid.ID).Draw(rt, "paths")
		slices.SortFunc(paths, comparePaths)
		var pb pageBuilder
		var in []Entry
		for _, p := range paths {
			e := Entry{
				Path: p, Type: TypeFile, Mode: rapid.Uint32Range(0, 0o7777).Draw(rt, "mode"), UID: rapid.Uint32().Draw(rt, "uid"),
				MTime: Time{rapid.Int64().Draw(rt, "sec"), rapid.Uint32Range(0, 999_999_999).Draw(rt, "nsec")},
			}
			for range rapid.IntRange(0, 3).Draw(rt, "chunks") {
				c := chunk{len: rapid.Int64Range(1, maxSegmentRaw/2).Draw(rt, "len"), hole: rapid.Bool().Draw(rt, "hole")}
				if !c.hole {
					c.hash = sha([]byte(fmt.Sprint(c.len)))
					c.at = place{rapid.Uint32Range(0, 3).Draw(rt, "pack"), rapid.Uint32Range(0, 5).Draw(rt, "seg"), uint32(rapid.IntRange(0, maxSegmentRaw/2).Draw(rt, "off"))}
				}
				e.chunks = append(e.chunks, c)
				e.Size += c.len
			}
			in = append(in, e)
			pb.add(&in[len(in)-1])
		}
		raw, logical := pb.finish()
		out, logical2, err := decodePage(raw)
		if err != nil || logical != logical2 || fmt.Sprint(in) != fmt.Sprint(out) {
			rt.Fatalf("page gives back\n%v\nwant\n%v\n%v", out, in, err)
		}
	})
}

// TestDigestIgnoresPlaces moves chunks to other packs: repacking must not
// change what a tree is called.
func TestDigestIgnoresPlaces(t *testing.T) {
	var digests []Digest
	for _, at := range []place{{}, {3, 4, 5}} {
		var pb pageBuilder
		pb.add(&Entry{Path: "f", Type: TypeFile, Size: 5, chunks: []chunk{{hash: sha(nil), len: 5, at: at}}})
		_, logical := pb.finish()
		_, l := encodeList([]chunk{{hash: sha(nil), len: 5, at: at}})
		digests = append(digests, logical, l.logical)
	}
	if digests[0] != digests[2] || digests[1] != digests[3] {
		t.Error("digest depends on where chunks lie")
	}
}
