package api

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Rate bounds how often one key may call: a bucket of Burst calls that refills
// with PerSecond. The zero value means 1,000 a second with a burst of 5,000: a
// platform calls for all its sessions with one key. A negative PerSecond means no limit.
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
		r.PerSecond = 1000
	}
	if r.Burst <= 0 {
		r.Burst = int(max(1, 5*r.PerSecond))
	}
	return &limiter{rate: r, buckets: map[sojourn.KeyID]*bucket{}}
}

// allowance is what is left of a key's bucket. The zero value is that of a limiter
// without a limit.
type allowance struct {
	burst, calls int
	full         time.Duration // until it is full again
}

// write tells the caller, by the headers that many services send.
func (a allowance) write(h http.Header) {
	if a.burst == 0 {
		return
	}
	h.Set("X-RateLimit-Limit", strconv.Itoa(a.burst))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(a.calls))
	h.Set("X-RateLimit-Reset", strconv.Itoa(int((a.full+time.Second-1)/time.Second)))
}

// take takes one call out of the key's bucket at now. When there is none it
// returns rate_limited with the time until there is.
func (l *limiter) take(id sojourn.KeyID, now time.Time) (allowance, error) {
	if l.rate.PerSecond < 0 {
		return allowance{}, nil
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
	left := func() allowance {
		full := (float64(l.rate.Burst) - b.calls) / l.rate.PerSecond
		return allowance{burst: l.rate.Burst, calls: int(b.calls), full: time.Duration(full * float64(time.Second))}
	}
	if b.calls >= 1 {
		b.calls--
		return left(), nil
	}
	wait := time.Duration((1 - b.calls) / l.rate.PerSecond * float64(time.Second))
	return left(), &sojourn.Error{
		Code: sojourn.CodeRateLimited, RetryAfter: max(wait, time.Millisecond),
		Message: "This key has made too many calls. Wait, then repeat.",
	}
}
