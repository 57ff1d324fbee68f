package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// gated is a script that goes on when open is called.
func (s *execStory) gated(name, then string) engine.ExecRequest {
	return sh(fmt.Sprintf("until [ -e %s ]; do sleep 0.02; done; %s", name, then))
}

func (s *execStory) open(name string) {
	s.Helper()
	in := sh("touch " + name)
	in.Spec.Detached = true
	s.want("opened", code(s.run(in)), 0)
}

func TestForegroundExecsTakeTurns(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	all := []sojourn.Exec{s.start(s.gated("go", "echo 0 >> log"))}
	for i := 1; i < 8; i++ {
		all = append(all, s.start(sh(fmt.Sprintf("echo %d >> log", i))))
	}
	s.want("first", s.at(all[0]).State, sojourn.ExecRunning)
	for _, x := range all[1:] {
		s.want("behind it", s.at(x).State, sojourn.ExecQueued)
	}
	s.open("go") // a detached one waits for nobody
	for i, x := range all {
		x = s.wait(x)
		s.want("state", x.State, sojourn.ExecEnded)
		if i > 0 && x.StartedAt.Before(s.at(all[i-1]).EndedAt) {
			t.Errorf("exec %d began before exec %d had ended", i, i-1)
		}
	}
	s.want("order", s.output(s.run(sh("cat log")), output.Stdout), "0\n1\n2\n3\n4\n5\n6\n7\n")
}

// TestExecThatWaitsForTooLongIsRefused: the time in which another exec ran counts.
func TestExecThatWaitsForTooLongIsRefused(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	first := s.start(s.gated("go", "echo done"))
	var late []sojourn.Exec
	for range 6 { // more than facts hold
		in := sh("echo never")
		in.Spec.Timeout = sojourn.MinExecTimeout
		late = append(late, s.start(in))
	}
	patient := s.start(sh("echo at last"))
	for _, x := range late {
		x = s.wait(x)
		s.want("state", x.State, sojourn.ExecRefused)
		s.want("reason", x.Reason, sojourn.ExecBusy)
		s.want("code", sojourn.CodeOf(engine.ExecRefusal(x)), sojourn.CodeSessionBusy)
		if waited := x.EndedAt.Sub(x.QueuedAt); waited < sojourn.MinExecTimeout-50*time.Millisecond {
			t.Errorf("it was refused after %v", waited)
		}
	}
	s.open("go")
	s.want("first", code(s.wait(first)), 0)
	s.want("patient", code(s.wait(patient)), 0)
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(3))
}

// TestNoExecStartsBeyondTheBudget is BU-03: of twenty that come at once with five
// left, five run.
func TestNoExecStartsBeyondTheBudget(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{Iterations: 6})
	s.want("one", code(s.run(sh("echo x >> ran"))), 0)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	for i := range 20 {
		wg.Go(func() {
			in := sh("echo x >> ran; sleep 0.01")
			in.Spec.Detached = i%2 == 0
			how := ""
			_, x, err := s.engine().StartExec(s.patient(), s.ref, in)
			if err == nil {
				_, x, err = s.engine().WaitExec(s.patient(), s.ref, x.ID)
				err = errors.Join(err, engine.ExecRefusal(x))
				how = string(x.State)
			}
			if err != nil {
				how = string(sojourn.CodeOf(err))
			}
			mu.Lock()
			defer mu.Unlock()
			ends[how]++
		})
	}
	wg.Wait()
	if ends["ended"] != 5 || ends["budget_exceeded"] != 15 {
		t.Errorf("they end as %v, want 5 ended and 15 budget_exceeded", ends)
	}
	s.want("iterations", s.state().Budget.Usage.Iterations, int64(6))
	s.until("the session to be closed", func() bool { return s.state().State == sojourn.SessionClosed })
	s.want("reason", s.state().Ending.Reason, sojourn.StopBudget)
}

// TestDetachedExecsAreStoppedAtTheCostLimit: nobody waits for them, and yet they end.
func TestDetachedExecsAreStoppedAtTheCostLimit(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{Rates: testRates}, sojourn.Limits{Cost: 3000})
	in := sh("sleep 600")
	in.Spec.Detached, in.Spec.Timeout = true, 0
	x := s.wait(s.start(in))
	s.want("reason", x.Reason, sojourn.ExecBudget)
	if x.Cost < 3000 {
		t.Errorf("it cost %d in %v", x.Cost, x.EndedAt.Sub(x.StartedAt))
	}
	s.want("limit", s.state().Ending.Limit, sojourn.LimitCost)
	_, _, err := s.engine().StartExec(s.patient(), s.ref, sh("true"))
	s.want("another", sojourn.CodeOf(err), sojourn.CodeBudgetExceeded)
}

func TestRepeatedRequestStartsOneExec(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	in := sh("echo x >> ran")
	in.Idempotency = sojourn.Idempotency{Key: "k", Hash: [32]byte{1}}
	first := s.run(in)
	s.want("id", s.run(in).ID, first.ID)
	in.Idempotency.Hash = [32]byte{2}
	_, _, err := s.engine().StartExec(s.patient(), s.ref, in)
	s.want("another command", sojourn.CodeOf(err), sojourn.CodeIdempotencyConflict)
	s.want("ran", strings.Count(s.output(s.run(sh("cat ran")), output.Stdout), "x"), 1)
}

func TestExecWithApproval(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	answer := func(x sojourn.Exec, option string) {
		t.Helper()
		all, err := s.engine().Interactions(s.patient(), s.ref, sojourn.InteractionOpen)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			if i.Exec == x.ID {
				if _, err := s.engine().Answer(s.patient(), s.ref, i.ID, sojourn.Answer{OptionID: option}); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		t.Fatalf("no question about exec %s in %v", x.ID, all)
	}
	in := sh("echo yes >> ran")
	in.Spec.Ask = true
	asked, other := s.run(in), s.run(in) // waiting ends when somebody is asked
	s.want("asked", asked.State, sojourn.ExecParked)
	answer(asked, sojourn.OptionApprove)
	answer(other, sojourn.OptionReject)
	s.want("approved", code(s.wait(asked)), 0)
	other = s.wait(other)
	s.want("rejected", other.State, sojourn.ExecRefused)
	s.want("why", other.Reason, sojourn.ExecRejected)
	s.want("ran", s.output(s.run(sh("cat ran")), output.Stdout), "yes\n")
}
