package exec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkFiles moves files through the API, its engine and a keeper, each beside
// a plain copy of the same bytes from one file to another in the same run.
// "of-a-copy" is the part of its throughput that is reached.
func BenchmarkFiles(b *testing.B) {
	c := newCaller(b)
	for _, size := range []int64{64 << 20, 1 << 30} {
		if size > 64<<20 && testing.Short() {
			continue
		}
		name := fmt.Sprintf("%dMiB", size>>20)
		b.Run("Upload/"+name, func(b *testing.B) {
			c.TB = b
			c.beside(b, size, func() error {
				a, body, err := c.do(http.MethodPut, c.files("/content", "path", name), io.LimitReader(pattern{}, size))
				if err == nil && a.StatusCode != 200 {
					err = fmt.Errorf("%d %s", a.StatusCode, body)
				}
				return err
			})
		})
		b.Run("Download/"+name, func(b *testing.B) {
			c.TB = b
			c.beside(b, size, func() error {
				a, err := http.DefaultClient.Do(c.request(http.MethodGet, c.files("/download", "path", name), nil))
				if err != nil {
					return err
				}
				defer a.Body.Close()
				n, err := io.Copy(io.Discard, a.Body)
				if err == nil && n != size {
					err = fmt.Errorf("%d bytes came", n)
				}
				return err
			})
		})
	}
}

// pattern is an endless file.
type pattern struct{}

var patternPiece = bytes.Repeat([]byte("0123456789abcdef"), 4096)

func (pattern) Read(b []byte) (int, error) { return copy(b, patternPiece), nil }

// beside times do, and then as many plain copies of as many bytes.
func (c *caller) beside(b *testing.B, size int64, do func() error) {
	dir := b.TempDir()
	from := filepath.Join(dir, "from")
	f, err := os.Create(from)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(f, io.LimitReader(pattern{}, size)); err != nil {
		b.Fatal(err)
	}
	f.Close()
	b.SetBytes(size)
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	took := b.Elapsed()
	begun := time.Now()
	for range b.N {
		if err := copyPlain(from, filepath.Join(dir, "to")); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(begun))/float64(took), "of-a-copy")
}

// copyPlain reads and writes, as cp did before it could ask the kernel.
func copyPlain(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 256<<10))
	if err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}

// BenchmarkListFiles lists 10,000 files, beside reading their names and their
// metadata on the spot.
func BenchmarkListFiles(b *testing.B) {
	c := newCaller(b)
	dir := filepath.Join(c.workspace(), "many")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d", i)), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		var page struct{ Files []json.RawMessage }
		if status, _ := c.json(http.MethodGet, c.files("/list", "path", "many", "limit", "10000"), "", &page); status != 200 || len(page.Files) != 10_000 {
			b.Fatal(status, len(page.Files))
		}
	}
	took := b.Elapsed()
	begun := time.Now()
	for range b.N {
		entries, err := os.ReadDir(dir)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range entries {
			if _, err := e.Info(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(took)/float64(time.Since(begun)), "times-a-readdir")
}
