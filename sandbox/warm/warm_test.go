package warm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	coldTime = 2 * time.Second // how long a stock takes to make a sandbox
	warmTime = time.Millisecond
)

// stock is a driver that only counts. It has what no real one has: an exact time.
type stock struct {
	sandbox.Driver // not there: the tests call what is below
	started        time.Time

	mu      sync.Mutex
	ready   map[string]int
	making  int   // sandboxes that are being made, whatever for
	failure error // of fills
	closed  bool
	diary
}

// diary is what a stock remembers.
type diary struct {
	most   int             // sandboxes that were made at a time
	waited []string        // the sessions whose Create made one
	fills  []time.Duration // when each began, since the start
	broken int             // fills that were broken off
}

// read returns what has happened up to now.
func (s *stock) read() diary {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.diary
	d.waited, d.fills = slices.Clone(d.waited), slices.Clone(d.fills)
	return d
}

func newStock() *stock { return &stock{started: time.Now(), ready: make(map[string]int)} }

func (s *stock) Name() string { return "stock" }

func (s *stock) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *stock) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s.mu.Lock()
	if key := keyOf(spec); s.ready[key] > 0 && spec.Resume == nil {
		s.ready[key]--
		s.mu.Unlock()
		time.Sleep(warmTime)
		return nil, nil
	}
	s.waited = append(s.waited, spec.Session)
	s.mu.Unlock()
	return nil, s.make(ctx)
}

// make spends the time of making a sandbox.
func (s *stock) make(ctx context.Context) error {
	s.count(1)
	defer s.count(-1)
	t := time.NewTimer(coldTime)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *stock) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making += n
	s.most = max(s.most, s.making)
}

func (s *stock) Warm(ctx context.Context, spec sandbox.Spec, n int) error {
	key := keyOf(spec)
	for {
		s.mu.Lock()
		s.ready[key] = min(s.ready[key], n)
		enough, failure := s.ready[key] == n, s.failure
		if !enough {
			s.fills = append(s.fills, time.Since(s.started))
		}
		s.mu.Unlock()
		if enough {
			return nil
		}
		if failure != nil {
			return failure
		}
		err := s.make(ctx)
		s.mu.Lock()
		if err != nil {
			s.broken++
		} else {
			s.ready[key]++
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (s *stock) Ready(spec sandbox.Spec) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready[keyOf(spec)]
}

// spec is one of a kind that other names do not ask for.
func spec(kind, session string) sandbox.Spec { return sandbox.Spec{Image: kind, Session: session} }

// inBubble runs a test on a pool of a stock, with its own time. In no test is the
// host's memory short, unless mem says so.
func inBubble(t *testing.T, cfg Config, mem func() (memory, error), test func(t *testing.T, p *Pool, s *stock)) {
	t.Helper()
	if mem == nil {
		mem = func() (memory, error) { return memory{total: 100, available: 100}, nil }
	}
	synctest.Test(t, func(t *testing.T) {
		s := newStock()
		p := open(s, s, cfg, mem)
		test(t, p, s)
		if err := p.Close(); err != nil || !s.closed {
			t.Errorf("Close = %v, the driver is closed: %v", err, s.closed)
		}
	})
}

// create asks for a sandbox and returns how long that took.
func create(t *testing.T, p *Pool, spec sandbox.Spec) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := p.Create(t.Context(), spec); err != nil {
		t.Errorf("Create(%s) = %v", spec.Session, err)
	}
	return time.Since(began)
}

func wantReady(t *testing.T, p *Pool, kind string, n int) {
	t.Helper()
	synctest.Wait()
	if got := p.Ready(spec(kind, "")); got != n {
		t.Errorf("ready of kind %q after %v: %d, want %d", kind, time.Since(p.Driver.(*stock).started), got, n)
	}
}

func TestMinIsReadyWhateverTheDemand(t *testing.T) {
	inBubble(t, Config{Min: 2, Max: 4}, nil, func(t *testing.T, p *Pool, s *stock) {
		time.Sleep(2 * coldTime)
		wantReady(t, p, "", 2)
		if took := create(t, p, spec("", "a")); took != warmTime {
			t.Errorf("Create took %v, want %v: one was ready", took, warmTime)
		}
		wantReady(t, p, "", 1)
		time.Sleep(settleTime + coldTime)
		wantReady(t, p, "", 2)
		time.Sleep(24 * time.Hour)
		wantReady(t, p, "", 2)
		if d := s.read(); len(d.fills) != 3 || d.most != 1 {
			t.Errorf("%d fills, at most %d at a time, want 3 and 1", len(d.fills), d.most)
		}
	})
}

func TestBurstIsExpectedAgainUntilItIsForgotten(t *testing.T) {
	const window = 5 * time.Minute
	inBubble(t, Config{Max: 8, Window: window}, nil, func(t *testing.T, p *Pool, s *stock) {
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() { create(t, p, spec("app", fmt.Sprint(i))) })
		}
		all.Wait()
		time.Sleep(burst)
		wantReady(t, p, "app", 3)
		time.Sleep(time.Minute)
		for i := range 3 {
			all.Go(func() {
				if took := create(t, p, spec("app", fmt.Sprint("again", i))); took != warmTime {
					t.Errorf("Create in the second burst took %v, want %v", took, warmTime)
				}
			})
		}
		all.Wait()
		time.Sleep(window - time.Second) // since then
		wantReady(t, p, "app", 3)
		time.Sleep(window / 8)
		wantReady(t, p, "app", 0)
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := len(p.demand.kinds); n != 1 {
			t.Errorf("%d kinds are remembered, want the default one only", n)
		}
	})
}

