package engine_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCrashAtEveryCommitOfADrain kills the server before and after every single
// commit while a session is suspended, goes on, and is rotated with its
// processes. Whatever dies, files and conversation are carried; processes are,
// or the log says that they were not (G1, G2, G3, G6, G7).
func TestCrashAtEveryCommitOfADrain(t *testing.T) { crashTurns(t, suspendAndRotate) }

func suspendAndRotate(s *story) {
	first := s.insist("k1", "@remember harbour Veere", "@run echo one >> log")
	s.want("first run", s.outlived(first), "completed")
	s.insistOn("/suspend", nil)
	s.until("the sandbox to be given back", func() bool { return s.sandboxes() == 0 })
	second := s.insist("k2", "@recall harbour", "@run echo two >> log")
	s.want("second run", s.outlived(second), "completed")
	s.insistOn("/rotate", map[string]any{"processes": true})
	third := s.insist("k3", "@recall harbour", "@cat log")
	s.want("third run", s.outlived(third), "completed")

	s.want("second said", s.said(second)[0], "Veere")
	s.want("third said", strings.Join(s.said(third), "|"), "Veere|one\ntwo\n")
	s.want("turns", s.count("wamp.turn.submitted"), 3)
	s.want("prompts given", s.count("wamp.run.active"), 3)
	s.want("continuation", s.session().Continuation.State, "live")
	s.want("reason", s.session().Continuation.Reason, "")
	s.until("the place of snapshots to be empty", func() bool {
		left, err := os.ReadDir(filepath.Join(s.Dir, "snapshots"))
		return err == nil && len(left) == 0 || os.IsNotExist(err)
	})
}

// insistOn repeats a command on the session until it is accepted.
func (s *story) insistOn(command string, body any) {
	s.Helper()
	s.until(command+" to be accepted", func() bool {
		return s.Try(http.MethodPost, s.operator(command), "", body, new(facts))
	})
}
