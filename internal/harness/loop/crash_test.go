package loop_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/loop"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// effects has a bit of everything that has effects; each leaves a mark, so that
// it shows how often it was done. RUN is the run's name.
const effects = `@say Begin.
call shell {"command":"echo a >> RUN.marks; sleep 0.02; echo did a"}
call shell {"command":"echo b >> RUN.marks; echo did b"}
--
call write {"path":"RUN.txt","content":"one\n"}
call edit {"path":"RUN.txt","old_text":"one\n","new_text":"one\none\n"}
--
call shell {"command":"echo c >> RUN.marks; echo did c"}
--
say End.`

func TestCrashAtEveryCommitRepeatsNoCall(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Anthropic)
	prompt := func(run sojourn.RunID) string { return strings.ReplaceAll(effects, "RUN", string(run)) }
	b.Completed(t, "calm", prompt("calm"))
	commits := b.Ledger.Run("calm").Commits
	if testing.Short() {
		commits = 6
	}
	for n := 1; n <= commits; n++ {
		for _, when := range []string{"before", "after"} {
			run := sojourn.RunID(fmt.Sprintf("%s-%d", when, n))
			b.Port.DieBefore, b.Port.DieAfter = 0, 0
			if when == "before" {
				b.Port.DieBefore = n
			} else {
				b.Port.DieAfter = n
			}
			_, _ = b.Drive(t, run, prompt(run)) // another drive follows, whether it got as far as its death or not
			b.Port = harnesstest.Port{}
			b.Completed(t, run, prompt(run))
			checkEffects(t, b, m, run)
		}
	}
}

// checkEffects checks that no call of a run was done twice, and that the model
// was told the truth of each.
func checkEffects(t *testing.T, b *harnesstest.Bench, m *mock, run sojourn.RunID) {
	t.Helper()
	got := results(m.last())
	got = got[max(0, len(got)-5):]
	marks := file(t, b, string(run)+".marks")
	for mark, r := range map[string]string{"a": got[0], "b": got[1], "c": got[4]} {
		n := strings.Count(marks, mark+"\n")
		switch {
		case strings.Contains(r, "did "+mark) && n == 1:
		case strings.Contains(r, "unknown") && n <= 1:
		default:
			t.Errorf("run %s: call %s was done %d times, the model was told %q", run, mark, n, r)
		}
	}
	// A change of a file shows whether it took place: it is made, and once.
	if text := file(t, b, string(run)+".txt"); text != "one\none\n" || !strings.HasPrefix(got[2], "Wrote") || !strings.HasPrefix(got[3], "Wrote") {
		t.Errorf("run %s: the file is %q, the model was told %q", run, text, got[2:4])
	}
	if texts := b.Ledger.Texts(run); texts[len(texts)-1] != "End." {
		t.Errorf("run %s said %q", run, texts)
	}
	for i, body := range m.requests() {
		if bytes.Count(body, []byte("call_")) > 0 && !bytes.Contains(body, []byte("messages")) {
			t.Errorf("request %d: %s", i, body)
		}
	}
}

