package work_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// BenchmarkScheduleAndRun has 64 callers schedule work, and ends when all of it
// was run and its row is gone: three durable commits for each, shared.
func BenchmarkScheduleAndRun(b *testing.B) {
	db := open(b)
	defer db.Close()
	var ran sync.WaitGroup
	ran.Add(b.N)
	stop := start(b, db, work.Config{Handlers: only("job", func(context.Context, work.Claim) (work.Next, error) {
		ran.Done()
		return work.Done(), nil
	}, work.Policy{Concurrency: 256})})
	b.ResetTimer()
	var next atomic.Int64
	var g errgroup.Group
	for range 64 {
		g.Go(func() error {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := db.Update(b.Context(), func(tx *store.Tx) error {
					return work.Schedule(tx, work.Key{Kind: "job", ID: fmt.Sprint(i)}, tx.Now(), nil)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	ran.Wait()
	stop()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
