package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// beginBare starts a server and a bare session on it.
func beginBare(t *testing.T, c servertest.Config, in engine.Create) *execStory {
	t.Helper()
	t.Parallel()
	s := serveBare(t, c)
	s.ref = s.createBare(in)
	if _, err := s.engine().StartSession(s.patient(), s.ref, patience); err != nil {
		t.Fatal(err)
	}
	return s
}

// serveBare starts a server without a session.
func serveBare(t testing.TB, c servertest.Config) *execStory {
	t.Helper()
	c.HostPrograms = true
	return &execStory{TB: t, Server: servertest.Start(t, c)}
}

func (s *execStory) createBare(in engine.Create) engine.Ref {
	s.Helper()
	in.Project, in.Contract, in.Runtime = bareProject, sojourn.ContractExec, sojourn.RuntimeNone
	made, err := s.engine().CreateSession(s.patient(), in)
	if err != nil {
		s.Fatal(err)
	}
	return engine.Ref{Project: bareProject, Contract: sojourn.ContractExec, ID: made.Facts.Session.ID}
}

func (s *execStory) bare() sojourn.Facts {
	s.Helper()
	f, err := s.engine().Session(s.patient(), s.ref)
	if err != nil {
		s.Fatal(err)
	}
	return f
}

// do gives a command that must be obeyed.
func (s *execStory) do(command func(*engine.Engine, context.Context, engine.Ref) (sojourn.Facts, error)) {
	s.Helper()
	if _, err := command(s.engine(), s.patient(), s.ref); err != nil {
		s.Fatal(err)
	}
}

// says runs a script and wants it to print that.
func (s *execStory) says(script, want string) {
	s.Helper()
	x := s.run(sh(script))
	if got := s.output(x, output.Stdout); got != want || code(x) != 0 {
		s.Errorf("%s: exec %s (%s) has code %d and says %q, want %q", script, x.State, x.Reason, code(x), got, want)
	}
}

// rotated waits for the session's n-th rotation.
func (s *execStory) rotated(n int64) {
	s.Helper()
	s.until("a rotation", func() bool { return s.bare().Session.Rotation.Count >= n })
	s.want("rotations", s.bare().Session.Rotation.Count, n)
}

// told returns the payloads of the session's events of a type.
func (s *execStory) told(kind sojourn.EventType) (all []map[string]any) {
	s.Helper()
	events, _, err := s.engine().EventsOf(s.patient(), s.ref, 0, 1000, []sojourn.EventType{kind})
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range events {
		var data map[string]any
		if err := json.Unmarshal(e.Data, &data); err != nil {
			s.Fatal(err)
		}
		all = append(all, data)
	}
	return all
}

// inSandbox is the host's path of a file of the session's sandbox.
func (s *execStory) inSandbox(epoch int64, name string) string {
	return filepath.Join(s.Dir, "sandboxes", string(s.ref.ID)+"-"+itoa(epoch), "workspace", name)
}

