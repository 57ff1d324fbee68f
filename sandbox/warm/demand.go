package warm

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	// burst is the short time of a demand: what is taken within it is hardly
	// replaced by then.
	burst = 10 * time.Second
	// maxKinds is how many kinds are remembered.
	maxKinds = 64
	// maxTimes is how many Creates are remembered of a kind.
	maxTimes = 256

	minPause = time.Second
	maxPause = 5 * time.Minute
)

// demand is what was asked for lately. It is used under the pool's lock.
type demand struct {
	key    string // of the default kind, which is never forgotten
	min    int
	window time.Duration
	kinds  []*kind // the one that was asked for last is first
}

// kind is what is known of one kind.
type kind struct {
	key     string
	spec    sandbox.Spec
	asked   []time.Time // of the Creates within the window, oldest first
	pause   time.Duration
	retryAt time.Time
}

// want is how many of a kind shall be ready.
type want struct {
	key     string
	spec    sandbox.Spec
	count   int
	retryAt time.Time
}

func newDemand(cfg Config) demand {
	k := &kind{key: keyOf(cfg.Default), spec: ofNobody(cfg.Default)}
	return demand{key: k.key, min: cfg.Min, window: cfg.Window, kinds: []*kind{k}}
}

// ofNobody is the spec without the session it is for.
func ofNobody(spec sandbox.Spec) sandbox.Spec {
	spec.Session, spec.Epoch, spec.Resume = "", 0, nil
	spec.Layers = slices.Clone(spec.Layers)
	return spec
}

// keyOf is the same for all specs that ask for the same.
func keyOf(spec sandbox.Spec) string {
	spec = ofNobody(spec)
	if len(spec.Layers) == 0 {
		spec.Layers = nil
	}
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// note remembers that a sandbox was asked for.
func (d *demand) note(key string, spec sandbox.Spec, now time.Time) {
	i := slices.IndexFunc(d.kinds, func(k *kind) bool { return k.key == key })
	var k *kind
	if i >= 0 {
		k = d.kinds[i]
		d.kinds = slices.Delete(d.kinds, i, i+1)
	} else {
		k = &kind{key: key, spec: ofNobody(spec)}
	}
	if len(k.asked) == maxTimes {
		k.asked = slices.Delete(k.asked, 0, maxTimes/2)
	}
	k.asked = append(k.asked, now)
	d.kinds = slices.Insert(d.kinds, 0, k)
}

// plan says how many shall be ready of each kind that is known, at most total over all.
// The default kind has the first claim, and then those that were asked for last.
func (d *demand) plan(now time.Time, total int) []want {
	kinds := slices.Clone(d.kinds)
	if i := slices.IndexFunc(kinds, func(k *kind) bool { return k.key == d.key }); i > 0 {
		kinds = slices.Insert(slices.Delete(kinds, i, i+1), 0, d.kinds[i])
	}
	plan := make([]want, 0, len(kinds))
	for i, k := range kinds {
		k.asked = slices.DeleteFunc(k.asked, func(t time.Time) bool { return now.Sub(t) > d.window })
		n := peak(k.asked)
		if k.key == d.key {
			n = max(n, d.min)
		}
		if i >= maxKinds {
			n, k.asked = 0, nil
		}
		n = min(n, total)
		total -= n
		plan = append(plan, want{key: k.key, spec: k.spec, count: n, retryAt: k.retryAt})
	}
	return plan
}

// forget drops a kind of which nothing is ready, unless it was asked for lately.
func (d *demand) forget(key string) {
	d.kinds = slices.DeleteFunc(d.kinds, func(k *kind) bool {
		return k.key == key && k.key != d.key && len(k.asked) == 0
	})
}

// peak is the most of times, which ascend, that lie within one burst.
func peak(times []time.Time) int {
	most, first := 0, 0
	for i, t := range times {
		for t.Sub(times[first]) > burst {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// outcome remembers whether a kind could be made ready and returns how long it is left
// alone.
func (d *demand) outcome(key string, now time.Time, worked bool) time.Duration {
	for _, k := range d.kinds {
		if k.key != key {
			continue
		}
		if worked {
			k.pause = 0
		} else {
			k.pause = min(max(2*k.pause, minPause), maxPause)
		}
		k.retryAt = now.Add(k.pause)
		return k.pause
	}
	return 0
}
