package checkpoint

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// objects reads a whole bucket.
func objects(t testing.TB, b *blob.Bucket) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	list := b.List(nil)
	for {
		o, err := list.Next(context.Background())
		if err != nil {
			return out
		}
		out[o.Key], err = b.ReadAll(context.Background(), o.Key)
		must(t, err)
	}
}

// smallTree has each kind of entry, a file with chunks and one with chunk lists.
func smallTree(t testing.TB, dir string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "d/e"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "d/e/f"), []byte("some text, some text, some text"), 0o640))
	must(t, os.WriteFile(filepath.Join(dir, "random"), randomBytes(9, 500), 0o755))
	must(t, os.Symlink("d/e/f", filepath.Join(dir, "link")))
	must(t, os.Link(filepath.Join(dir, "random"), filepath.Join(dir, "same")))
}

// TestEveryByteMatters flips each byte of each object in turn, cuts each object
// short at each length, and removes it. Verify and Restore must say that it is
// corrupt or missing; Restore may leave a part in its target, but nothing next
// to it.
func TestEveryByteMatters(t *testing.T) {
	src := t.TempDir()
	smallTree(t, src)
	good := memblob.OpenBucket(nil)
	defer good.Close()
	c, err := New(good, Config{}).Capture(t.Context(), Spec{Workspace: src, Agent: []byte(`{"session":"s"}`)})
	must(t, err)
	all := objects(t, good)
	if len(all) != 2 {
		t.Fatalf("%d objects, want a pack and a root", len(all))
	}
	outer := t.TempDir()
	target := filepath.Join(outer, "target")
	must(t, os.Mkdir(target, 0o755))

	check := func(what, key string, content []byte) {
		t.Helper()
		b := memblob.OpenBucket(nil)
		defer b.Close()
		for k, v := range all {
			if k == key {
				v = content
			}
			if v != nil {
				must(t, b.WriteAll(t.Context(), k, v, nil))
			}
		}
		s := New(b, Config{Workers: 1})
		err := s.Verify(t.Context(), c.Ref)
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrMissing) {
			t.Fatalf("%s of %s: Verify = %v, want ErrCorrupt or ErrMissing", what, key, err)
		}
		_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: target, Empty: true})
		// The magics of a pack frame are of no use to a restore.
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrMissing) {
			t.Fatalf("%s of %s: Restore = %v, want ErrCorrupt or ErrMissing", what, key, err)
		}
		if err == nil {
			mustEqualTrees(t, look(t, src), look(t, target))
		}
		if names, err := os.ReadDir(outer); err != nil || len(names) != 1 {
			t.Fatalf("%s of %s: restore left %v next to its target", what, key, names)
		}
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		v := all[key]
		for i := 0; i < len(v); i += step {
			bad := slices.Clone(v)
			bad[i] ^= 1 << (i % 8)
			check("flipped byte", key, bad)
		}
		for i := 0; i < len(v); i += 3 * step {
			check("short copy", key, slices.Clone(v[:i]))
		}
		check("longer copy", key, append(slices.Clone(v), 0))
		check("removal", key, nil)
	}
	for _, id := range []RootID{"", "..", "../p/x", RootID(strings.Repeat("0", 64)), RootID(strings.Repeat("A", 64))} {
		if _, err := New(good, Config{}).Read(t.Context(), Ref{ID: id}); !errors.Is(err, ErrMissing) {
			t.Errorf("Read(%q) = %v, want ErrMissing", id, err)
		}
	}
}

// forge stores a checkpoint of entries as they are given, with digests that fit,
// as a hostile bucket or a bug could hold one.
func forge(t testing.TB, b *blob.Bucket, tree Tree, data []byte, entries ...Entry) Ref {
	t.Helper()
	s := New(b, Config{})
	pk := newPacker(t.Context(), s, 0)
	if data == nil {
		data = []byte("x")
	}
	p, n, err := pk.alloc(len(data))
	must(t, err)
	_, err = pk.write(newEncoder(1), nil, segment{p: p, n: n, buf: &data})
	must(t, err)
	var pb pageBuilder
	info := TreeInfo{Captured: true, Exact: true}
	for i := range entries {
		pb.add(&entries[i])
		info.Entries++
		info.Bytes += entries[i].Size
	}
	first := pb.first
	raw, logical := pb.finish()
	var d treeDigest
	d.add(logical)
	info.Digest = d.sum(tree)
	loc := pageLoc{hash: sha(raw), raw: int64(len(raw))}
	must(t, pk.writePages([]page{{loc: &loc, stored: raw, method: storedRaw}}), pk.finish())
	root := &Root{
		Trees: map[Tree]TreeInfo{tree: info}, nextPack: 1, packs: pk.packs,
		manifests: map[Tree]*manifest{tree: {pages: []pageLoc{loc}, first: []string{first}}},
	}
	ref, err := s.putRoot(t.Context(), root.encode())
	must(t, err)
	return ref
}

