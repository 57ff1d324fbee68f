package engine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// soon is how long a sandbox may answer nothing in these tests: little, and enough for a
// busy machine.
const soon = 3 * time.Second

// falls silent: connections to the session's sandbox stay open and new ones are accepted,
// and nothing comes through any of them.
func (s *execStory) fallsSilent() {
	s.Helper()
	s.want("sandboxes that fall silent", s.Fake.Freeze(string(s.ref.ID)), 1)
}

// toldSilence wants one silence to be told of, and its lease to have ended so.
func (s *execStory) toldSilence(lease map[string]any) {
	s.Helper()
	told := s.told(sojourn.EventWorkspaceSilent)
	if len(told) != 1 {
		s.Fatalf("silences told of: %v", told)
	}
	s.want("epoch", told[0]["epoch"], 1.0)
	s.want("silence", told[0]["silentMs"], float64(soon.Milliseconds()))
	s.want("detail", told[0]["detail"], "The sandbox's keeper did not answer for 3s: the sandbox is ended.")
	if lease != nil {
		s.want("why the lease ended", lease["reason"], "unresponsive")
	}
}

// TestUnresponsiveSandboxIsReplaced: what runs in it ends as lost, and its files go on.
func TestUnresponsiveSandboxIsReplaced(t *testing.T) {
	s := beginBare(t, servertest.Config{UnresponsiveAfter: soon}, engine.Create{Rotation: sojourn.Rotation{NoIdleCheckpoint: true}})
	s.says("echo kept > f", "")
	x := s.start(sh("echo up; exec sleep 600"))
	s.writes(x, "up")
	s.fallsSilent()
	waits := s.start(sh("cat f"))
	x = s.wait(x)
	s.want("what ran", x.State, sojourn.ExecLost)
	s.want("why", x.Reason, sojourn.ExecSandboxLost)
	s.want("it wrote", s.output(x, output.Stdout), "up\n")
	s.want("what waited says", s.output(s.wait(waits), output.Stdout), "kept\n")
	s.rotated(1)
	s.toldSilence(s.told(sojourn.EventWorkspaceLost)[0])
	done := s.told(sojourn.EventRotationCompleted)[0]
	s.want("reason of the rotation", done["reason"], string(sojourn.RotateLost))
	s.want("a loss of files", done["lost"], nil)
	s.until("the old sandbox to be removed", func() bool { return s.boxes() == 1 })
}

// TestUnresponsiveSandboxHoldsNobodyUp: whatever was asked for ends, and the files are
// saved.
func TestUnresponsiveSandboxHoldsNobodyUp(t *testing.T) {
	for name, end := range map[string]struct {
		ask  func(s *execStory, x sojourn.Exec)
		over func(s *execStory) bool
	}{
		"cancelled session": {
			ask:  func(s *execStory, _ sojourn.Exec) { s.do((*engine.Engine).CancelSession) },
			over: func(s *execStory) bool { return s.boxes() == 0 },
		},
		"stopped session": {
			ask: func(s *execStory, _ sojourn.Exec) {
				if _, err := s.engine().StopSession(s.patient(), s.ref, "enough"); err != nil {
					s.Fatal(err)
				}
			},
			over: func(s *execStory) bool { return s.boxes() == 0 },
		},
		"paused session": {
			ask:  func(s *execStory, _ sojourn.Exec) { s.do((*engine.Engine).PauseSession) },
			over: func(s *execStory) bool { return s.boxes() == 0 },
		},
		"rotation": {
			ask:  func(s *execStory, _ sojourn.Exec) { s.do((*engine.Engine).RotateSession) },
			over: func(s *execStory) bool { return s.bare().Session.Rotation.Count == 1 },
		},
		"cancelled exec": {
			ask: func(s *execStory, x sojourn.Exec) {
				if _, err := s.engine().CancelExec(s.patient(), s.ref, x.ID, true); err != nil {
					s.Fatal(err)
				}
			},
			over: func(s *execStory) bool { return s.bare().Session.Rotation.Count == 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := beginBare(t, servertest.Config{UnresponsiveAfter: soon}, engine.Create{Rotation: sojourn.Rotation{NoIdleCheckpoint: true}})
			s.says("echo kept > f", "")
			x := s.start(beside("echo up; exec sleep 600"))
			s.writes(x, "up")
			s.fallsSilent()
			end.ask(s, x)
			s.want("what ran", s.wait(x).State, sojourn.ExecLost)
			s.until("the end", func() bool { return end.over(s) })
			s.toldSilence(nil)
			f := s.bare()
			s.want("files are kept", f.Head != nil && f.Head.Restorable(""), true)
			s.want("files are missing", f.Session.Rotation.Lost != nil, false)
		})
	}
}

