package harnesstest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// Target is what the suite examines.
type Target struct {
	// Bench makes a fresh bench. Its runtime carries out the language of
	// package script.
	Bench func(t *testing.T) *Bench
	// Brief spares the long loops, for a target whose twin has them.
	Brief bool
}

// Run checks what every harness has to do. The checks run in parallel.
func Run(t *testing.T, target Target) {
	for name, check := range map[string]func(*testing.T, Target){
		"EventsAreInOrder":               eventsAreInOrder,
		"ConversationGoesOn":             conversationGoesOn,
		"ConversationMovesWithItsFiles":  conversationMoves,
		"UnknownConversationIsNotFresh":  unknownConversation,
		"CrashAtEveryCommitLosesNothing": crashAtEveryCommit,
		"BrokenLinksLoseNothing":         brokenLinks,
		"SlowPortLosesNothing":           slowPort,
		"PromptIsGivenOnceAtActivate":    crashAtActivate,
		"OutcomeIsRemembered":            outcomeIsRemembered,
		"CancelEndsTheTurn":              cancelEndsTheTurn,
		"CancelBeforeThePromptGivesNone": cancelBeforeThePrompt,
		"DeafAgentIsKilled":              deafAgentIsKilled,
		"DeadlineEndsTheTurn":            deadlineEndsTheTurn,
		"QuestionWaitsForItsAnswer":      questionWaits,
		"QuestionOutlivesTheServer":      questionOutlivesTheServer,
		"DeadAgentCrashesTheRun":         deadAgent,
		"LeavingLeavesTheAgentRunning":   leaving,
		"LostSandboxIsAnErrorOfTheLink":  lostSandbox,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, target)
		})
	}
}

func wantTexts(t *testing.T, b *Bench, run sojourn.RunID, want ...string) {
	t.Helper()
	if got := b.Ledger.Texts(run); !slices.Equal(got, want) {
		t.Errorf("run %s said %q, want %q", run, got, want)
	}
}

func wantCode(t *testing.T, run sojourn.RunID, o harness.Outcome, state sojourn.RunState, code string) {
	t.Helper()
	if o.State != state || o.Error == nil || o.Error.Code != code {
		t.Errorf("run %s is %s, want %s with code %s", run, Describe(o), state, code)
	}
}

func said(text string) func(RunRecord) bool {
	return func(r RunRecord) bool {
		return slices.ContainsFunc(r.Events, func(e harness.Event) bool { return bytes.Contains(e.Data, []byte(text)) })
	}
}

func eventsAreInOrder(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r1", "@flood 500")
	var want []string
	for i := range 500 {
		want = append(want, fmt.Sprint(i))
	}
	wantTexts(t, b, "r1", want...)
	if n := b.Ledger.Run("r1").Activations; n != 1 {
		t.Errorf("activated %d times, want 1", n)
	}
}

func conversationGoesOn(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r1", "@remember colour blue")
	if b.Ledger.Conversation() == "" {
		t.Error("the conversation was not confirmed by a completed turn")
	}
	b.Completed(t, "r2", "@recall colour")
	b.Completed(t, "r3", "@recall shape")
	wantTexts(t, b, "r2", "blue")
	wantTexts(t, b, "r3", "nothing is remembered as shape")
}

func conversationMoves(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r1", "@remember colour blue")
	next := NewSandbox(t, b.Sandbox.programs)
	copyState(t, b, next)
	b.Sandbox, b.Epoch = next, 2
	b.Ledger.NewSandbox()
	b.Completed(t, "r2", "@recall colour\n@history")
	wantTexts(t, b, "r2", "blue", `["@remember colour blue","@recall colour\n@history"]`)
}

// copyState copies the files of the conversation, and nothing else.
func copyState(t *testing.T, b *Bench, to *Sandbox) {
	t.Helper()
	from := os.DirFS(b.Sandbox.Home())
	copied := 0
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !b.Runtime.Holds(name) {
			return err
		}
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		copied++
		target := filepath.Join(to.Home(), name)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
	if err != nil || copied == 0 {
		t.Fatalf("copied %d files of the conversation: %v", copied, err)
	}
}

