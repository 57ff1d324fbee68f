package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"testing"
)

func sha(b []byte) Digest { return sha256.Sum256(b) }

// Seeds under testdata/fuzz come from real captures; see TestFuzzSeeds in git
// history for how they were made.

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