// boxes counts the sandboxes that the driver has.
func (s *execStory) boxes() int {
	s.Helper()
	list, err := s.Fake.List(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return len(list)
}

// beside is an exec that nobody waits for.
func beside(script string) engine.ExecRequest {
	in := sh(script)
	in.Spec.Detached, in.Spec.Timeout = true, 0
	return in
}

// held starts an exec that runs until s.release, and waits until it does.
func (s *execStory) held(epoch int64) sojourn.Exec {
	s.Helper()
	x := s.start(sh("touch begun; until [ -e go ]; do sleep 0.01; done; rm begun go; echo done"))
	s.until("the exec to begin", func() bool { _, err := os.Stat(s.inSandbox(epoch, "begun")); return err == nil })
	return x
}

func (s *execStory) release(epoch int64) {
	s.Helper()
	if err := os.WriteFile(s.inSandbox(epoch, "go"), nil, 0o600); err != nil {
		s.Fatal(err)
	}
}

func TestPausedSessionGivesItsSandboxBack(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Limits: sojourn.Limits{Duration: time.Hour}})
	s.says("echo kept > f", "")
	x := s.held(1)
	s.do((*engine.Engine).PauseSession)
	_, _, err := s.engine().StartExec(s.patient(), s.ref, sh("true"))
	s.want("code of an exec in a pause", sojourn.CodeOf(err), sojourn.CodeInvalidState)
	s.want("state of what runs", s.at(x).State, sojourn.ExecRunning)
	s.release(1)
	x = s.wait(x)
	s.want("exec", x.State, sojourn.ExecEnded)
	s.want("reason", x.Reason, sojourn.ExecReason(""))
	s.until("the sandbox to be given back", func() bool { return s.boxes() == 0 })
	s.want("lease", s.bare().Lease.State, sojourn.LeaseReleased)

	used := s.bare().Session.BudgetAt(time.Now()).Usage.Duration
	s.want("used later", s.bare().Session.BudgetAt(time.Now().Add(time.Hour)).Usage.Duration, used)
	_, err = s.engine().PauseSession(s.patient(), s.ref)
	s.want("code of a second pause", sojourn.CodeOf(err), sojourn.CodeInvalidState)

	facts, err := s.engine().ResumeSession(s.patient(), s.ref, patience)
	if err != nil {
		t.Fatal(err)
	}
	s.want("lease", facts.Lease.State, sojourn.LeaseHeld)
	s.want("rotations", facts.Session.Rotation.Count, int64(0))
	s.says("cat f", "kept\n")
}

func TestPauseEndsWhatRunsInTheBackground(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{})
	x := s.start(beside("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"))
	s.writes(x, "up")
	s.do((*engine.Engine).PauseSession)
	x = s.wait(x)
	s.want("reason", x.Reason, sojourn.ExecPaused)
	s.want("code", code(x), 3)
	s.want("output", s.output(x, output.Stdout), "up\nbye\n")
	s.until("the sandbox to be given back", func() bool { return s.boxes() == 0 })
}

// TestEndsOfSessions: stop leaves what runs its grace, cancel does not; both are final,
// can be repeated, and leave the files in a checkpoint.
func TestEndsOfSessions(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(*engine.Engine, context.Context, engine.Ref) (sojourn.Facts, error)
		how  sojourn.CloseReason
		text string
		code int // of what ran
	}{
		"stop": {func(e *engine.Engine, ctx context.Context, ref engine.Ref) (sojourn.Facts, error) {
			return e.StopSession(ctx, ref, "enough")
		}, sojourn.CloseCompleted, "enough", 3},
		"cancel": {(*engine.Engine).CancelSession, sojourn.CloseCancelled, "", -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := beginBare(t, servertest.Config{}, engine.Create{})
			s.says("echo kept > f", "")
			x := s.start(sh("trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done"))
			s.writes(x, "up")
			waits := s.start(sh("echo never"))
			s.do(end.by)
			x = s.wait(x)
			s.want("reason", x.Reason, sojourn.ExecClosed)
			s.want("code", code(x), end.code)
			waits = s.wait(waits)
			s.want("what waited", waits.State, sojourn.ExecRefused)
			s.want("its reason", waits.Reason, sojourn.ExecClosed)
			s.until("the sandbox to be gone", func() bool { return s.boxes() == 0 })
			s.do(end.by)
			f := s.bare()
			s.want("how", f.Session.CloseReason, end.how)
			s.want("text", f.Session.Ending.Text, end.text)
			if f.Head == nil || f.Unsaved() {
				t.Errorf("the files are not in a checkpoint: %+v", f.Head)
			}
		})
	}
}

func TestSessionThatGetsNoSandboxFails(t *testing.T) {
	t.Parallel()
	s := serveBare(t, servertest.Config{})
	s.Fake.SetFaults(fake.Faults{CreateErr: errors.New("no room")})
	s.ref = s.createBare(engine.Create{})
	_, err := s.engine().StartSession(s.patient(), s.ref, patience)
	s.want("code", sojourn.CodeOf(err), sojourn.CodeWorkspaceUnavailable)
	f := s.bare()
	s.want("how", f.Session.CloseReason, sojourn.CloseFailed)
	s.want("why", f.Session.Ending.Reason, sojourn.StopNoSandbox)
	s.want("leases", f.Session.LastEpoch, int64(3))
	s.want("sandboxes", s.boxes(), 0)
}

