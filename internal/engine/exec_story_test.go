package engine_test

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// execStory is one bare session on one server whose sandboxes run the host's
// programs.
type execStory struct {
	testing.TB
	*servertest.Server
	ref engine.Ref
}

// bareProject is the project of the sessions of these tests.
const bareProject = sojourn.ProjectID("prj_test")

// beginExecs starts a server and a bare session with a budget.
func beginExecs(t testing.TB, c servertest.Config, l sojourn.Limits) *execStory {
	t.Helper()
	return beginExecsWith(t, c, engine.Create{Limits: l})
}

// beginExecsWith starts a server and a bare session as in says.
func beginExecsWith(t testing.TB, c servertest.Config, in engine.Create) *execStory {
	t.Helper()
	c.HostPrograms = true
	s := &execStory{TB: t, Server: servertest.Start(t, c)}
	in.Project, in.Contract, in.Runtime = bareProject, "exec", sojourn.RuntimeNone
	made, err := s.engine().CreateSession(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	s.ref = engine.Ref{Project: bareProject, Contract: "exec", ID: made.Facts.Session.ID}
	if _, err := s.engine().StartSession(t.Context(), s.ref, patience); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *execStory) engine() *engine.Engine { return s.Server.Server.Engine }

// patient returns a context that outlasts everything that is not wrong.
func (s *execStory) patient() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	s.Cleanup(cancel)
	return ctx
}

// sh is what runs a script.
func sh(script string) engine.ExecRequest {
	return engine.ExecRequest{Spec: sojourn.ExecSpec{Argv: []string{"/bin/sh", "-c", script}, Timeout: patience, Grace: time.Second}}
}

// start starts an exec that must be accepted.
func (s *execStory) start(in engine.ExecRequest) sojourn.Exec {
	s.Helper()
	_, x, err := s.engine().StartExec(s.patient(), s.ref, in)
	if err != nil {
		s.Fatal(err)
	}
	return x
}

// wait waits for the end of an exec. What waiters are told is what is written.
func (s *execStory) wait(x sojourn.Exec) sojourn.Exec {
	s.Helper()
	_, x, err := s.engine().WaitExec(s.patient(), s.ref, x.ID)
	if err != nil {
		s.Fatal(err)
	}
	written, err := s.engine().ExecByID(s.Context(), s.ref, x.ID)
	if err != nil || !reflect.DeepEqual(x, written) {
		s.Errorf("the exec is told to be %+v; %+v is written, %v", x, written, err)
	}
	return x
}

// run runs an exec to its end.
func (s *execStory) run(in engine.ExecRequest) sojourn.Exec {
	s.Helper()
	return s.wait(s.start(in))
}

// output reads one stream of an exec that has ended.
func (s *execStory) output(x sojourn.Exec, which output.Stream) string {
	s.Helper()
	r, err := s.engine().ExecOutput(s.patient(), s.ref, x.ID)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r.Stream(which))
	if err != nil {
		s.Fatal(err)
	}
	return string(b)
}

// code is the exit code of an exec; -1 for none.
func code(x sojourn.Exec) int {
	if x.Result.Code == nil {
		return -1
	}
	return *x.Result.Code
}

// want fails unless got is want.
func (s *execStory) want(what string, got, want any) {
	s.Helper()
	if got != want {
		s.Errorf("%s is %v, want %v", what, got, want)
	}
}

// state returns the session.
func (s *execStory) state() sojourn.Session {
	s.Helper()
	f, err := s.engine().Session(s.patient(), s.ref)
	if err != nil {
		s.Fatal(err)
	}
	return f.Session
}

// until waits until ok is true.
func (s *execStory) until(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// at returns an exec as it is now.
func (s *execStory) at(x sojourn.Exec) sojourn.Exec {
	s.Helper()
	x, err := s.engine().ExecByID(s.patient(), s.ref, x.ID)
	if err != nil {
		s.Fatal(err)
	}
	return x
}

// writes waits until an exec that runs has written text to its stdout.
func (s *execStory) writes(x sojourn.Exec, text string) {
	s.Helper()
	r, err := s.engine().ExecOutput(s.patient(), s.ref, x.ID)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Close()
	var all []byte
	for !strings.Contains(string(all), text) {
		pieces, end, err := r.Next(s.patient(), int64(len(all)), 0)
		if err != nil || end {
			s.Fatalf("the output ends (%v, %v) after %q, without %q", end, err, all, text)
		}
		for _, p := range pieces {
			all = append(all, p.Data...)
		}
	}
}
