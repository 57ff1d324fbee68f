package engine_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// TestPlannedRotationCarriesTheWork: before its timeout a sandbox is replaced by one
// with the same files, variables and directory; an exec that arrives meanwhile waits
// and then runs.
func TestPlannedRotationCarriesTheWork(t *testing.T) { // RO-01
	s := beginBare(t, servertest.Config{}, engine.Create{
		Sandbox:   sojourn.SandboxSpec{Timeout: 8 * time.Second},
		Rotation:  sojourn.Rotation{Buffer: 4 * time.Second},
		Carryover: sojourn.CarryoverPatch{Env: map[string]*string{"PLACE": new("Veere")}},
	})
	s.says("mkdir -p sub; printf '%s' $PLACE > sub/f", "")
	x := s.held(1)
	if _, _, err := s.engine().UpdateCarryover(s.patient(), s.ref, sojourn.CarryoverPatch{Dir: new("sub")}); err != nil {
		t.Fatal(err)
	}
	s.until("the rotation to begin", func() bool { return s.bare().Session.Rotating() })
	s.want("reason", s.bare().Session.Rotation.Why, sojourn.RotatePlanned)
	waits := s.start(sh("cat f; echo \" $PLACE\"; pwd | sed 's:.*/::'"))
	s.want("what waits", waits.State, sojourn.ExecQueued)
	s.release(1)
	x = s.wait(x)
	s.want("what ran", code(x), 0)
	s.want("its reason", x.Reason, sojourn.ExecReason(""))
	waits = s.wait(waits)
	s.want("what waited says", s.output(waits, output.Stdout), "Veere Veere\nsub\n")
	s.want("its epoch", waits.Epoch, int64(2))
	s.rotated(1)
	s.want("reason told", s.told(sojourn.EventRotationCompleted)[0]["reason"], string(sojourn.RotatePlanned))
	s.until("one sandbox", func() bool { return s.boxes() == 1 })
}

// TestRotationCutsShortWhatDoesNotEnd: at the sandbox's deadline the foreground exec is
// ended, with a true outcome.
func TestRotationCutsShortWhatDoesNotEnd(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Sandbox: sojourn.SandboxSpec{Timeout: 6 * time.Second}})
	s.says("echo kept > f", "")
	x := s.wait(s.start(sh("trap 'exit 7' TERM; while :; do sleep 0.01; done")))
	s.want("state", x.State, sojourn.ExecEnded)
	s.want("reason", x.Reason, sojourn.ExecRotated)
	s.want("code", code(x), 7)
	s.rotated(1)
	s.says("cat f", "kept\n")
}

func TestRequestedRotationWaitsForWhatRuns(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{})
	background := s.start(beside("echo up; while :; do sleep 0.01; done"))
	s.writes(background, "up")
	x := s.held(1)
	s.do((*engine.Engine).RotateSession)
	s.do((*engine.Engine).RotateSession) // one is under way
	s.want("rotating", s.bare().Session.Rotating(), true)
	s.want("what runs", s.at(x).State, sojourn.ExecRunning)
	s.release(1)
	s.want("code", code(s.wait(x)), 0)
	background = s.wait(background)
	s.want("in the background", background.Reason, sojourn.ExecRotated)
	s.rotated(1)
	s.want("sandboxes made", len(s.Fake.Created()), 2)
}

// TestHookEndsWithItsBuffer: also a rotation that was asked for, far from the
// deadline of its sandbox, waits no longer for its hook.
func TestHookEndsWithItsBuffer(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{
		Buffer: time.Second, Hook: []string{"/bin/sh", "-c", "echo hooked >> f; exec sleep 600"},
	}})
	if _, err := s.engine().RotateSession(t.Context(), s.ref); err != nil {
		t.Fatal(err)
	}
	s.says("cat f", "hooked\n")
	all, err := s.engine().Execs(t.Context(), s.ref, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Spec.Hook {
			s.want("how the hook ended", x.Reason, sojourn.ExecTimeout)
			s.want("its timeout", x.Spec.Timeout, time.Second)
			return
		}
	}
	t.Errorf("no hook ran: %v", all)
}