func TestCommandOutlivesTheServer(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	prompt := `@call shell {"command":"echo x >> marks; until [ -e go ]; do sleep 0.01; done; echo went on"}` + "\n--\nsay end"
	// The server dies when the command is known to run.
	ctx, die := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		peer := b.Sandbox.Peer(t)
		_, err := b.Harness.Drive(ctx, harness.Job{Session: "ses", Run: "r1", Epoch: 1, Runtime: b.Runtime, Input: []sojourn.Part{{Type: "text", Text: prompt}}},
			&harnesstest.Port{Ledger: b.Ledger, Run: "r1", Peer: peer, Die: die})
		failed <- err
	}()
	for file(t, b, "marks") != "x\n" {
		if t.Context().Err() != nil {
			t.Fatal("the command never began")
		}
	}
	die()
	if err := <-failed; err == nil {
		t.Fatal("the drive survived its server")
	}
	if err := os.WriteFile(filepath.Join(b.Sandbox.Workspace(), "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.Completed(t, "r1", prompt)
	if got, marks := results(m.last()), file(t, b, "marks"); len(got) != 1 || got[0] != "went on" || marks != "x\n" {
		t.Errorf("the model was told %q of a command that ran %d times", got, len(marks)/2)
	}
}

func TestReplyIsAskedForAgainAfterACrash(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	b.Port.DieAtActivate = true
	if _, err := b.Drive(t, "r1", "@say hello"); err == nil {
		t.Fatal("the drive went on without its activation")
	}
	b.Port = harnesstest.Port{}
	b.Completed(t, "r1", "@say hello")
	if got := b.Ledger.Texts("r1"); !slices.Equal(got, []string{"hello"}) {
		t.Errorf("said %q", got)
	}
	if n := bytes.Count(m.last(), []byte("@say hello")); n != 1 {
		t.Errorf("the prompt is in the conversation %d times", n)
	}
}

// move copies the conversation's files to a fresh sandbox, and the workspace, as
// a checkpoint does, and goes on there.
func move(t *testing.T, b *harnesstest.Bench) {
	t.Helper()
	next := harnesstest.NewSandbox(t, nil)
	copied := 0
	for from, to := range map[string]string{b.Sandbox.Home(): next.Home(), b.Sandbox.Workspace(): next.Workspace()} {
		err := fs.WalkDir(os.DirFS(from), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || from == b.Sandbox.Home() && !b.Runtime.Holds(name) {
				return err
			}
			data, err := os.ReadFile(filepath.Join(from, name))
			if err != nil {
				return err
			}
			copied++
			if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(to, name), data, 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if copied == 0 {
		t.Fatal("there was nothing to restore")
	}
	b.Sandbox, b.Epoch = next, b.Epoch+1
	b.Ledger.NewSandbox()
}

func TestRestoredConversationIsTheSameToTheByte(t *testing.T) {
	t.Parallel()
	eachAPI(t, func(t *testing.T, api model.API) {
		third := func(lose bool) []byte {
			m := newMock(t)
			b := newBench(t, m, api)
			b.Completed(t, "r1", busy)
			if lose {
				move(t, b)
			}
			b.Completed(t, "r2", "@think again\ncall shell {\"command\":\"cat a/f.txt\"}\n--\nsay Two.")
			if lose {
				move(t, b)
			}
			b.Completed(t, "r3", "@say Three.")
			return m.last()
		}
		calm, restored := third(false), third(true)
		if !bytes.Equal(calm, restored) {
			t.Errorf("the third request differs:\n   calm %s\nrestored %s", calm, restored)
		}
		if !bytes.Contains(restored, []byte("let me see")) || !bytes.Contains(restored, []byte("Two.")) {
			t.Errorf("the third request lacks the turns before: %s", restored)
		}
	})
}

// segments are the files of the only conversation.
func segments(t *testing.T, b *harnesstest.Bench) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(b.Sandbox.Home(), ".sojourn-loop", "*", "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestChangedConversationIsNotTaken(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, file string){
		"changed": func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, bytes.Replace(data, []byte("harmless"), []byte("nefarious"), 1), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"torn": func(t *testing.T, file string) {
			if err := os.Truncate(file, 40); err != nil {
				t.Fatal(err)
			}
		},
		"gone": func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
		"no file": func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, restored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restored %v", name, restored), func(t *testing.T) {
				t.Parallel()
				m := newMock(t)
				b := newBench(t, m, model.Chat)
				b.Completed(t, "r1", "@say harmless")
				if restored {
					move(t, b)
				}
				all := segments(t, b)
				damage(t, all[len(all)-1])
				out := b.Turn(t, "r2", "@say more")
				if out.State != sojourn.RunFailed || out.Error.Code != loop.CodeNotRestorable || !out.ConversationLost {
					t.Errorf("outcome %s, want failed with %s", harnesstest.Describe(out), loop.CodeNotRestorable)
				}
				if n := b.Ledger.Run("r2").Activations; n != 0 || len(m.requests()) != 1 {
					t.Errorf("activated %d times, %d requests", n, len(m.requests()))
				}
			})
		}
	}
}

func TestNothingSecretIsStored(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	b.Completed(t, "r1", busy)
	secret := []byte("very-secret")
	if bytes.Contains(b.Ledger.State(), secret) || m.holds("very-secret") {
		t.Error("the key is in the state or in a request's body")
	}
	for _, e := range b.Ledger.Run("r1").Events {
		if bytes.Contains(e.Data, secret) {
			t.Errorf("the key is in the event %s", e.Data)
		}
	}
	for _, name := range segments(t, b) {
		if data, err := os.ReadFile(name); err != nil || bytes.Contains(data, secret) {
			t.Errorf("the key is in %s (%v)", name, err)
		}
	}
}

func TestLostSandboxIsAnErrorOfTheLink(t *testing.T) {
	t.Parallel()
	m := newMock(t)
	b := newBench(t, m, model.Chat)
	failed := make(chan error, 1)
	go func() {
		_, err := b.Drive(t, "r1", `@say one`+"\n"+`call shell {"command":"sleep 600"}`)
		failed <- err
	}()
	b.Await(t, "r1", said("in_progress"))
	b.Sandbox.Lose()
	if err := <-failed; err == nil {
		t.Error("a lost sandbox is an outcome: what becomes of the run is not the harness's to say")
	}
}
