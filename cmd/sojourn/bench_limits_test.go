package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// socketCopy is how fast a process here sends bytes to another end over loopback TCP,
// in MiB/s: the best of three.
func (x *execBench) socketCopy(size int64) float64 {
	best := 0.0
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			x.b.Fatal(err)
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buf := make([]byte, copyBytes)
			for left := size; left > 0; {
				n, err := c.Write(buf[:min(left, int64(len(buf)))])
				if err != nil {
					return
				}
				left -= int64(n)
			}
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			x.b.Fatal(err)
		}
		start := time.Now()
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, copyBytes))
		if err != nil || n != size {
			x.b.Fatalf("%d bytes, %v", n, err)
		}
		best = max(best, float64(size)/mib/time.Since(start).Seconds())
		c.Close()
		l.Close()
	}
	return best
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// localCopy copies as many bytes from one file to another here, in MiB/s.
func (x *execBench) localCopy(size int64) float64 {
	dir := x.b.TempDir()
	from := filepath.Join(dir, "from")
	f, err := os.Create(from)
	if err == nil {
		_, err = io.Copy(f, io.LimitReader(zeros{}, size))
	}
	if err != nil {
		x.b.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		x.b.Fatal(err)
	}
	defer f.Close()
	start := time.Now()
	to, err := os.Create(filepath.Join(dir, "to"))
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{f}, make([]byte, copyBytes))
	}
	if err == nil {
		err = to.Sync()
	}
	if err != nil {
		x.b.Fatal(err)
	}
	took := time.Since(start)
	to.Close()
	return float64(size) / mib / took.Seconds()
}

// watchMemory returns what stops it, which returns the most memory that the server
// had meanwhile, in MiB.
func (x *execBench) watchMemory() (stop func() float64) {
	ctx, cancel := context.WithCancel(x.b.Context())
	most := make(chan float64, 1)
	status := fmt.Sprintf("/proc/%d/status", x.server.cmd.Process.Pid)
	go func() {
		top := 0.0
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if text, err := os.ReadFile(status); err == nil {
				for line := range strings.Lines(string(text)) {
					if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
						if kb, err := strconv.ParseFloat(f[1], 64); err == nil {
							top = max(top, kb/1024)
						}
					}
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				most <- top
				return
			}
		}
	}()
	return func() float64 { cancel(); return <-most }
}