// TestHookRunsOnceBeforeARotation: its exec is told of and is no iteration.
func TestHookRunsOnceBeforeARotation(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{Hook: []string{"/bin/sh", "-c", "echo hooked >> f; exit 9"}}})
	s.says("echo begun > f", "")
	s.do((*engine.Engine).RotateSession)
	s.rotated(1)
	s.says("cat f", "begun\nhooked\n")
	s.want("iterations", s.bare().Session.Budget.Usage.Iterations, int64(2))
	hooks := 0
	for _, e := range s.told(sojourn.EventExecCompleted) {
		if e["hook"] == true {
			hooks++
			s.want("its exit code", e["exitCode"], 9.0)
		}
	}
	s.want("hooks told of", hooks, 1)
	s.do((*engine.Engine).RotateSession)
	s.rotated(2)
	s.says("cat f", "begun\nhooked\nhooked\n")
}

// TestHookWithoutTimeIsTold: a hook for which its buffer leaves no time is refused where
// everybody can see it, once, and the rotation goes on.
func TestHookWithoutTimeIsTold(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{
		Buffer: 500 * time.Millisecond, Hook: []string{"/bin/sh", "-c", "echo hooked >> f"},
	}})
	s.says("echo begun > f", "")
	s.do((*engine.Engine).RotateSession)
	s.rotated(1)
	s.says("cat f", "begun\n")
	told := s.told(sojourn.EventExecRefused)
	s.want("refusals told of", len(told), 1)
	s.want("that of a hook", told[0]["hook"], true)
	s.want("its reason", told[0]["reason"], string(sojourn.ExecRotated))
	x, err := s.engine().ExecByID(t.Context(), s.ref, sojourn.ExecID(told[0]["executionId"].(string)))
	if err != nil || x.State != sojourn.ExecRefused || !x.Spec.Hook || len(x.Spec.Argv) != 3 {
		t.Errorf("the hook is %+v, %v", x, err)
	}
	s.want("iterations", s.bare().Session.Budget.Usage.Iterations, int64(2))
}

// TestLostSandboxIsReplaced: what its directory still has is carried; what nobody has
// any more is said to be lost, with since when.
func TestLostSandboxIsReplaced(t *testing.T) { // RO-03
	for name, lose := range map[string]func(s *execStory){
		"its files are there": func(s *execStory) { s.Fake.Kill(string(s.ref.ID)) },
		"its files are gone": func(s *execStory) {
			if err := s.Fake.Remove(s.Context(), sandbox.Handle{Driver: fake.Name, Session: string(s.ref.ID), Epoch: 1}); err != nil {
				s.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{NoIdleCheckpoint: true}})
			s.says("echo kept > f", "")
			x := s.start(sh("echo up; while :; do sleep 0.01; done"))
			s.writes(x, "up")
			lose(s)
			waits := s.start(sh("cat f || echo none"))
			x = s.wait(x)
			s.want("what ran", x.State, sojourn.ExecLost)
			waits = s.wait(waits)
			s.rotated(1)
			done := s.told(sojourn.EventRotationCompleted)[0]
			s.want("reason", done["reason"], string(sojourn.RotateLost))
			lost, said := done["lost"].(map[string]any)
			if strings.Contains(name, "gone") {
				s.want("found", s.output(waits, output.Stdout), "none\n")
				s.want("the loss is told", said && lost["since"] != "", true)
			} else {
				s.want("found", s.output(waits, output.Stdout), "kept\n")
				s.want("a loss is told", said, false)
			}
		})
	}
}

// TestRotationCarriesProcesses: with includeProcessState what runs goes on.
func TestRotationCarriesProcesses(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{Processes: true}})
	x := s.start(beside("i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"))
	s.writes(x, "3\n")
	s.do((*engine.Engine).RotateSession)
	s.rotated(1)
	s.want("state", s.at(x).State, sojourn.ExecRunning)
	seen := s.bare().Lease
	s.want("processes of epoch", seen.Resumed, int64(1))
	before := s.written(x)
	s.until("more output", func() bool { return s.written(x) > before+10 })
	s.do((*engine.Engine).CancelSession)
	x = s.wait(x)
	for i, line := range strings.Split(strings.TrimSuffix(s.output(x, output.Stdout), "\n"), "\n") {
		if line != itoa(int64(i+1)) {
			t.Fatalf("line %d of the output is %q", i+1, line)
		}
	}
}

