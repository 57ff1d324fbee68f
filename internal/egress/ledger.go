package egress

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

const (
	reportPause = time.Second
	// maxKeys bounds what is known at a time. A sandbox that asks for ever new
	// names gets new entries at keyPause only; the rest counts for otherHost.
	maxKeys   = 1024
	keyPause  = 250 * time.Millisecond
	otherHost = "*other*"
)

// ledger counts decisions, equal ones together, and passes them on.
type ledger struct {
	now    func() time.Time
	report func([]sojourn.NetworkDecision)
	wake   chan struct{} // one deep: there is something to report

	mu     sync.Mutex
	counts map[decisionKey]*sojourn.NetworkDecision
	keys   int       // how many new ones may still come
	earned time.Time // until when keys were counted up
}

type decisionKey struct {
	host    string
	port    int
	allowed bool
	reason  string
}

func newLedger(now func() time.Time, report func([]sojourn.NetworkDecision)) *ledger {
	return &ledger{
		now: now, report: report, wake: make(chan struct{}, 1),
		counts: make(map[decisionKey]*sojourn.NetworkDecision), keys: maxKeys, earned: now(),
	}
}

// add counts a decision.
func (l *ledger) add(host string, port int, allowed bool, reason string) {
	if l.report == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	k := decisionKey{shown(host), port, allowed, reason}
	d := l.counts[k]
	if d == nil {
		if l.payLocked(now) {
			d = &sojourn.NetworkDecision{Host: k.host, Port: k.port, Allowed: allowed, Reason: reason, First: now}
		} else {
			k = decisionKey{otherHost, 0, allowed, "too_many_names"}
			if d = l.counts[k]; d == nil {
				d = &sojourn.NetworkDecision{Host: k.host, Allowed: allowed, Reason: k.reason, First: now}
			}
		}
		l.counts[k] = d
	}
	d.Count++
	d.Last = now
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// payLocked takes one of the new keys that may come, and reports whether there was one.
func (l *ledger) payLocked(now time.Time) bool {
	if more := int(now.Sub(l.earned) / keyPause); more > 0 {
		l.keys = min(l.keys+more, maxKeys)
		l.earned = now
	}
	if l.keys == 0 {
		return false
	}
	l.keys--
	return true
}

// run reports until ctx ends, and then once more what is left. The caller ends it when
// nothing is added any more.
func (l *ledger) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for {
		select {
		case <-ctx.Done():
			l.flush()
			return
		case <-l.wake:
		}
		l.flush()
		pause.Reset(reportPause)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
}

func (l *ledger) flush() {
	l.mu.Lock()
	list := make([]sojourn.NetworkDecision, 0, len(l.counts))
	for _, d := range l.counts {
		list = append(list, *d)
	}
	clear(l.counts)
	l.mu.Unlock()
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b sojourn.NetworkDecision) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	l.report(list)
}