func TestMaxHoldsOverAllKinds(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 3}, nil, func(t *testing.T, p *Pool, s *stock) {
		for _, kind := range []string{"old", "old", "new", "new"} {
			create(t, p, spec(kind, "x"))
			time.Sleep(time.Second)
		}
		for range 60 {
			time.Sleep(time.Second)
			s.mu.Lock()
			if n := s.ready[keyOf(spec("", ""))] + s.ready[keyOf(spec("old", ""))] + s.ready[keyOf(spec("new", ""))]; n > 3 {
				t.Errorf("%d are ready, want at most 3: %v", n, s.ready)
			}
			s.mu.Unlock()
		}
		wantReady(t, p, "", 1)
		wantReady(t, p, "new", 2)
		wantReady(t, p, "old", 0)
	})
}

func TestNothingIsFilledWhileASessionWaits(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 2}, nil, func(t *testing.T, p *Pool, s *stock) {
		time.Sleep(coldTime / 2) // the first fill is under way
		if took := create(t, p, spec("other", "a")); took != coldTime {
			t.Errorf("Create took %v, want %v", took, coldTime)
		}
		if d := s.read(); d.broken != 1 || len(d.fills) != 1 {
			t.Errorf("%d of %d fills were broken off, want the only one", d.broken, len(d.fills))
		}
		time.Sleep(settleTime + coldTime)
		wantReady(t, p, "", 1)
		if at := s.read().fills[1]; at != coldTime/2+coldTime+settleTime {
			t.Errorf("filled %v after the start, want %v after the Create", at, settleTime)
		}
	})
}

func TestFillUnderWayBecomesTheSandboxThatIsAskedFor(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 2}, nil, func(t *testing.T, p *Pool, s *stock) {
		time.Sleep(coldTime / 2)
		if took := create(t, p, spec("", "a")); took != coldTime/2+warmTime || len(s.read().waited) != 0 {
			t.Errorf("Create took %v and made %v, want the rest of a fill and none", took, s.read().waited)
		}
	})
}

func TestOnlyOneWaitsForAFill(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 2}, nil, func(t *testing.T, p *Pool, s *stock) {
		time.Sleep(coldTime / 2)
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() { create(t, p, spec("", fmt.Sprint(i))) })
		}
		all.Wait()
		if d := s.read(); len(d.waited) != 1 || d.broken != 0 {
			t.Errorf("%d were made for sessions and %d broken off, want 1 and 0", len(d.waited), d.broken)
		}
	})
}

func TestSnapshotsUseNothingThatIsReady(t *testing.T) {
	inBubble(t, Config{Min: 1, Max: 2}, nil, func(t *testing.T, p *Pool, s *stock) {
		time.Sleep(coldTime)
		wantReady(t, p, "", 1)
		resumed := spec("", "a")
		resumed.Resume = &sandbox.Resume{Dir: "/x"}
		create(t, p, resumed)
		wantReady(t, p, "", 1)
		if _, err := p.Prepare(t.Context(), resumed); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("Prepare on a driver that has none = %v, want ErrUnsupported", err)
		}
	})
}

