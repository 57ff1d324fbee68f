package engine_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/servertest"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
)

// operator is the path of a session in the operator contract.
func (s *story) operator(more string) string { return "/operator/v1/sessions/" + s.id + more }

// facts is what the operator contract shows of the session.
type facts struct {
	Session struct {
		Lease *struct {
			Epoch                       int64
			State, EndReason, Isolation string
		}
		Checkpoint *struct {
			ID, RunID    string
			ProcessBytes int64
		}
		Continuation struct{ State, Reason string }
	}
}

func (s *story) facts() (f facts) {
	s.Helper()
	s.Must(http.MethodGet, s.operator(""), nil, &f)
	return f
}

// data returns the payload of the only event of a type.
func (s *story) data(kind string) map[string]any {
	s.Helper()
	var found []event
	for _, e := range s.events() {
		if e.Type == kind {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		s.Fatalf("there are %d events %s, want one", len(found), kind)
	}
	out := map[string]any{}
	if err := json.Unmarshal(found[0].Data, &out); err != nil {
		s.Fatal(err)
	}
	return out
}

func TestSuspendedSessionGoesOnWithItsProcesses(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@remember harbour Veere", "@write log one")
	s.Must(http.MethodPost, s.operator("/suspend"), nil, nil)
	s.want("sandboxes", s.sandboxes(), 0)
	f := s.facts()
	s.want("lease", f.Session.Lease.State, "released")
	s.want("end reason", f.Session.Lease.EndReason, "suspended")
	s.want("continuation", f.Session.Continuation.State, "restorable")
	s.want("reason", f.Session.Continuation.Reason, "")
	if f.Session.Checkpoint.ProcessBytes == 0 {
		t.Error("no processes were saved")
	}

	said := s.said(s.completes("@recall harbour", "@cat log", "@say on"))
	s.want("recalled", said[0], "Veere")
	s.want("resumed", s.count("wamp.workspace.resumed"), 1)
	s.want("cold starts", s.count("wamp.workspace.cold_start"), 0)
	specs := s.Fake.Created()
	s.want("sandboxes made", len(specs), 2)
	if specs[1].Resume == nil {
		t.Error("the second sandbox was not resumed")
	}
	// The agent never noticed: it was neither started again nor asked to load.
	s.want("agents started", s.starts(), 1)
	s.oneEnd()
}

// starts counts the agents that were ever started.
func (s *story) starts() int { return s.Fake.Started() }

func TestIdleSnapshotFreesTheSandboxAndTheNextUseResumes(t *testing.T) {
	s := begin(t, servertest.Config{
		Terms:   sojourn.Terms{Hold: shortHold},
		Sandbox: sojourn.SandboxSpec{Idle: sojourn.IdleSnapshot},
	})
	s.completes("@remember a b")
	s.until("the sandbox to be given back", func() bool { return s.sandboxes() == 0 })
	s.want("workspace", s.session().Workspace.State, "expired")
	s.want("continuation", s.session().Continuation.State, "restorable")
	s.want("end reason", s.facts().Session.Lease.EndReason, "idle_hold")
	s.want("recalled", s.said(s.completes("@recall a"))[0], "b")
	s.want("resumed", s.count("wamp.workspace.resumed"), 1)
}

// TestRotationCarriesProcessesWhenAsked: with processes the agent goes on, without
// it is started anew; files and conversation are carried either way.
func TestRotationCarriesProcessesWhenAsked(t *testing.T) {
	for _, processes := range []bool{false, true} {
		t.Run(map[bool]string{false: "without", true: "with"}[processes], func(t *testing.T) {
			s := begin(t, servertest.Config{})
			s.completes("@remember a b", "@write f one")
			s.Must(http.MethodPost, s.operator("/rotate"), map[string]any{"processes": processes}, nil)
			s.want("workspace", s.session().Workspace.State, "attached")
			s.want("epoch", s.facts().Session.Lease.Epoch, int64(2))
			s.want("sandboxes", s.sandboxes(), 1)
			said := s.said(s.completes("@recall a", "@cat f"))
			s.want("recalled", said[0], "b")
			want := 2
			if processes {
				want = 1
			}
			s.want("agents started", s.starts(), want)
		})
	}
}

func TestProcessesThatCannotGoOnAreSaidToBeLost(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@remember a b", "@write f one")
	s.Must(http.MethodPost, s.operator("/suspend"), nil, nil)
	s.Fake.SetFaults(fake.Faults{ResumeErr: errors.New("another processor")})
	said := s.said(s.completes("@recall a", "@cat f"))
	s.want("recalled", said[0], "b")
	s.want("cold starts", s.count("wamp.workspace.cold_start"), 1)
	s.want("resumed", s.count("wamp.workspace.resumed"), 0)
	s.want("sandboxes", s.sandboxes(), 1)
}

func TestSnapshotThatFailsLosesNoFiles(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@remember a b", "@write f one")
	s.Fake.SetFaults(fake.Faults{SnapshotErr: errors.New("no room")})
	s.Must(http.MethodPost, s.operator("/suspend"), nil, nil)
	s.Fake.SetFaults(fake.Faults{})
	s.want("cold starts", s.count("wamp.workspace.cold_start"), 1)
	s.want("continuation", s.session().Continuation.State, "restorable")
	s.want("recalled", s.said(s.completes("@recall a", "@cat f"))[0], "b")
}

// TestDrainThatWouldLoseFilesIsCalledOff: what was asked for and cannot be done is
// refused with what is in the way, and the sandbox is as it was.
func TestDrainThatWouldLoseFilesIsCalledOff(t *testing.T) {
	for command, body := range map[string]any{"/suspend": nil, "/rotate": map[string]any{"processes": true}} {
		t.Run(command[1:], func(t *testing.T) {
			s := begin(t, servertest.Config{WorkspaceMaxBytes: 64 << 10})
			s.completes("@remember a b", "@write f one")
			s.copyIn("big", strings.Repeat("x", 128<<10))
			status, code := s.Call(http.MethodPost, s.operator(command), body, nil)
			s.want("status", status, http.StatusRequestEntityTooLarge)
			s.want("code", code, "too_large")
			s.want("lease", s.facts().Session.Lease.State, "held")
			s.want("epoch", s.facts().Session.Lease.Epoch, int64(1))
			s.want("continuation", s.session().Continuation.State, "live")
			s.want("detail", s.data("wamp.checkpoint.failed")["workspaceReason"], "too_large")
			s.want("recalled", s.said(s.completes("@recall a", "@run rm big"))[0], "b")
			s.want("agents started", s.starts(), 1)

			s.Must(http.MethodPost, s.operator(command), body, nil)
			s.want("recalled", s.said(s.completes("@recall a", "@cat f"))[0], "b")
			s.want("epoch", s.facts().Session.Lease.Epoch, int64(2))
		})
	}
}

func TestSuspendIsRefusedWhileAnAgentWorks(t *testing.T) {
	s := begin(t, servertest.Config{})
	id := s.submit("@say working", "@sleep 60000")
	s.speaks(id, "working")
	status, code := s.Call(http.MethodPost, s.operator("/suspend"), nil, nil)
	s.want("status", status, http.StatusConflict)
	s.want("code", code, "run_active")
}

func TestSuspendedSessionSurvivesARestart(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@remember a b", "@write f one")
	s.Must(http.MethodPost, s.operator("/suspend"), nil, nil)
	s.Restart()
	s.want("recalled", s.said(s.completes("@recall a", "@cat f"))[0], "b")
	left, err := filepath.Glob(filepath.Join(s.Dir, "snapshots", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the place of snapshots: %v, %v", left, err)
	}
}

func TestSavedProcessesAreForgottenWithTheirHead(t *testing.T) {
	s := begin(t, servertest.Config{})
	s.completes("@remember a b")
	s.Must(http.MethodPost, s.operator("/suspend"), nil, nil)
	s.want("objects", s.objects("processes"), 1)
	s.completes("@recall a")
	s.until("the saved processes to go", func() bool { return s.objects("processes") == 0 })
}

// objects counts what the blob store has below a prefix.
func (s *story) objects(prefix string) int {
	s.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Dir, "blobs", prefix))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Fatal(err)
	}
	return len(entries)
}