// TestUnresponsiveSandboxKeepsNoDeadline: it is replaced when it is due, also with
// processes that were to be carried.
func TestUnresponsiveSandboxKeepsNoDeadline(t *testing.T) {
	s := beginBare(t, servertest.Config{UnresponsiveAfter: soon}, engine.Create{
		Sandbox:  sojourn.SandboxSpec{Timeout: 6 * time.Second},
		Rotation: sojourn.Rotation{Processes: true, NoIdleCheckpoint: true, Buffer: time.Second},
	})
	s.says("echo kept > f", "") // nothing is asked of the sandbox from here on
	s.fallsSilent()
	s.rotated(1)
	s.says("cat f", "kept\n")
	s.want("reason of the rotation", s.told(sojourn.EventRotationCompleted)[0]["reason"], string(sojourn.RotatePlanned))
	s.toldSilence(nil)
	cold := s.told(sojourn.EventWorkspaceColdStart)
	if len(cold) == 0 || !strings.Contains(cold[0]["detail"].(string), "ended before its processes were saved") {
		t.Errorf("cold starts told of: %v", cold)
	}
}

// TestSandboxThatCannotBeEnded is given up with what it holds, and removed when that is
// possible. There are never two sandboxes of a session.
func TestSandboxThatCannotBeEnded(t *testing.T) {
	s := beginBare(t, servertest.Config{UnresponsiveAfter: soon}, engine.Create{})
	x := s.start(beside("echo up; exec sleep 600"))
	s.writes(x, "up")
	held := errors.New("held by the kernel")
	s.Fake.SetFaults(fake.Faults{KillErr: held, DestroyErr: held, DestroyFailures: 1 << 30})
	s.fallsSilent()
	s.do((*engine.Engine).CancelSession)
	x = s.wait(x)
	s.want("what ran", x.State, sojourn.ExecLost)
	s.until("the lease to end", func() bool { return s.bare().Lease.State == sojourn.LeaseLost })
	s.toldSilence(s.told(sojourn.EventWorkspaceLost)[0])
	s.want("sandboxes", s.boxes(), 1)
	s.Fake.SetFaults(fake.Faults{})
	s.until("the sandbox to be removed", func() bool { return s.boxes() == 0 })
}

// TestQuietSandboxIsLeftAlone: one that answers is not ended, however little it says.
func TestQuietSandboxIsLeftAlone(t *testing.T) {
	s := beginBare(t, servertest.Config{UnresponsiveAfter: soon}, engine.Create{})
	began := time.Now()
	s.says("sleep 4.5; echo done", "done\n")
	if time.Since(began) < soon {
		t.Fatalf("it was quiet for %v only", time.Since(began))
	}
	s.want("silences told of", len(s.told(sojourn.EventWorkspaceSilent)), 0)
	s.want("sandboxes made", len(s.Fake.Created()), 1)
}

// TestUnresponsiveSandboxOfAnAgent: its run ends as on every loss of a sandbox, and the
// next goes on from what was sealed.
func TestUnresponsiveSandboxOfAnAgent(t *testing.T) {
	s := begin(t, servertest.Config{UnresponsiveAfter: soon})
	s.completes("@remember harbour Vlissingen", "@write plan sail")
	id := s.submit("@say working", "@sleep 600000")
	s.speaks(id, "working")
	s.Fake.Freeze(s.id)
	r := s.ended(id)
	s.want("run", r.State, "crashed")
	s.want("stopReason", r.StopReason, "workspace_lost")
	s.want("message", r.LastError.Message, "The sandbox did not answer any more and was ended.")
	s.want("silences told of", s.count("wamp.workspace.unresponsive"), 1)
	next := s.completes("@recall harbour", "@cat plan")
	s.want("recalled", s.said(next)[0], "Vlissingen")
	s.oneEnd()
}

// TestUnresponsiveSandboxIsFoundByTheNextServer, which has never heard a word of it.
func TestUnresponsiveSandboxIsFoundByTheNextServer(t *testing.T) {
	s := beginBare(t, servertest.Config{UnresponsiveAfter: soon}, engine.Create{Rotation: sojourn.Rotation{NoIdleCheckpoint: true}})
	s.says("echo kept > f", "")
	x := s.start(beside("echo up; exec sleep 600"))
	s.writes(x, "up")
	s.Stop()
	s.fallsSilent()
	s.Start()
	s.want("what ran", s.wait(x).State, sojourn.ExecLost)
	s.rotated(1)
	s.says("cat f", "kept\n")
	s.toldSilence(s.told(sojourn.EventWorkspaceLost)[0])
}
