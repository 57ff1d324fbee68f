package image

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"
)

// rootArchive is the archive of a root like that of a small distribution: 4,000 files with
// 40 MB.
func rootArchive(b *testing.B) []byte {
	body := make([]byte, 40_000)
	r := rand.NewChaCha8([32]byte{})
	var files []file
	for i := range 4000 {
		_, _ = r.Read(body[:10_000]) // it never fails
		size := 1 + (i*7919)%20_000
		files = append(files, file{name: fmt.Sprintf("usr/d%d/e%d/f%d", i%40, i%7, i), body: string(body[:size])})
	}
	return archive(b, files...)
}

// BenchmarkUnpack unpacks a root, as it comes and with everything that makes it an image,
// beside tar with the same archive.
func BenchmarkUnpack(b *testing.B) {
	raw := rootArchive(b)
	path := onDisk(b, "root.tar", raw)
	var plain, whole, peer time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := unpacked(b, wide, true, raw); err != nil {
			b.Fatal(err)
		}
		plain += time.Since(start)

		s := newStore(b, Config{Names: map[string]string{"x": "rootfs:" + path}})
		start = time.Now()
		if _, err := s.Ensure(context.Background(), "x"); err != nil {
			b.Fatal(err)
		}
		whole += time.Since(start)

		cmd := exec.Command("tar", "-x", "-C", b.TempDir())
		cmd.Stdin = bytes.NewReader(raw)
		start = time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Skipf("SKIPPED: no tar to compare with: %v %s", err, out)
		}
		peer += time.Since(start)
	}
	b.ReportMetric(float64(plain)/float64(peer), "unpack/tar")
	b.ReportMetric(float64(whole)/float64(peer), "ensure/tar")
	b.ReportMetric(float64(len(raw))*float64(b.N)/1e6/plain.Seconds(), "MB/s")
}

// BenchmarkEnsureThere is what every sandbox with an image pays.
func BenchmarkEnsureThere(b *testing.B) {
	s := newStore(b, Config{Names: map[string]string{"x": "rootfs:" + onDisk(b, "root.tar", archive(b, file{name: "a"}))}})
	for b.Loop() {
		if _, err := s.Ensure(context.Background(), "x"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCompare is what the first use after a boot costs, beside making it anew.
func BenchmarkCompare(b *testing.B) {
	s := newStore(b, Config{Names: map[string]string{"x": "rootfs:" + onDisk(b, "root.tar", rootArchive(b))}})
	start := time.Now()
	image, err := s.Ensure(context.Background(), "x")
	if err != nil {
		b.Fatal(err)
	}
	made := time.Since(start)
	var compared time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := sumTree(context.Background(), image.Dir, nil, false); err != nil {
			b.Fatal(err)
		}
		compared += time.Since(start)
	}
	b.ReportMetric(float64(compared)/float64(b.N)/float64(made), "compare/make")
}
