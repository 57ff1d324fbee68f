package harness_test

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

func TestEveryRuntimeRowIsUsable(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range harness.Runtimes() {
		if r.ID == "" || r.Label == "" || seen[r.ID] {
			t.Errorf("row %q (%q) has no id of its own, or no label", r.ID, r.Label)
		}
		seen[r.ID] = true
		if len(r.Command) == 0 && r.ID != "custom" && r.Harness != harness.HarnessLoop {
			t.Errorf("%s has no command", r.ID)
		}
		if r.Exact && len(r.State) == 0 {
			t.Errorf("%s is exact without any state", r.ID)
		}
		for _, how := range r.Resume {
			if how != "resume" && how != "load" {
				t.Errorf("%s resumes by %q", r.ID, how)
			}
		}
		for _, glob := range r.State {
			if _, err := path.Match(glob, ""); err != nil || path.IsAbs(glob) || path.Clean(glob) != glob {
				t.Errorf("%s has the state glob %q", r.ID, glob)
			}
		}
	}
	for _, id := range []string{"script", "loop", "codex", "opencode", "claude-code", "qwen", "gemini", "custom"} {
		if !seen[id] {
			t.Errorf("no row for %s", id)
		}
	}
	if r, _ := harness.RuntimeByID("gemini"); r.Exact {
		t.Error("gemini counts as exact, but damages its history")
	}
}

func TestRuntimesAreCopies(t *testing.T) {
	harness.Runtimes()[0].Command[0] = "changed"
	if got := harness.Runtimes()[0].Command[0]; got == "changed" {
		t.Error("a caller changed the table")
	}
}

func TestHoldsMatchesGlobs(t *testing.T) {
	r := harness.Runtime{State: []string{".codex/sessions/**", ".db*", ".g/*/chats/**", ".g/p.json"}}
	for name, want := range map[string]bool{
		".codex/sessions/2026/11/30/rollout-x.jsonl": true,
		".codex/sessions/x":                          true,
		".codex/sessions":                            false,
		".codex/auth.json":                           false,
		".db-wal":                                    true,
		"sub/.db":                                    false,
		".g/a/chats/s.jsonl":                         true,
		".g/a/b/chats/s.jsonl":                       false,
		".g/p.json":                                  true,
		"":                                           false,
	} {
		if got := r.Holds(name); got != want {
			t.Errorf("Holds(%q) = %v, want %v", name, got, want)
		}
	}
}

// disk is a home whose one file stops changing at a given moment.
type disk struct {
	until time.Time
	looks int
}

func (d *disk) ReadDirectory(_ context.Context, name string) ([]link.DirEntry, error) {
	switch name {
	case sandbox.HomePath + "/.a":
		return []link.DirEntry{{Name: "s", IsDirectory: true}, {Name: "other", IsFile: true}}, nil
	case sandbox.HomePath + "/.a/s":
		return []link.DirEntry{{Name: "x.jsonl", IsFile: true}, {Name: "gone", IsFile: true}}, nil
	}
	return nil, fs.ErrNotExist
}

func (d *disk) GetMetadata(_ context.Context, name string) (link.Metadata, error) {
	if path.Base(name) != "x.jsonl" {
		return link.Metadata{}, fs.ErrNotExist
	}
	d.looks++
	m := link.Metadata{IsFile: true, Size: 7}
	if now := time.Now(); now.Before(d.until) {
		m.Size = now.UnixMilli()
	}
	return m, nil
}

func TestSettleWaitsForRest(t *testing.T) {
	for busy, want := range map[time.Duration]time.Duration{
		0:                      250 * time.Millisecond,
		600 * time.Millisecond: 875 * time.Millisecond, // the look after 600 ms is at 625
		time.Hour:              3 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			d := &disk{until: begun.Add(busy)}
			err := harness.Settle(t.Context(), d, harness.Runtime{State: []string{".a/**", ".missing/*"}})
			if got := time.Since(begun); err != nil || got != want {
				t.Errorf("busy for %v: settled after %v (%v), want %v", busy, got, err, want)
			}
		})
	}
}

func TestSettleTrustsSyncedRuntimes(t *testing.T) {
	d := &disk{}
	if err := harness.Settle(t.Context(), d, harness.Runtime{State: []string{".a/**"}, Synced: true}); err != nil || d.looks > 0 {
		t.Errorf("looked %d times (%v), want 0", d.looks, err)
	}
}

func TestSettleEndsWithItsContext(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := harness.Settle(ctx, &disk{}, harness.Runtime{State: []string{".a/**"}}); !errors.Is(err, why) {
		t.Errorf("error %v, want %v", err, why)
	}
}

func TestRuntimeOrderStartsWithScript(t *testing.T) {
	ids := make([]string, 0, 8)
	for _, r := range harness.Runtimes() {
		ids = append(ids, r.ID)
	}
	if slices.Index(ids, "script") != 0 {
		t.Errorf("runtimes are %v; the first is the default and needs no model", ids)
	}
}

// named is a harness that says who it is.
type named string

func (n named) Drive(context.Context, harness.Job, harness.Port) (harness.Outcome, error) {
	return harness.Outcome{State: sojourn.RunCompleted, Agent: string(n)}, nil
}

func TestMuxDrivesWithTheHarnessOfTheRow(t *testing.T) {
	mux := harness.Mux{harness.HarnessACP: named("a"), harness.HarnessLoop: named("l")}
	for row, want := range map[string]string{"": "a", harness.HarnessACP: "a", harness.HarnessLoop: "l"} {
		out, err := mux.Drive(t.Context(), harness.Job{Runtime: harness.Runtime{Harness: row}}, nil)
		if err != nil || out.Agent != want {
			t.Errorf("harness %q: driven by %q, %v, want %q", row, out.Agent, err, want)
		}
	}
	out, err := mux.Drive(t.Context(), harness.Job{Runtime: harness.Runtime{ID: "x", Harness: "other"}}, nil)
	if err != nil || out.State != sojourn.RunFailed || out.Error == nil || out.Error.Code != string(sojourn.CodeRuntimeUnavailable) {
		t.Errorf("an unknown harness: %+v, %v, want failed with %s", out, err, sojourn.CodeRuntimeUnavailable)
	}
}