func TestWhatTheInstallationCannotDoIsRefused(t *testing.T) {
	s := begin(t, servertest.Config{})
	for name, sandbox := range map[string]map[string]any{
		"an image that is not allowed": {"image": "evil.test/x"},
		"a wall that is not here":      {"isolation": "gvisor"},
		"a network that is not here":   {"network": map[string]any{"mode": "open"}},
		"a limit that is too low":      {"limits": map[string]any{"memoryBytes": 1}},
		"a mode that is none":          {"network": map[string]any{"mode": "some"}},
	} {
		status, code := s.Call(http.MethodPost, "/operator/v1/sessions", map[string]any{"sandbox": sandbox}, nil)
		if status/100 != 4 || code == "" {
			t.Errorf("%s: status %d, code %q", name, status, code)
		}
	}
	var made struct{ Session struct{ ID string } }
	s.Must(http.MethodPost, "/operator/v1/sessions", map[string]any{"sandbox": map[string]any{
		"image":  servertest.AllowedImage,
		"limits": map[string]any{"memoryBytes": 256 << 20, "milliCPUs": 500, "processes": 64, "diskBytes": 1 << 30, "openFiles": 256},
	}}, &made)
	s.id = made.Session.ID
	s.completes("@say hi")
	spec := s.Fake.Created()[0]
	s.want("image", spec.Image, servertest.AllowedImage)
	s.want("memory", spec.Limits.MemoryBytes, int64(256<<20))
	s.want("disk", spec.Limits.DiskBytes, int64(1<<30))
	s.want("processes", spec.Limits.Processes, 64)
	s.want("cpus", spec.Limits.MilliCPUs, 500)
	s.want("open files", spec.Limits.OpenFiles, 256)
}