func TestForgedManifestsAreRefused(t *testing.T) {
	top := Entry{Type: TypeDir, Mode: 0o755}
	dir := func(path string) Entry { return Entry{Path: path, Type: TypeDir, Mode: 0o755} }
	link := func(path, target string) Entry { return Entry{Path: path, Type: TypeSymlink, Target: target} }
	file := func(path string) Entry {
		data := []byte("x")
		return Entry{Path: path, Type: TypeFile, Mode: 0o644, Size: 1, chunks: []chunk{{hash: sha(data), len: 1}}}
	}
	hard := func(path, target string) Entry { return Entry{Path: path, Type: TypeHardlink, Target: target} }
	outside := t.TempDir()
	cases := map[string][]Entry{
		"no top":                    {file("a")},
		"dot dot":                   {top, file("..")},
		"dot dot inside":            {top, dir("a"), file("a/..")},
		"up and out":                {top, dir(".."), file("../evil")},
		"absolute":                  {top, file("/etc/evil")},
		"absolute below dir":        {top, dir(""), file("/evil")},
		"dot":                       {top, dir("."), file("./x")},
		"empty component":           {top, dir("a"), file("a//b")},
		"trailing slash":            {top, file("a/")},
		"NUL":                       {top, file("a\x00b")},
		"name too long":             {top, file(strings.Repeat("n", 256))},
		"through a link":            {top, link("l", outside), file("l/evil")},
		"dir over link":             {top, link("l", outside), dir("l"), file("l/evil")},
		"file over link":            {top, link("l", filepath.Join(outside, "evil")), file("l")},
		"below a file":              {top, file("f"), file("f/evil")},
		"no directory":              {top, file("d/evil")},
		"twice":                     {top, file("a"), file("a")},
		"unordered":                 {top, file("b"), file("a")},
		"hard link outside":         {top, hard("h", "../../etc/passwd")},
		"hard link absolute":        {top, hard("h", "/etc/passwd")},
		"hard link to itself":       {top, hard("h", "h")},
		"hard link to later":        {top, hard("h", "z"), file("z")},
		"hard link to directory":    {top, dir("d"), hard("h", "d")},
		"hard link to top":          {top, hard("h", "")},
		"hard link through link":    {top, link("a", outside), hard("h", "a/x")},
		"wrong chunk":               {top, {Path: "f", Type: TypeFile, Size: 1, chunks: []chunk{{len: 1}}}},
		"chunk outside segment":     {top, {Path: "f", Type: TypeFile, Size: 9, chunks: []chunk{{len: 9}}}},
		"chunk in no segment":       {top, {Path: "f", Type: TypeFile, Size: 1, chunks: []chunk{{len: 1, at: place{seg: 7}}}}},
		"chunk in no pack":          {top, {Path: "f", Type: TypeFile, Size: 1, chunks: []chunk{{len: 1, at: place{pack: 7}}}}},
		"size without chunks":       {top, {Path: "f", Type: TypeFile, Size: 1 << 40}},
		"chunk list that is absent": {top, {Path: "f", Type: TypeFile, Size: 5, lists: []chunkList{{size: 5}}}},
		"attribute of the host":     {top, {Path: "d", Type: TypeDir, Xattrs: []Xattr{{"trusted.overlay.opaque", []byte("y")}}}},
	}
	for name, entries := range cases {
		t.Run(name, func(t *testing.T) {
			b := memblob.OpenBucket(nil)
			defer b.Close()
			ref := forge(t, b, Workspace, nil, entries...)
			outer := t.TempDir()
			target := filepath.Join(outer, "target")
			must(t, os.Mkdir(target, 0o755))
			_, err := New(b, Config{}).Restore(t.Context(), ref, Target{Workspace: target})
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("Restore = %v, want ErrCorrupt", err)
			}
			for _, d := range []string{outside, outer} {
				if names, _ := os.ReadDir(d); len(names) > 1 || len(names) == 1 && names[0].Name() != "target" {
					t.Errorf("restore wrote %v outside its target", names)
				}
			}
		})
	}
	// And the well-formed one works, so the cases fail for their own reasons.
	b := memblob.OpenBucket(nil)
	defer b.Close()
	ref := forge(t, b, Workspace, nil, top, dir("a"), file("a/f"), link("a/l", "/etc"), hard("h", "a/f"))
	_, err := New(b, Config{}).Restore(t.Context(), ref, Target{Workspace: t.TempDir()})
	must(t, err, New(b, Config{}).Verify(t.Context(), ref))
}

func TestRestoreWantsAnEmptyTarget(t *testing.T) {
	s := New(localBucket(t), Config{})
	src, dst := t.TempDir(), t.TempDir()
	smallTree(t, src)
	c, err := s.Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), []byte("k"), 0o644), os.Symlink(outside, filepath.Join(dst, "link")))
	if _, err := s.Restore(t.Context(), c.Ref, Target{Workspace: dst}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("Restore into a full directory = %v, want ErrNotEmpty", err)
	}
	_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dst, Empty: true})
	must(t, err)
	mustEqualTrees(t, look(t, src), look(t, dst))
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Errorf("emptying the target reached through a link: %v", err)
	}
	if _, err := s.Restore(t.Context(), c.Ref, Target{Workspace: filepath.Join(dst, "absent")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Restore into no directory = %v, want ErrNotExist", err)
	}
}
