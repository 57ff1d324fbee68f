package engine_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// BenchmarkExec runs /bin/true through the engine, database and keeper included, next
// to a fork and exec of it by this process: what is over that is our own.
func BenchmarkExec(b *testing.B) {
	s := beginExecs(b, servertest.Config{}, sojourn.Limits{})
	in := engine.ExecRequest{Spec: sojourn.ExecSpec{Argv: []string{"/bin/true"}, Timeout: patience}}
	s.run(in)
	var ours, plain time.Duration
	for b.Loop() {
		begun := time.Now()
		if _, x, err := s.engine().StartExec(b.Context(), s.ref, in); err != nil {
			b.Fatal(err)
		} else if _, x, err = s.engine().WaitExec(b.Context(), s.ref, x.ID); err != nil || code(x) != 0 {
			b.Fatalf("%+v, %v", x, err)
		}
		half := time.Now()
		if err := exec.CommandContext(b.Context(), "/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		ours, plain = ours+half.Sub(begun), plain+time.Since(half)
	}
	b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/exec")
	b.ReportMetric(float64(plain.Microseconds())/float64(b.N), "µs/fork")
	b.ReportMetric(float64(ours)/float64(plain), "×fork")
}
