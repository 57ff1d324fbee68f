package output_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// BenchmarkAppend takes 1 GiB in chunks of one size. times-file is its time over
// that of writing the same chunks to a plain file in the same run.
func BenchmarkAppend(b *testing.B) {
	const total = 1 << 30
	for _, size := range []int{32 << 10, 64 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("chunk=%dKiB", size>>10), func(b *testing.B) {
			s, dir := open(b, output.Config{})
			data := make([]byte, size)
			var ours, plain time.Duration
			b.SetBytes(total)
			for b.Loop() {
				start := time.Now()
				w, err := s.Writer("session", "exec")
				if err != nil {
					b.Fatal(err)
				}
				for offset := int64(0); offset < total; offset += int64(size) {
					if err := w.Append(offset, false, data); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
				ours += time.Since(start)
				if err := s.RemoveSession("session"); err != nil {
					b.Fatal(err)
				}
				plain += plainWrite(b, filepath.Join(dir, "plain"), data, total)
			}
			b.ReportMetric(ours.Seconds()/plain.Seconds(), "times-file")
		})
	}
}

// plainWrite writes total bytes to a file and removes it.
func plainWrite(b *testing.B, path string, data []byte, total int64) time.Duration {
	b.Helper()
	start := time.Now()
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	for written := int64(0); written < total; written += int64(len(data)) {
		if _, err := f.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	if err := os.Remove(path); err != nil {
		b.Fatal(err)
	}
	return took
}

// BenchmarkAppendLines takes 16 MiB as lines of 80 bytes, with every tenth to
// stderr. times-file compares with a write to a plain file for each.
func BenchmarkAppendLines(b *testing.B) {
	const total, size = 16 << 20, 80
	s, dir := open(b, output.Config{})
	data := make([]byte, size)
	var ours, plain time.Duration
	b.SetBytes(total)
	for b.Loop() {
		start := time.Now()
		w, err := s.Writer("session", "exec")
		if err != nil {
			b.Fatal(err)
		}
		for offset := int64(0); offset < total; offset += size {
			if err := w.Append(offset, offset/size%10 == 0, data); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(start)
		if err := s.RemoveSession("session"); err != nil {
			b.Fatal(err)
		}
		plain += plainWrite(b, filepath.Join(dir, "plain"), data, total)
	}
	b.ReportMetric(ours.Seconds()/plain.Seconds(), "times-file")
}

// BenchmarkSmallOutputs is a whole output that stays in memory: opened, written,
// finished. An operation is 1,000 of them.
func BenchmarkSmallOutputs(b *testing.B) {
	s, _ := open(b, output.Config{})
	data := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		for range 1000 {
			w, err := s.Writer("session", "exec")
			if err != nil {
				b.Fatal(err)
			}
			if err := w.Append(0, false, data); err != nil {
				b.Fatal(err)
			}
			if _, err := w.Finish(); err != nil {
				b.Fatal(err)
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkFinish is an output of 64 KiB until it is on stable storage. times-file
// compares with one file that is written and synced with its directory.
func BenchmarkFinish(b *testing.B) {
	s, dir := open(b, output.Config{})
	data := make([]byte, 64<<10)
	var ours, plain time.Duration
	i := 0
	for b.Loop() {
		i++
		start := time.Now()
		w, err := s.Writer("session", fmt.Sprint(i))
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Append(0, false, data); err != nil {
			b.Fatal(err)
		}
		finish(b, w)
		ours += time.Since(start)
		start = time.Now()
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			b.Fatal(err)
		}
		d, err := os.Open(dir)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(data); err != nil || f.Sync() != nil || d.Sync() != nil {
			b.Fatal(err)
		}
		f.Close()
		d.Close()
		plain += time.Since(start)
	}
	b.ReportMetric(ours.Seconds()/plain.Seconds(), "times-file")
}

// BenchmarkRead reads 64 KiB at random offsets of an output of 256 MiB, of one
// run or of a run for every 100 bytes. times-file compares with a plain file.
func BenchmarkRead(b *testing.B) {
	const total, size = 256 << 20, 64 << 10
	for _, c := range []struct {
		name      string
		run, step int
	}{{"one-run", total, 256 << 10}, {"runs=100B", 100, 100}} {
		s, dir := open(b, output.Config{})
		w := writer(b, s, "exec")
		data := make([]byte, c.step)
		for offset := int64(0); offset < total; offset += int64(c.step) {
			if err := w.Append(offset, offset/int64(c.run)%2 == 1, data); err != nil {
				b.Fatal(err)
			}
		}
		finish(b, w)
		plain, err := os.Open(filepath.Join(dir, "session", "exec.data"))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { plain.Close() })
		r := reader(b, s, "exec", nil)
		p := make([]byte, size)
		stream := func(which output.Stream) func(int64) error {
			section := r.Stream(which)
			return func(offset int64) error {
				_, err := section.ReadAt(p, offset%(section.Size()-size))
				return err
			}
		}
		for _, way := range []struct {
			name string
			read func(offset int64) error
		}{
			{"all", stream(output.All)},
			{"stdout", stream(output.Stdout)},
			{"next", func(offset int64) error { _, _, err := r.Next(context.Background(), offset, size); return err }},
		} {
			b.Run(c.name+"/"+way.name, func(b *testing.B) {
				random := rand.New(rand.NewPCG(1, 1))
				var ours, theirs time.Duration
				b.SetBytes(size)
				for b.Loop() {
					start := time.Now()
					if err := way.read(random.Int64N(total - size)); err != nil && err != io.EOF {
						b.Fatal(err)
					}
					ours += time.Since(start)
					start = time.Now()
					if _, err := plain.ReadAt(p, random.Int64N(total-size)); err != nil {
						b.Fatal(err)
					}
					theirs += time.Since(start)
				}
				b.ReportMetric(ours.Seconds()/theirs.Seconds(), "times-file")
			})
		}
	}
}