func TestShortMemoryStopsAndGivesBack(t *testing.T) {
	var mu sync.Mutex
	now := memory{total: 800, available: 99} // an eighth is 100
	mem := func() (memory, error) {
		mu.Lock()
		defer mu.Unlock()
		return now, nil
	}
	available := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		now.available = n
	}
	inBubble(t, Config{Min: 2, Max: 2, Window: time.Minute}, mem, func(t *testing.T, p *Pool, s *stock) {
		time.Sleep(time.Minute)
		wantReady(t, p, "", 0)
		available(100)
		time.Sleep(time.Minute)
		wantReady(t, p, "", 2)
		available(50)
		time.Sleep(time.Minute)
		wantReady(t, p, "", 2)
		available(49)
		time.Sleep(time.Minute)
		wantReady(t, p, "", 0)
	})
}

func TestKindThatFailsIsLeftAlone(t *testing.T) {
	var log bytes.Buffer
	cfg := Config{Min: 1, Max: 2, Log: slog.New(slog.NewTextHandler(&log, nil))}
	inBubble(t, cfg, nil, func(t *testing.T, p *Pool, s *stock) {
		s.mu.Lock()
		s.failure = errors.New("no room")
		s.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		s.mu.Lock()
		// 1 + 2 + 4 + … seconds until the pause is 5 minutes.
		if n := len(s.fills); n < 15 || n > 25 {
			t.Errorf("%d tries in an hour, want some 20", n)
		}
		s.failure = nil
		s.mu.Unlock()
		time.Sleep(maxPause + coldTime)
		wantReady(t, p, "", 1)
	})
	if !strings.Contains(log.String(), "no room") {
		t.Errorf("the log does not say why: %s", log.String())
	}
}

func TestKindsAreBounded(t *testing.T) {
	d := newDemand(Config{Min: 1, Window: time.Hour})
	now := time.Unix(0, 0)
	for i := range 3 * maxKinds {
		s := spec(fmt.Sprint("kind", i), "s")
		for range 2 * maxTimes {
			d.note(keyOf(s), s, now)
		}
	}
	plan := d.plan(now, 1<<30)
	if w := plan[0]; w.key != d.key || w.count != 1 {
		t.Errorf("the first claim is %+v, want the default kind's", w)
	}
	claims := 0
	for _, w := range plan {
		if w.count > 0 {
			claims++
		} else {
			d.forget(w.key)
		}
		if w.count > maxTimes || w.spec.Session != "" {
			t.Errorf("claim %+v: of more than is remembered, or somebody's", w)
		}
	}
	if claims != maxKinds || len(d.kinds) != maxKinds {
		t.Errorf("%d claims and %d kinds, want %d of both", claims, len(d.kinds), maxKinds)
	}
}

func TestOpenLeavesOtherDriversAsTheyAre(t *testing.T) {
	type plain struct{ sandbox.Driver }
	d := &plain{}
	if got := Open(d, Config{Min: 1, Max: 2}); got != d {
		t.Errorf("Open of a driver that keeps none ready = %T, want it as it is", got)
	}
	s := newStock()
	if got := Open(s, Config{Min: 1}); got != sandbox.Driver(s) {
		t.Errorf("Open without Max = %T, want the driver as it is", got)
	}
}

func TestMemoryOfTheHost(t *testing.T) {
	m, err := parseMemory([]byte("MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nHugePages_Total: 0\n"))
	if want := (memory{total: 16 << 20, available: 8 << 20}); err != nil || m != want {
		t.Errorf("parseMemory = %+v, %v, want %+v", m, err, want)
	}
	if m, err := parseMemory([]byte("nothing")); err == nil {
		t.Errorf("parseMemory of nothing = %+v", m)
	}
	if m, err := hostMemory(); err != nil || m.available <= 0 || m.available > m.total {
		t.Errorf("hostMemory = %+v, %v", m, err)
	}
}

// BenchmarkPlan is what every step of the loop and every Create pay at most.
func BenchmarkPlan(b *testing.B) {
	d := newDemand(Config{Min: 1, Window: time.Hour})
	now := time.Now()
	for i := range maxKinds {
		s := spec(fmt.Sprint("kind", i), "s")
		for range maxTimes {
			d.note(keyOf(s), s, now)
		}
	}
	for b.Loop() {
		d.plan(now, 100)
	}
}
