package egress

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// What a sandbox does is written down for good, so it must not be able to fill the
// disk with it: reports and the entries in them come as fast as anybody can look, until
// a sandbox has had many, and then at a pace that may go on for months.
const (
	reportPause = time.Second
	maxReports  = 60
	reportEvery = 30 * time.Second
	// maxKeys bounds what is known at a time. A sandbox that asks for ever new names
	// gets new entries at the pace of keyEvery only; the rest counts for otherHost.
	maxKeys   = 1024
	keyEvery  = 2 * time.Second
	otherHost = "*other*"
)

// budget is how often something may happen: at once as often as most, and in the long
// run once every so often.
type budget struct {
	left, most int
	every      time.Duration
	earned     time.Time // until when left was counted up
}

func newBudget(most int, every time.Duration, now time.Time) budget {
	return budget{most, most, every, now}
}

// take reports whether it may happen now, and counts that.
func (b *budget) take(now time.Time) bool {
	if more := int(now.Sub(b.earned) / b.every); more > 0 {
		b.left = min(b.left+more, b.most)
		b.earned = now
	}
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}

// ledger counts decisions, equal ones together, and passes them on.
type ledger struct {
	now    func() time.Time
	report func([]sojourn.NetworkDecision)
	wake   chan struct{} // one deep: there is something to report

	mu     sync.Mutex
	counts map[decisionKey]*sojourn.NetworkDecision
	keys   budget // of new ones
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
		counts: make(map[decisionKey]*sojourn.NetworkDecision), keys: newBudget(maxKeys, keyEvery, now()),
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
		if l.keys.take(now) {
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

// run reports until ctx ends, and then once more what is left. The caller ends it when
// nothing is added any more.
func (l *ledger) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	reports := newBudget(maxReports, reportEvery, time.Now())
	for {
		select {
		case <-ctx.Done():
			l.flush()
			return
		case <-l.wake:
		}
		l.flush()
		wait := reportPause
		if !reports.take(time.Now()) {
			wait = reportEvery
		}
		pause.Reset(wait)
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
