package gvisor_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor/gvisortest"
)

// BenchmarkColdStart compares making a sandbox, until its keeper answers, with running
// /bin/true in gVisor by hand, in turns in the same run.
func BenchmarkColdStart(b *testing.B) {
	d, err := open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	bare := gvisortest.NewBare(b, self)
	bare.Run(b) // warms caches for both
	var creates, readies, bares []time.Duration
	for i := int64(0); b.Loop(); i++ {
		create, ready := coldStart(b, d, i)
		creates, readies = append(creates, create), append(readies, ready)
		bares = append(bares, bare.Run(b))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(creates), "create-ms")
	b.ReportMetric(median(readies), "ready-ms")
	b.ReportMetric(median(bares), "bare-ms")
	b.ReportMetric(median(readies)/median(bares), "ready/bare")
}

// BenchmarkWarmStart compares a session's way to the first output of a program in a
// sandbox that was ready with the same in one that has to be made, in turns in the same
// run.
func BenchmarkWarmStart(b *testing.B) {
	d, err := open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	var warms, colds []time.Duration
	for i := int64(0); b.Loop(); i++ {
		colds = append(colds, firstOutput(b, d, 2*i))
		if err := d.(sandbox.Warmer).Warm(b.Context(), sandbox.Spec{}, 1); err != nil {
			b.Fatal(err)
		}
		warms = append(warms, firstOutput(b, d, 2*i+1))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(warms), "warm-ms")
	b.ReportMetric(median(colds), "cold-ms")
	b.ReportMetric(median(warms)/median(colds), "warm/cold")
}

// firstOutput makes a sandbox, runs a program in it to its end and destroys it. The time
// is from asking for the sandbox to having all of the output.
func firstOutput(b *testing.B, d sandbox.Driver, epoch int64) time.Duration {
	b.Helper()
	began := time.Now()
	sb, err := d.Create(b.Context(), sandbox.Spec{Session: "bench", Epoch: epoch})
	if err != nil {
		b.Fatal(err)
	}
	conn, err := sb.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	c, err := link.Open(b.Context(), link.Framed(conn), link.Options{Epoch: epoch})
	if err != nil {
		b.Fatal(err)
	}
	p := link.StartParams{ProcessID: "first", Argv: []string{"/bin/echo", "hello"}, Cwd: sandbox.WorkspacePath}
	if err := c.Start(b.Context(), p); err != nil {
		b.Fatal(err)
	}
	var out []byte
	for after, closed := int64(0), false; !closed; {
		r, err := c.Read(b.Context(), link.ReadParams{ProcessID: "first", AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			b.Fatal(err)
		}
		for _, chunk := range r.Chunks {
			out = append(out, chunk.Data...)
		}
		after, closed = r.NextSeq-1, r.Closed
	}
	took := time.Since(began)
	if string(out) != "hello\n" {
		b.Fatalf("the program printed %q", out)
	}
	c.Close()
	if err := sb.Destroy(context.Background()); err != nil {
		b.Fatal(err)
	}
	return took
}

// coldStart makes a sandbox and destroys it.
func coldStart(b *testing.B, d sandbox.Driver, epoch int64) (create, ready time.Duration) {
	b.Helper()
	began := time.Now()
	sb, err := d.Create(b.Context(), sandbox.Spec{Session: "bench", Epoch: epoch})
	if err != nil {
		b.Fatal(err)
	}
	create = time.Since(began)
	conn, err := sb.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	c, err := link.Open(b.Context(), link.Framed(conn), link.Options{Epoch: epoch})
	if err != nil {
		b.Fatal(err)
	}
	ready = time.Since(began)
	c.Close()
	if err := sb.Destroy(context.Background()); err != nil {
		b.Fatal(err)
	}
	return create, ready
}

// BenchmarkIdleMemory reports what an idle sandbox beside others costs: the
// proportional part of all memory that its host processes have mapped.
func BenchmarkIdleMemory(b *testing.B) {
	const count = 5
	d, err := open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	for b.Loop() {
		var total int
		var all []sandbox.Sandbox
		for i := range int64(count) {
			sb, err := d.Create(b.Context(), sandbox.Spec{Session: "idle", Epoch: i})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := sb.Dial(b.Context()); err != nil {
				b.Fatal(err)
			}
			all = append(all, sb)
		}
		for _, sb := range all {
			total += memoryOf(b, filepath.Dir(sb.Dirs().Workspace))
		}
		b.ReportMetric(float64(total)/count/1024, "MB/sandbox")
		for _, sb := range all {
			if err := sb.Destroy(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}

// memoryOf adds up the processes that name a directory among their arguments, and
// their children, in kB.
func memoryOf(b *testing.B, dir string) int {
	b.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.Fatal(err)
	}
	total := 0
	for _, p := range procs {
		line, _ := os.ReadFile(filepath.Join(p, "cmdline")) // may have ended
		if !bytes.Contains(line, []byte(dir+"/")) {
			continue
		}
		rollup, _ := os.ReadFile(filepath.Join(p, "smaps_rollup"))
		for line := range strings.Lines(string(rollup)) {
			f := strings.Fields(line)
			if len(f) == 3 && f[0] == "Pss:" {
				kb, err := strconv.Atoi(f[1])
				if err != nil {
					b.Fatal(err)
				}
				total += kb
			}
		}
	}
	return total
}

func median(ds []time.Duration) float64 {
	slices.Sort(ds)
	return float64(ds[len(ds)/2].Microseconds()) / 1000
}
