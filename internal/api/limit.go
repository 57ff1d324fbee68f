package api

import (
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Rate bounds how often one key may call: a bucket of Burst calls that refills
// with PerSecond. The zero value means 100 a second with a burst of 500; a
// negative PerSecond means no limit.
type Rate struct {
	PerSecond float64
	Burst     int
}

// limiter has one bucket for each key that called.
type limiter struct {
	rate Rate

	mu      sync.Mutex
	buckets map[sojourn.KeyID]*bucket
}

type bucket struct {
	calls float64 // that may be made at once
	at    time.Time
}

func newLimiter(r Rate) *limiter {
	if r.PerSecond == 0 {
		r.PerSecond = 100
	}
	if r.Burst <= 0 {
		r.Burst = int(max(1, 5*r.PerSecond))
	}
	return &limiter{rate: r, buckets: map[sojourn.KeyID]*bucket{}}
}

// take takes one call out of the key's bucket at now. When there is none it
// returns rate_limited with the time until there is.
func (l *limiter) take(id sojourn.KeyID, now time.Time) error {
	if l.rate.PerSecond < 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[id]
	if b == nil {
		b = &bucket{calls: float64(l.rate.Burst), at: now}
		l.buckets[id] = b
	}
	if gone := now.Sub(b.at); gone > 0 {
		b.calls, b.at = min(float64(l.rate.Burst), b.calls+gone.Seconds()*l.rate.PerSecond), now
	}
	if b.calls >= 1 {
		b.calls--
		return nil
	}
	wait := time.Duration((1 - b.calls) / l.rate.PerSecond * float64(time.Second))
	return &sojourn.Error{
		Code: sojourn.CodeRateLimited, RetryAfter: max(wait, time.Millisecond),
		Message: "This key has made too many calls. Wait, then repeat.",
	}
}