func TestDurationLimitFiresWithNothingRunning(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Limits: sojourn.Limits{Duration: 500 * time.Millisecond}})
	s.until("the session to end", func() bool { return s.bare().Session.State == sojourn.SessionClosed })
	end := s.bare().Session
	s.want("how", end.CloseReason, sojourn.CloseCompleted)
	s.want("why", end.Ending.Reason, sojourn.StopBudget)
	s.want("limit", end.Ending.Limit, sojourn.LimitDuration)
	s.want("warnings", len(s.told(sojourn.EventBudgetWarning)), 2)
	s.until("the sandbox to be gone", func() bool { return s.boxes() == 0 })
}

func TestReattachFindsTheLiveSessionOfItsClient(t *testing.T) {
	s := beginBare(t, servertest.Config{}, engine.Create{Presence: sojourn.Presence{Client: "ci"}})
	first := s.ref
	in := engine.Create{Project: bareProject, Contract: sojourn.ContractExec, Runtime: sojourn.RuntimeNone, Presence: sojourn.Presence{Client: "ci"}}
	_, err := s.engine().CreateSession(s.patient(), in)
	s.want("code of a second live session", sojourn.CodeOf(err), sojourn.CodeClientInUse)
	s.do((*engine.Engine).CancelSession)
	_, err = s.engine().Reattach(s.patient(), engine.Ref{Project: bareProject, Contract: sojourn.ContractExec}, "ci")
	s.want("code without a live session", sojourn.CodeOf(err), sojourn.CodeNotFound)
	s.ref = s.createBare(in)
	found, err := s.engine().Reattach(s.patient(), engine.Ref{Project: bareProject, Contract: sojourn.ContractExec}, "ci")
	if err != nil {
		t.Fatal(err)
	}
	s.want("session", found.Session.ID, s.ref.ID)
	_, err = s.engine().Reattach(s.patient(), engine.Ref{Project: "prj_other", Contract: sojourn.ContractExec}, "ci")
	s.want("code of another project", sojourn.CodeOf(err), sojourn.CodeNotFound)
	if first == s.ref {
		t.Fatal("there is one session")
	}
}

func TestDeletedSessionLeavesNothing(t *testing.T) {
	var db store.Store
	s := beginBare(t, servertest.Config{WrapStore: func(inner store.Store) store.Store { db = inner; return inner }},
		engine.Create{Presence: sojourn.Presence{Client: "ci"}, Carryover: sojourn.CarryoverPatch{Dir: new("sub")}})
	s.run(engine.ExecRequest{Spec: sojourn.ExecSpec{Argv: []string{"/bin/sh", "-c", "head -c 3000000 /dev/zero; echo x > f"}, Dir: ".", Timeout: patience}})
	err := s.engine().DeleteSession(s.patient(), s.ref)
	s.want("code while it runs", sojourn.CodeOf(err), sojourn.CodeInvalidState)
	s.do((*engine.Engine).CancelSession)
	if err := s.engine().DeleteSession(s.patient(), s.ref); err != nil {
		t.Fatal(err)
	}
	_, err = s.engine().Session(s.patient(), s.ref)
	s.want("code", sojourn.CodeOf(err), sojourn.CodeNotFound)
	s.until("every row to go", func() bool {
		left := 0
		err := db.View(s.Context(), func(tx *store.Tx) error {
			execs, err := tx.Execs(s.ref.ID, 0, 0)
			if err != nil {
				return err
			}
			events, err := tx.Events(s.ref.ID, 0, 0)
			if err != nil {
				return err
			}
			checkpoints, err := tx.Checkpoints(s.ref.ID)
			if err != nil {
				return err
			}
			carried, err := tx.Carryover(s.ref.ID)
			left = len(execs) + len(events) + len(checkpoints) + len(carried.Dir)
			return err
		})
		return err == nil && left == 0
	})
	s.until("the sandbox to go", func() bool { return s.boxes() == 0 })
	s.until("the kept output to go", func() bool {
		_, err := os.Stat(filepath.Join(s.Dir, "outputs", string(s.ref.ID)))
		return errors.Is(err, os.ErrNotExist)
	})
	s.createBare(engine.Create{Presence: sojourn.Presence{Client: "ci"}})
}