func unknownConversation(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r1", "@say one")
	b.Sandbox, b.Epoch = NewSandbox(t, b.Sandbox.programs), 2
	b.Ledger.NewSandbox()
	out := b.Turn(t, "r2", "@say two")
	wantCode(t, "r2", out, sojourn.RunFailed, string(sojourn.ReasonConversationNotRestorable))
	if !out.ConversationLost {
		t.Error("the outcome does not say that the conversation is lost")
	}
	wantTexts(t, b, "r2")
	if n := b.Ledger.Run("r2").Activations; n != 0 {
		t.Errorf("activated %d times, want 0", n)
	}
}

// busyPrompt has a bit of everything that is committed differently.
const busyPrompt = "@say one\n@plan a; b\n@noise not a message\n@request unknown/thing\n@work 30 10\n@permission on\n" +
	"@write f.txt hello\n@flood 40\n@request other/thing\n@run cat f.txt\n@stderr psst\n@sleep 5\n@say end"

// allow answers every question of a run as it comes, until the test ends.
func (b *Bench) allow(t *testing.T, run sojourn.RunID) {
	t.Helper()
	ctx := t.Context()
	go func() {
		for n := 0; ; n++ {
			if b.Ledger.Await(ctx, run, func(r RunRecord) bool { return len(r.Questions) > n }) != nil {
				return
			}
			b.Ledger.Answer(run, b.Ledger.Run(run).Questions[n].Ref, "yes", true)
		}
	}()
}

// record is a run's events as text, without what no two runs share.
func record(b *Bench, run sojourn.RunID) []string {
	var out []string
	stderr := 0
	for _, e := range b.Ledger.Run(run).Events {
		if bytes.Contains(e.Data, []byte("psst")) {
			stderr++ // its place beside standard output is not fixed
			continue
		}
		out = append(out, string(e.Type)+" "+strings.ReplaceAll(string(e.Data), string(run), "RUN"))
	}
	return append(out, fmt.Sprintf("%d on stderr", stderr))
}

func crashAtEveryCommit(t *testing.T, target Target) {
	b := target.Bench(t)
	b.allow(t, "calm")
	b.Completed(t, "calm", busyPrompt)
	want, commits := record(b, "calm"), b.Ledger.Run("calm").Commits
	if target.Brief || testing.Short() {
		commits = min(commits, 6)
	}
	for n := 1; n <= commits; n++ {
		for _, when := range []string{"before", "after"} {
			run := sojourn.RunID(fmt.Sprintf("%s-%d", when, n))
			b.allow(t, run)
			b.Port.DieBefore, b.Port.DieAfter = 0, 0
			if when == "before" {
				b.Port.DieBefore = n
			} else {
				b.Port.DieAfter = n
			}
			// Whether it got as far as its death is of no matter: another
			// drive follows either way.
			_, _ = b.Drive(t, run, busyPrompt)
			b.Port = Port{}
			b.Completed(t, run, busyPrompt)
			if got := record(b, run); !slices.Equal(got, want) {
				t.Fatalf("killed %s commit %d of %d:\n got %s\nwant %s", when, n, commits, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			}
			if got := len(b.Ledger.Run(run).Questions); got != 2 {
				t.Errorf("killed %s commit %d: %d questions, want 2", when, n, got)
			}
		}
	}
	b.Completed(t, "count", "@history")
	if got := strings.Count(b.Ledger.Texts("count")[0], "@plan a; b"); got != 1+2*commits {
		t.Errorf("the agent was given %d prompts, want %d", got, 1+2*commits)
	}
}

// frail is a connection that breaks after so many bytes, in the middle of a
// frame.
type frail struct {
	net.Conn
	left atomic.Int64
}

func (c *frail) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.use(n, err)
}

func (c *frail) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.use(n, err)
}

func (c *frail) use(n int, err error) error {
	if c.left.Add(-int64(n)) < 0 {
		_ = c.Conn.Close()
		return net.ErrClosed
	}
	return err
}