// written is how much an exec has written to its stdout.
func (s *execStory) written(x sojourn.Exec) int64 {
	s.Helper()
	r, err := s.engine().ExecOutput(s.patient(), s.ref, x.ID)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Close()
	sizes, _ := r.Sizes()
	return sizes.Stdout
}

// TestProcessesThatCannotGoOnAreLost: the rotation is completed, the exec says that
// its outcome is unknown.
func TestProcessesThatCannotGoOnAreLost(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{Processes: true}})
	s.says("echo kept > f", "")
	x := s.start(beside("echo up; while :; do sleep 0.01; done"))
	s.writes(x, "up")
	s.Fake.SetFaults(fake.Faults{ResumeErr: errors.New("another processor")})
	s.do((*engine.Engine).RotateSession)
	s.rotated(1)
	s.want("exec", s.wait(x).State, sojourn.ExecLost)
	s.want("cold starts told", len(s.told(sojourn.EventWorkspaceColdStart)), 1)
	s.says("cat f", "kept\n")
}

// TestRotationThatFailsEndsTheSession: after three tries, with the reason, and with its
// files in a checkpoint.
func TestRotationThatFailsEndsTheSession(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{})
	s.says("echo kept > f", "")
	s.Fake.SetFaults(fake.Faults{CreateErr: errors.New("no room")})
	s.do((*engine.Engine).RotateSession)
	waits := s.start(sh("true"))
	s.want("what waits", s.wait(waits).State, sojourn.ExecRefused)
	f := s.bare()
	s.want("how", f.Session.CloseReason, sojourn.CloseFailed)
	s.want("why", f.Session.Ending.Reason, sojourn.StopRotation)
	s.want("text", f.Session.Ending.Text, "No sandbox could be provided.")
	s.want("tries told", len(s.told(sojourn.EventRotationFailed)), sojourn.MaxRotationTries)
	s.want("sandboxes", s.boxes(), 0)
	s.want("files are kept", f.Head != nil && f.Head.Restorable(""), true)
}

// TestRotationThatWouldLoseFiles is tried again in the sandbox that is kept.
func TestRotationThatWouldLoseFiles(t *testing.T) {
	s := beginBare(t, servertest.Config{WorkspaceMaxBytes: 64 << 10}, engine.Create{})
	s.says("echo kept > f; head -c 131072 /dev/urandom > big", "")
	s.do((*engine.Engine).RotateSession)
	s.until("the first try to fail", func() bool { return len(s.told(sojourn.EventRotationFailed)) > 0 })
	if err := os.Remove(s.inSandbox(1, "big")); err != nil {
		t.Fatal(err)
	}
	s.rotated(1)
	s.says("cat f", "kept\n")
}

// TestVisitorsWaitForARotation, and make no sandbox of their own.
func TestVisitorsWaitForARotation(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{})
	x := s.held(1)
	s.do((*engine.Engine).RotateSession)
	_, err := s.engine().EnsureWorkspace(s.patient(), s.ref, 20*time.Millisecond)
	s.want("code", sojourn.CodeOf(err), sojourn.CodeWorkspaceStarting)
	came := make(chan sojourn.Facts, 1)
	go func() {
		f, err := s.engine().EnsureWorkspace(s.Context(), s.ref, patience)
		if err != nil {
			s.Error(err)
		}
		came <- f
	}()
	s.release(1)
	s.wait(x)
	if f := <-came; f.Lease == nil || f.Lease.Epoch != 2 {
		t.Errorf("the visitor came to %+v", f.Lease)
	}
	s.want("sandboxes made", len(s.Fake.Created()), 2)
	s.do((*engine.Engine).PauseSession)
	_, err = s.engine().EnsureWorkspace(s.patient(), s.ref, patience)
	s.want("code in a pause", sojourn.CodeOf(err), sojourn.CodeInvalidState)
}
