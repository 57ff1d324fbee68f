package gvisor_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// BenchmarkSnapshot saves and resumes a sandbox in which a program holds memory that was
// written to, until its keeper answers. The peer is a copy of the same bytes from one
// file of the same disk to another.
func BenchmarkSnapshot(b *testing.B) {
	for _, mib := range []int{0, 64, 256} {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) { benchSnapshot(b, mib) })
	}
}

func benchSnapshot(b *testing.B, mib int) {
	d, err := open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	var saves, restores, copies []time.Duration
	var bytes int64
	for epoch := int64(0); b.Loop(); epoch += 2 {
		first, err := d.Create(b.Context(), sandbox.Spec{Session: "bench", Epoch: epoch})
		if err != nil {
			b.Fatal(err)
		}
		holdMemory(b, first, mib)
		image := b.TempDir()
		began := time.Now()
		snap, err := first.(sandbox.Snapshotter).Snapshot(b.Context(), image)
		if err != nil {
			b.Fatal(err)
		}
		saves = append(saves, time.Since(began))
		bytes = snap.Bytes
		copies = append(copies, copyFiles(b, image))
		began = time.Now()
		spec := sandbox.Spec{Session: "bench", Epoch: epoch + 1, Resume: &sandbox.Resume{Dir: image, Snapshot: snap}}
		if _, err := d.(sandbox.Resumer).Prepare(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		second, err := d.Create(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		openLink(b, second).Close()
		restores = append(restores, time.Since(began))
		for _, sb := range []sandbox.Sandbox{first, second} {
			if err := sb.Destroy(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.RemoveAll(image); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(bytes)/(1<<20), "MiB")
	b.ReportMetric(median(saves), "save-ms")
	b.ReportMetric(median(restores), "restore-ms")
	b.ReportMetric(median(copies), "copy-ms")
	b.ReportMetric(median(saves)/median(copies), "save/copy")
	b.ReportMetric(median(restores)/median(copies), "restore/copy")
}

func openLink(b *testing.B, sb sandbox.Sandbox) *link.Client {
	b.Helper()
	conn, err := sb.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	c, err := link.Open(b.Context(), link.Framed(conn), link.Options{Epoch: sb.Handle().Epoch})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// holdMemory starts a program that keeps noise in memory, in a file of the tmpfs of the sandbox, and waits until it does.
func holdMemory(b *testing.B, sb sandbox.Sandbox, mib int) {
	b.Helper()
	c := openLink(b, sb)
	defer c.Close()
	if mib == 0 {
		return
	}
	script := fmt.Sprintf("head -c %d /dev/urandom > /tmp/noise; echo held; sleep 600", mib<<20)
	p := link.StartParams{ProcessID: "hold", Argv: []string{"sh", "-c", script}, Cwd: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}}
	if err := c.Start(b.Context(), p); err != nil {
		b.Fatal(err)
	}
	r, err := c.Read(b.Context(), link.ReadParams{ProcessID: "hold", Wait: link.MaxWait})
	if err != nil || len(r.Chunks) == 0 || string(r.Chunks[0].Data) != "held\n" {
		b.Fatalf("the program that holds memory says %+v, %v", r, err)
	}
}

// copyFiles copies the files of a directory and returns how long that took.
func copyFiles(b *testing.B, dir string) time.Duration {
	b.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		b.Fatal(err)
	}
	to := b.TempDir()
	began := time.Now()
	for _, name := range names {
		if err := copyFile(name, filepath.Join(to, filepath.Base(name))); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(began)
	if err := os.RemoveAll(to); err != nil {
		b.Fatal(err)
	}
	return took
}

// copyFile moves the bytes through this process, as a save does.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 1<<20))
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	return err
}
