package engine_test

import (
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// captured waits until what was done in the sandbox is in a checkpoint, and returns it.
func (s *execStory) captured() sojourn.CheckpointID {
	s.Helper()
	s.until("a checkpoint", func() bool { f := s.bare(); return f.Head != nil && !f.Unsaved() })
	return s.bare().Head.ID
}

// lose ends the sandbox of an epoch and takes its files with it.
func (s *execStory) lose(epoch int64) {
	s.Helper()
	h := sandbox.Handle{Driver: fake.Name, Session: string(s.ref.ID), Epoch: epoch}
	if err := s.Fake.Remove(s.Context(), h); err != nil {
		s.Fatal(err)
	}
}

// TestQuietSandboxIsCaptured: what an exec has left is in a checkpoint soon after, so
// that a loss costs nothing; one that has changed nothing makes none.
func TestQuietSandboxIsCaptured(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{})
	s.says("echo kept > f", "")
	head := s.captured()
	s.says("cat f", "kept\n")
	s.want("head after a look", s.captured(), head)
	s.lose(1)
	s.rotated(1)
	s.says("cat f", "kept\n")
	if lost := s.told(sojourn.EventRotationCompleted)[0]["lost"]; lost != nil {
		t.Errorf("a loss is told: %v", lost)
	}
}

// TestBusySandboxIsCapturedAtEachInterval, while its processes go on.
func TestBusySandboxIsCapturedAtEachInterval(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Rotation: sojourn.Rotation{Checkpoint: time.Second, NoIdleCheckpoint: true}})
	x := s.start(sh("echo one > f; until [ -e go ]; do sleep 0.01; done; rm go; echo done"))
	s.until("a checkpoint", func() bool { return s.bare().Head != nil })
	s.want("exec", s.at(x).State, sojourn.ExecRunning)
	s.release(1)
	x = s.wait(x)
	s.want("output", s.output(x, output.Stdout), "done\n")
	s.lose(1)
	s.rotated(1)
	s.says("cat f", "one\n")
}

// TestOldCheckpointsAreForgotten: the newest few are kept.
func TestOldCheckpointsAreForgotten(t *testing.T) {
	var db store.Store
	s := beginBare(t, servertest.Config{WrapStore: func(inner store.Store) store.Store { db = inner; return inner }}, engine.Create{})
	heads := map[sojourn.CheckpointID]bool{}
	for range 5 {
		s.says("date +%N >> f", "")
		heads[s.captured()] = true
	}
	s.want("heads", len(heads), 5)
	var left []sojourn.Checkpoint
	err := db.View(s.Context(), func(tx *store.Tx) (err error) {
		left, err = tx.Checkpoints(s.ref.ID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.want("checkpoints", len(left), 3)
	s.lose(1)
	s.rotated(1)
	s.says("wc -l < f | tr -d ' '", "5\n")
}

// TestTooMuchToCaptureIsSaidOnce: not after every exec again.
func TestTooMuchToCaptureIsSaidOnce(t *testing.T) {
	s := beginBare(t, servertest.Config{WorkspaceMaxBytes: 64 << 10}, engine.Create{})
	s.says("head -c 131072 /dev/urandom > big", "")
	s.until("a failure to be told", func() bool { return len(s.told(sojourn.EventCheckpointFailed)) == 1 })
	s.says("echo more > f", "")
	time.Sleep(600 * time.Millisecond) // twice as long as a sandbox must be quiet
	s.want("failures told", len(s.told(sojourn.EventCheckpointFailed)), 1)
}

// BenchmarkExecsBesideCaptures runs small execs one after the other in a sandbox that
// is captured in every pause, and in one that is not.
func BenchmarkExecsBesideCaptures(b *testing.B) {
	took := map[bool]time.Duration{}
	for _, without := range []bool{true, false} {
		s := serveBare(b, servertest.Config{})
		s.ref = s.createBare(engine.Create{Rotation: sojourn.Rotation{NoIdleCheckpoint: without}})
		if _, err := s.engine().StartSession(s.patient(), s.ref, patience); err != nil {
			b.Fatal(err)
		}
		s.run(sh("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i > f$i; done"))
		in := engine.ExecRequest{Spec: sojourn.ExecSpec{Argv: []string{"/bin/true"}, Timeout: patience}}
		begun := time.Now()
		for range b.N {
			s.run(in)
		}
		took[without] = time.Since(begun) / time.Duration(b.N)
	}
	b.ReportMetric(float64(took[false])/float64(took[true]), "x/without-captures")
}
