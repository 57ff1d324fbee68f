package hub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/hub"
)

// BenchmarkDelivery publishes one event at a time to 1,000 readers of a session,
// each of which takes its encoded form.
func BenchmarkDelivery(b *testing.B) {
	const readers = 1000
	bench := open(b, hub.Config{})
	defer bench.db.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var g errgroup.Group
	last := int64(1 + b.N)
	for range readers {
		g.Go(func() error {
			c := bench.hub.Subscribe(session, 1)
			defer c.Close()
			for c.After() < last {
				frames, err := c.Next(ctx)
				if err != nil {
					return err
				}
				for _, f := range frames {
					f.Encoded("sse", func(e sojourn.Event) []byte {
						return fmt.Appendf(nil, "id: %d\ndata: %s\n\n", e.Seq, e.Data)
					})
				}
			}
			return nil
		})
	}
	for bench.hub.Readers() < readers {
		time.Sleep(time.Millisecond)
	}
	data := json.RawMessage(`{"text":"` + strings.Repeat("x", 250) + `"}`)
	b.ResetTimer()
	for range b.N {
		if err := bench.append(ctx, 1, data); err != nil {
			b.Fatal(err)
		}
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)*readers/b.Elapsed().Seconds(), "deliveries/s")
}
