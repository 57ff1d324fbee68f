package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// starving is a sandbox whose limit keeps it from running until a time. What is inside
// cannot be asked.
type starving struct {
	lasting
	until time.Time
}

func (s starving) Usage(context.Context) (sandbox.Usage, error) {
	now := time.Now()
	if now.After(s.until) {
		now = s.until
	}
	return sandbox.Usage{CPUThrottled: time.Duration(now.UnixNano())}, errors.New("nobody answers")
}

// silenceOf shuts the line of a rig, asks for something, and returns when the silence
// counts and what it is said to have lasted.
func (r *rig) silenceOf(t *testing.T, starved time.Duration) (took, told time.Duration) {
	t.Helper()
	r.e.cfg.UnresponsiveAfter = time.Minute
	if _, err := r.c.peer.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.c.box = starving{lasting: r.c.box.(lasting), until: began.Add(starved)}
	gate := make(chan struct{})
	r.gate.Store(&gate)
	asking, cancel := context.WithCancel(t.Context())
	go func() { _, _ = r.c.peer.Info(asking) }()
	told, err := r.e.awaitSilence(t.Context(), r.c)
	if err != nil {
		t.Fatal(err)
	}
	took = time.Since(began)
	cancel()
	r.gate.Store(nil)
	close(gate)
	synctest.Wait()
	return took, told
}

// TestStarvedSandboxHasMoreTime: one that its own limit keeps from running is not taken
// for one that does not answer, for a while.
func TestStarvedSandboxHasMoreTime(t *testing.T) {
	for name, c := range map[string]struct{ starved, want time.Duration }{
		"not starved":         {0, time.Minute},
		"starved for a while": {150 * time.Second, 3 * time.Minute},
		"starved for ever":    {24 * time.Hour, starvedRounds * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(t *testing.T, r *rig) {
				took, told := r.silenceOf(t, c.starved)
				if told != c.want || took < told || took > told*7/6+starvedRounds*starvedLook {
					t.Errorf("it counted after %v, and was told as %v; want %v", took, told, c.want)
				}
			})
		})
	}
}
