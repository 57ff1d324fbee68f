package namespace_test

import (
	"context"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// BenchmarkColdStart measures making a sandbox until its keeper answers.
func BenchmarkColdStart(b *testing.B) {
	d, err := open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	var create time.Duration
	var total time.Duration
	n := int64(0)
	for ; b.Loop(); n++ {
		began := time.Now()
		sb, err := d.Create(b.Context(), sandbox.Spec{Session: "bench", Epoch: n})
		if err != nil {
			b.Fatal(err)
		}
		create += time.Since(began)
		conn, err := sb.Dial(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		c, err := link.Open(b.Context(), link.Framed(conn), link.Options{Epoch: n})
		if err != nil {
			b.Fatal(err)
		}
		total += time.Since(began)
		c.Close()
		if err := sb.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(create.Seconds()*1000/float64(n), "create-ms")
	b.ReportMetric(total.Seconds()*1000/float64(n), "ready-ms")
}