func brokenLinks(t *testing.T, target Target) {
	b := target.Bench(t)
	b.allow(t, "calm")
	b.Completed(t, "calm", busyPrompt)
	want := record(b, "calm")
	random := rand.New(rand.NewPCG(1, 2)) // one goroutine dials at a time
	b.Sandbox.WrapConns(func(c net.Conn) net.Conn {
		f := &frail{Conn: c}
		f.left.Store(600 + random.Int64N(3000))
		return f
	})
	for n := range 5 {
		run := sojourn.RunID(fmt.Sprintf("broken-%d", n))
		b.allow(t, run)
		b.Completed(t, run, busyPrompt)
		if got := record(b, run); !slices.Equal(got, want) {
			t.Fatalf("over broken links:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	b.Sandbox.WrapConns(nil)
	b.Completed(t, "count", "@history")
	if got := strings.Count(b.Ledger.Texts("count")[0], "@plan a; b"); got != 6 {
		t.Errorf("the agent was given %d prompts, want 6", got)
	}
}

func slowPort(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Port.Slow = 5 * time.Millisecond
	b.Completed(t, "r1", "@flood 5000 500")
	texts := b.Ledger.Texts("r1")
	if len(texts) != 5000 {
		t.Fatalf("%d updates, want 5000", len(texts))
	}
	for i, text := range texts {
		if !strings.HasPrefix(text, fmt.Sprint(i)+".") {
			t.Fatalf("update %d is %.20q", i, text)
		}
	}
	if r := b.Ledger.Run("r1"); r.MostEvents > 1024 || r.MostBytes > 4<<20 {
		t.Errorf("a batch of %d events, %d bytes: nothing bounds them", r.MostEvents, r.MostBytes)
	}
}

func crashAtActivate(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Port.DieAtActivate = true
	if _, err := b.Drive(t, "r1", "@say hello"); err == nil {
		t.Fatal("the drive went on without its activation")
	}
	b.Port.DieAtActivate = false
	b.Completed(t, "r1", "@say hello")
	wantTexts(t, b, "r1", "hello")
	b.Completed(t, "r2", "@history")
	wantTexts(t, b, "r2", `["@say hello","@history"]`)
}

func outcomeIsRemembered(t *testing.T, target Target) {
	b := target.Bench(t)
	first := b.Completed(t, "r1", "@say hello\n@stop max_tokens")
	again := b.Completed(t, "r1", "@say hello\n@stop max_tokens")
	if first != again {
		t.Errorf("the second outcome is %+v, the first was %+v", again, first)
	}
	wantTexts(t, b, "r1", "hello")
}

func cancelEndsTheTurn(t *testing.T, target Target) {
	b := target.Bench(t)
	wait := b.Background(t, "r1", "@say before\n@sleep 30000\n@say after")
	b.Await(t, "r1", said("before"))
	b.Ledger.Cancel("r1")
	if out := wait(); out.State != sojourn.RunCancelled || out.StopReason != sojourn.StopCancelled || out.Killed {
		t.Errorf("outcome %s, want cancelled and not killed", Describe(out))
	}
	wantTexts(t, b, "r1", "before")
	b.Completed(t, "r2", "@say again")
	wantTexts(t, b, "r2", "again")
}

func cancelBeforeThePrompt(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Ledger.Cancel("r1")
	if out := b.Turn(t, "r1", "@say never"); out.State != sojourn.RunCancelled {
		t.Errorf("outcome %s, want cancelled", Describe(out))
	}
	wantTexts(t, b, "r1")
	b.Completed(t, "r2", "@history")
	wantTexts(t, b, "r2", `["@history"]`)
}

func deafAgentIsKilled(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Grace = 50 * time.Millisecond
	wait := b.Background(t, "r1", "@ignore-cancel\n@say deaf\n@sleep 60000")
	b.Await(t, "r1", said("deaf"))
	b.Ledger.Cancel("r1")
	if out := wait(); out.State != sojourn.RunCancelled || !out.Killed {
		t.Errorf("outcome %s, want cancelled and killed", Describe(out))
	}
	b.Completed(t, "r2", "@say again")
	wantTexts(t, b, "r2", "again")
}

func deadlineEndsTheTurn(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r0", "@say warm")
	b.Within = 150 * time.Millisecond
	out := b.Turn(t, "r1", "@sleep 60000")
	wantCode(t, "r1", out, sojourn.RunCrashed, sojourn.StopTurnDeadline)
	if out.StopReason != sojourn.StopTurnDeadline || out.Killed {
		t.Errorf("outcome %s, want stop reason turn_deadline and not killed", Describe(out))
	}
	b.Within = 0
	b.Completed(t, "r2", "@say again")
}

func questionWaits(t *testing.T, target Target) {
	for option, want := range map[string]string{"yes": "chosen: yes", "no": "chosen: no"} {
		b := target.Bench(t)
		wait := b.Background(t, "r1", "@ask May I?")
		b.Await(t, "r1", func(r RunRecord) bool { return len(r.Questions) == 1 })
		q := b.Ledger.Run("r1").Questions[0]
		if q.Kind != "permission" || len(q.Options) != 2 || !bytes.Contains(q.Request, []byte("May I?")) {
			t.Errorf("question %+v does not say what is asked", q)
		}
		b.Ledger.Answer("r1", q.Ref, option, true)
		if out := wait(); out.State != sojourn.RunCompleted {
			t.Errorf("outcome %s, want completed", Describe(out))
		}
		wantTexts(t, b, "r1", want)
	}
}

func questionOutlivesTheServer(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r0", "@say warm")
	b.Port.DieAfter = 2
	if _, err := b.Drive(t, "r1", "@ask May I?"); err == nil {
		t.Fatal("the drive ended while its question is open")
	}
	b.Port = Port{}
	wait := b.Background(t, "r1", "@ask May I?")
	b.Await(t, "r1", func(r RunRecord) bool { return len(r.Questions) == 1 })
	b.Ledger.Answer("r1", b.Ledger.Run("r1").Questions[0].Ref, "no", true)
	if out := wait(); out.State != sojourn.RunCompleted {
		t.Errorf("outcome %s, want completed", Describe(out))
	}
	wantTexts(t, b, "r1", "chosen: no")
	if n := len(b.Ledger.Run("r1").Questions); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}

func deadAgent(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Completed(t, "r0", "@remember colour blue")
	out := b.Turn(t, "r1", "@say one\n@stderr out of luck\n@exit 3")
	wantCode(t, "r1", out, sojourn.RunCrashed, sojourn.StopAgentExited)
	if out.Error != nil && (!strings.Contains(out.Error.Message, "exit status 3") || !strings.Contains(out.Error.Message, "out of luck")) {
		t.Errorf("message %q, want the exit status and the end of stderr", out.Error.Message)
	}
	if !out.Killed {
		t.Error("a torn run may be sealed")
	}
	wantTexts(t, b, "r1", "one")
	b.Completed(t, "r2", "@recall colour")
	wantTexts(t, b, "r2", "blue")
}

func leaving(t *testing.T, target Target) {
	b := target.Bench(t)
	b.Port.DieAfter = 2
	if _, err := b.Drive(t, "r1", "@say one\n@work 200 20"); err == nil {
		t.Fatal("the drive survived its server")
	}
	b.Port = Port{}
	begun := time.Now()
	b.Completed(t, "r1", "@say one\n@work 200 20")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("took up a running agent in %v", took)
	}
	if got := b.Ledger.Texts("r1"); len(got) != 11 || got[10] != "step 10 of 10" {
		t.Errorf("said %q, want one and ten steps", got)
	}
}

func lostSandbox(t *testing.T, target Target) {
	b := target.Bench(t)
	failed := make(chan error, 1)
	go func() {
		_, err := b.Drive(t, "r1", "@say one\n@sleep 60000")
		failed <- err
	}()
	b.Await(t, "r1", said("one"))
	b.Sandbox.Lose()
	if err := <-failed; !errors.Is(err, link.ErrGone) {
		t.Errorf("error %v, want %v: what becomes of the run is not the harness's to say", err, link.ErrGone)
	}
}
