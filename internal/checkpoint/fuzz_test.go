package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gocloud.dev/blob/memblob"
)

func sha(b []byte) Digest { return sha256.Sum256(b) }

func FuzzRoot(f *testing.F) {
	f.Add([]byte("SJROOT\x00\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would keep every mutation from the decoder.
		sum := sha256.Sum256(b)
		r, err := decodeRoot(append(bytes.Clone(b), sum[:4]...))
		if err != nil {
			return
		}
		again, err := decodeRoot(r.encode())
		if err != nil {
			t.Fatalf("encoded form of an accepted root: %v", err)
		}
		if !bytes.Equal(r.encode(), again.encode()) {
			t.Fatal("root changes when it is encoded again")
		}
	})
}

func FuzzPage(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, logical, err := decodePage(b)
		if err != nil || len(entries) == 0 {
			return
		}
		var pb pageBuilder
		for i := range entries {
			pb.add(&entries[i])
		}
		raw, digest := pb.finish()
		if len(raw) > maxPageRaw {
			return
		}
		again, logical2, err := decodePage(raw)
		if err != nil || len(again) != len(entries) || logical2 != digest {
			t.Fatalf("encoded form of an accepted page: %v, %d entries, want %d", err, len(again), len(entries))
		}
		_ = logical
	})
}

func FuzzFooter(f *testing.F) {
	f.Add([]byte{0}, int64(21))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		foot, err := decodeFooter(b, size)
		if err != nil {
			return
		}
		again, err := decodeFooter(encodeFooter(foot.regions), size)
		if err == nil && len(again.regions) != len(foot.regions) {
			t.Fatal("footer changes when it is encoded again")
		}
		for i := range foot.segments {
			foot.segment(uint32(i))
		}
		foot.segment(1 << 31)
	})
}

func FuzzList(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		chunks, l, err := decodeList(b)
		if err != nil {
			return
		}
		if _, l2 := encodeList(chunks); l2.logical != l.logical && l2.size != l.size {
			t.Fatal("list changes when it is encoded again")
		}
	})
}

func FuzzDecompress(f *testing.F) {
	out, _ := compress(newEncoder(1), nil, bytes.Repeat([]byte("abc"), 1000))
	f.Add(out, int64(3000))
	f.Fuzz(func(t *testing.T, b []byte, want int64) {
		want &= maxSegmentRaw - 1
		got, err := decompress(newDecoder(), nil, b, storedZstd, want)
		if err == nil && int64(len(got)) != want {
			t.Fatalf("%d bytes, want %d", len(got), want)
		}
	})
}

// TestFuzzSeeds keeps the committed seeds acceptable to the decoders: a seed
// that is refused at once tests nothing. With UPDATE_SEEDS=1 it makes them anew.
func TestFuzzSeeds(t *testing.T) {
	src := t.TempDir()
	smallTree(t, src)
	must(t, os.WriteFile(filepath.Join(src, "big"), randomBytes(1, 20<<20), 0o644))
	b := memblob.OpenBucket(nil)
	defer b.Close()
	s := New(b, Config{})
	c, err := s.Capture(t.Context(), Spec{Workspace: src, Agent: []byte(`{"a":1}`)})
	must(t, err)
	root, err := s.Read(t.Context(), c.Ref)
	must(t, err)
	m := root.manifests[Workspace]
	pages := &pageReader{s: s, root: root}
	pack := root.packs[0]
	foot, err := s.readRange(t.Context(), packKey(pack.id.name()), pack.bytes-12-pack.footer, pack.footer, nil)
	must(t, err)
	rootRaw := root.encode()
	seeds := map[string]string{"FuzzRoot": fmt.Sprintf("[]byte(%q)", rootRaw[:len(rootRaw)-4])}
	seeds["FuzzFooter"] = fmt.Sprintf("[]byte(%q)\nint64(%d)", foot, pack.bytes)
	raw, err := pages.read(t.Context(), m.pages, 0)
	must(t, err)
	seeds["FuzzPage"] = fmt.Sprintf("[]byte(%q)", raw)
	for _, l := range m.lists {
		raw, err = pages.read(t.Context(), []pageLoc{l.pageLoc}, 0)
		must(t, err)
		seeds["FuzzList"] = fmt.Sprintf("[]byte(%q)", raw)
	}
	for name, text := range seeds {
		file := filepath.Join("testdata/fuzz", name, "captured")
		if os.Getenv("UPDATE_SEEDS") == "1" {
			must(t, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("go test fuzz v1\n"+text+"\n"), 0o644))
		}
		stored, err := os.ReadFile(file)
		must(t, err)
		lines := strings.Split(string(stored), "\n")
		quoted := strings.TrimSuffix(strings.TrimPrefix(lines[1], "[]byte("), ")")
		seed, err := strconv.Unquote(quoted)
		must(t, err)
		switch name {
		case "FuzzRoot":
			sum := sha256.Sum256([]byte(seed))
			_, err = decodeRoot(append([]byte(seed), sum[:4]...))
		case "FuzzPage":
			_, _, err = decodePage([]byte(seed))
		case "FuzzList":
			_, _, err = decodeList([]byte(seed))
		case "FuzzFooter":
			var size int64
			_, err = fmt.Sscanf(lines[2], "int64(%d)", &size)
			must(t, err)
			_, err = decodeFooter([]byte(seed), size)
		}
		if err != nil {
			t.Errorf("seed of %s: %v", name, err)
		}
	}
}
