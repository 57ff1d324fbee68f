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
