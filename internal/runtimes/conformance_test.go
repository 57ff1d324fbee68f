package runtimes_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gocloud.dev/blob/memblob"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/gateway"
	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/runtimes"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
)

// The parts of a sandbox are this executable under another name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(keeper.Main(os.Args[2:]))
		case "namespace-init":
			os.Exit(namespace.Init(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// difference is one that a restore is known to make in the third turn's request, and
// that is not part of the conversation.
type difference struct {
	what string
	mask *regexp.Regexp
}

// conformers are the runtimes from npm, with what docs/runtimes.md says of each.
var conformers = []struct {
	id      string
	allowed []difference
	tries   string // how the names begin that it may ask for in the background; all are refused
	damaged string // what a restore does to it, if it does not promise to be exact
}{
	{id: "codex"},
	{id: "opencode", tries: "registry."},
	{id: "claude-code", allowed: []difference{
		{"the reminder of git's state is made afresh", regexp.MustCompile(`gitStatus: [^"]*`)},
		{"the id of the device is the home's", regexp.MustCompile(`user_[0-9a-f]{64}|device_id\\*":\\*"[0-9a-f]+`)},
	}},
	{id: "qwen", allowed: []difference{
		{"the date and the folder's listing are made afresh", regexp.MustCompile(`(Today's date is|Showing up to)[^"]*`)},
	}},
	{id: "gemini", damaged: "tool calls are merged, results doubled, thought signatures dropped, and at times it is lost"},
}

// TestConversationIsExact drives each real agent through the same three turns, once
// without a break and once with the sandbox killed after the second and the third in
// another one, and compares what the model receives in the third.
func TestConversationIsExact(t *testing.T) {
	for _, c := range conformers {
		t.Run(c.id, func(t *testing.T) {
			s := newStage(t, c.id)
			if s.row.Exact != (c.damaged == "") {
				t.Fatalf("the row says that it is exact: %v", s.row.Exact)
			}
			whole := s.run(t, false)
			broken := s.run(t, true)
			for _, leg := range []leg{whole, broken} {
				for _, d := range leg.decisions {
					t.Logf("it asked for %s:%d, %d times: %s", d.Host, d.Port, d.Count, d.Reason)
					if d.Allowed {
						t.Errorf("%s:%d was let out under a policy of none", d.Host, d.Port)
					}
					if c.tries == "" || !strings.HasPrefix(d.Host, c.tries) {
						t.Errorf("it asks for %s, which docs/runtimes.md does not say", d.Host)
					}
				}
			}
			t.Logf("start %v and %v, turns %v and %v, conversation of %d bytes, third request of %d bytes",
				whole.start, broken.start, whole.turns, broken.turns, broken.stateBytes, len(whole.third))
			if broken.lost != "" {
				t.Logf("it lost its conversation, as is known to happen: %s", broken.lost)
				return
			}
			want, got := lines(whole.third), lines(broken.third)
			if !bytes.Equal(join(want), join(got)) {
				for _, d := range c.allowed {
					want, got = mask(want, d.mask), mask(got, d.mask)
				}
				if bytes.Equal(join(want), join(got)) {
					t.Log("identical but for the differences that are listed")
					return
				}
				if c.damaged != "" {
					t.Logf("it differs, as is known: %s\n%s", c.damaged, diff(want, got))
					return
				}
				t.Errorf("the third request differs after a restore:\n%s", diff(want, got))
				return
			}
			t.Log("identical")
		})
	}
}

// wanted skips a runtime that nobody asked for, or that this machine cannot have.
func wanted(t *testing.T, id string) runtimes.Installed {
	t.Helper()
	name, asked := "SOJOURN_TEST_AGENTS", os.Getenv("SOJOURN_TEST_AGENTS")
	ok := slices.Contains(strings.Split(asked, ","), id) || asked == "all"
	if id == "codex" {
		name, ok = "SOJOURN_TEST_CODEX=1, or SOJOURN_TEST_AGENTS", ok || os.Getenv("SOJOURN_TEST_CODEX") == "1"
	}
	if !ok {
		t.Skipf("SKIPPED: %s is only tried with %s=all or the like, because npm has to fetch it", id, name)
	}
	dir := cmp.Or(os.Getenv("SOJOURN_TEST_LAYERS"), filepath.Join(os.TempDir(), "sojourn-test-layers"))
	layers, err := runtimes.Layers(dir)
	if err != nil {
		t.Fatal(err)
	}
	if i, ok := layers[id]; ok && i.Version == runtimes.Recommended(id) {
		return i
	}
	i, err := runtimes.Installer{Dir: dir, Progress: t.Output()}.Install(t.Context(), id, "")
	if err != nil {
		t.Skipf("SKIPPED: npm cannot have %s: %v", id, err)
	}
	return i
}

// stage is where a runtime is tried.
type stage struct {
	row  harness.Runtime
	self string
}

func newStage(t *testing.T, id string) *stage {
	t.Helper()
	installed := wanted(t, id)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if r := namespace.Probe(t.Context(), namespace.Config{Dir: t.TempDir(), Executable: self}); !r.Available {
		t.Skipf("SKIPPED: no namespace sandboxes here: %s %s", r.Reason, r.Fix)
	}
	table, err := runtimes.Table(harness.Runtimes(), runtimes.Site{Installed: map[string]runtimes.Installed{id: installed}})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(table, func(r harness.Runtime) bool { return r.ID == id })
	return &stage{row: table[i], self: self}
}

// leg is what one way through the three turns has shown.
type leg struct {
	third      []byte // the body of the third turn's first request, as the model got it
	decisions  []sojourn.NetworkDecision
	start      time.Duration // of the first turn, over the second
	turns      []time.Duration
	stateBytes int64
	lost       string // why there was no third turn, of a runtime that promises none
}

// prompts make the agent think, write a file, run a command and remember. Each has a
// word by which its requests are known.
var prompts = []string{
	"turn-one\n@mock think I should write a file\n@mock say Writing it now.\n@mock write /workspace/notes.txt hello world\n@mock say Written.",
	"turn-two\n@mock run cat notes.txt\n@mock say It says hello.",
	"turn-three\n@mock history\n@mock say Done.",
}

// run goes through the three turns. With broken, the sandbox is killed after the
// second, and the third is in another one with nothing but the checkpoint.
func (s *stage) run(t *testing.T, broken bool) (got leg) {
	t.Helper()
	m := newModel(t, s.row.API)
	ledger := harnesstest.NewLedger()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	store := checkpoint.New(bucket, checkpoint.Config{})
	box := s.open(t, m, 1)
	for n, prompt := range prompts {
		if n == 2 && broken {
			ref, size := box.capture(t, store, s.row)
			got.stateBytes = size
			box.close(t)
			box = s.open(t, m, 2)
			box.restore(t, store, ref)
			ledger.NewSandbox()
		}
		begun := time.Now()
		run := sojourn.RunID(fmt.Sprintf("run-%d", n+1))
		out := box.turn(t, ledger, m, s.row, run, prompt)
		switch {
		case out.ConversationLost && broken && !s.row.Exact:
			got.lost = out.Error.Message
		case out.State != sojourn.RunCompleted || out.StopReason != "end_turn":
			t.Fatalf("%s: %s\n%s", run, harnesstest.Describe(out), strings.Join(ledger.Logs(run), "\n"))
		}
		got.turns = append(got.turns, time.Since(begun).Round(10*time.Millisecond))
	}
	box.close(t)
	got.start = got.turns[0] - got.turns[1]
	got.decisions = m.decided()
	if got.lost == "" {
		got.third = m.first(t, "turn-three")
	}
	return got
}

// model is a mock model behind a gateway.
type model struct {
	mock    modeltest.Server
	gateway *gateway.Gateway

	mu        sync.Mutex
	decisions []sojourn.NetworkDecision
}

const (
	modelName  = "mock-model"
	modelToken = "lease-token"
)

func newModel(t *testing.T, api string) *model {
	t.Helper()
	m := &model{mock: modeltest.Server{Key: "real-key"}}
	url := m.mock.Start(t)
	if api == harness.APIOpenAI {
		url += "/v1"
	}
	var err error
	m.gateway, err = gateway.New(gateway.Config{Providers: []gateway.Provider{{
		Name: "mock", API: gateway.API(api), BaseURL: url, Key: "real-key", Models: []gateway.Model{{Name: modelName}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *model) report(d []sojourn.NetworkDecision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decisions = append(m.decisions, d...)
}

func (m *model) decided() []sojourn.NetworkDecision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.decisions)
}

// first is the body of the first request with tools that has the word: calls for
// titles and the like have none.
func (m *model) first(t *testing.T, word string) []byte {
	t.Helper()
	for _, r := range m.mock.Records() {
		if len(r.Tools) > 0 && bytes.Contains(r.Body, []byte(word)) {
			return r.Body
		}
	}
	t.Fatalf("no request has %s; there are %d", word, len(m.mock.Records()))
	return nil
}

// box is a sandbox with its way out and its link.
type box struct {
	driver sandbox.Driver
	sandbox.Sandbox
	gate  *egress.Gate
	peer  *link.Peer
	epoch int64
}

// open makes a sandbox in a directory of its own.
func (s *stage) open(t *testing.T, m *model, epoch int64) *box {
	t.Helper()
	d, err := namespace.Open(namespace.Config{Dir: t.TempDir(), Executable: s.self})
	if err != nil {
		t.Fatal(err)
	}
	b := &box{driver: d, epoch: epoch}
	t.Cleanup(func() { d.Close() })
	if b.Sandbox, err = d.Create(t.Context(), sandbox.Spec{Session: "ses", Epoch: epoch, Layers: s.row.Layers}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Destroy(context.WithoutCancel(t.Context())) })
	e, err := egress.New(egress.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b.gate, err = e.Open(t.Context(), egress.Spec{
		Session: "ses", Epoch: epoch, Dir: b.Dirs().Sockets, Policy: sojourn.NetworkPolicy{Mode: sojourn.NetworkNone}, Report: m.report,
		Local: m.gateway.Handler(gateway.Binding{Session: "ses", Epoch: epoch, Token: modelToken}),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.peer = link.NewPeer(func(ctx context.Context) (link.Transport, error) {
		c, err := b.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return link.Framed(c), nil
	}, link.Options{Epoch: epoch})
	return b
}

// close ends the sandbox as a crash does: nobody in it is told.
func (b *box) close(t *testing.T) {
	t.Helper()
	b.peer.Close()
	if err := b.Destroy(t.Context()); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if err := b.gate.Close(); err != nil {
		t.Errorf("close the way out: %v", err)
	}
}

// turn gives the agent a prompt and returns what came of it.
func (b *box) turn(t *testing.T, ledger *harnesstest.Ledger, m *model, row harness.Runtime, run sojourn.RunID, prompt string) harness.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := (&acp.Harness{}).Drive(ctx, harness.Job{
		Session: "ses", Run: run, Epoch: b.epoch, Input: []sojourn.Part{{Type: "text", Text: prompt}}, Runtime: row, Env: b.gate.Env(),
		Model: modelName, ModelURL: "http://" + sandbox.EgressAddress + "/model", Token: modelToken,
		Conversation: ledger.Conversation(), Worked: ledger.Worked(), State: ledger.State(),
	}, &harnesstest.Port{Ledger: ledger, Run: run, Peer: b.peer})
	if err != nil {
		t.Fatalf("%s: %v", run, err)
	}
	if row.NeedsModel() && strings.Contains(string(ledger.State()), modelToken) {
		t.Error("the token is in the stored state")
	}
	return out
}

// capture keeps what a checkpoint of the row keeps.
func (b *box) capture(t *testing.T, store *checkpoint.Store, row harness.Runtime) (checkpoint.Ref, int64) {
	t.Helper()
	if err := harness.Settle(t.Context(), b.peer, row); err != nil {
		t.Fatal(err)
	}
	dirs := b.Dirs()
	got, err := store.Capture(t.Context(), checkpoint.Spec{Workspace: dirs.Workspace, Home: dirs.Home, State: row.State})
	if err != nil || !got.Conversation.Captured || !got.Workspace.Captured || got.Conversation.Bytes == 0 {
		t.Fatalf("capture: %+v, %v", got, err)
	}
	return got.Ref, got.Conversation.Bytes
}

func (b *box) restore(t *testing.T, store *checkpoint.Store, ref checkpoint.Ref) {
	t.Helper()
	dirs := b.Dirs()
	r, err := store.Restore(t.Context(), ref, checkpoint.Target{Workspace: dirs.Workspace, Home: dirs.Home, Empty: true})
	if err != nil || !r.Conversation.Captured {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	secret := []byte(modelToken)
	err = filepath.WalkDir(dirs.Home, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, secret) {
			t.Errorf("the token is in the checkpoint: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// passing are what differs between any two runs: ids, times, numbers of processes.
var passing = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}` +
	`|_mock[0-9]{6}|\b(ses|msg|prt|toolu|chatcmpl|resp|call|rs|fc)_[A-Za-z0-9_-]{6,}` +
	`|\d{4}-\d{2}-\d{2}T[0-9:.]+Z?|\b1[789]\d{8}(\d{3})?\b|Chunk ID: [0-9a-f]+|Wall time: [0-9.]+ seconds|\b(pid|PGID)[ :=]+\d+`)

// lines is a body in indented form with what passes masked.
func lines(body []byte) []string {
	var b bytes.Buffer
	if json.Indent(&b, body, "", " ") != nil {
		b.Write(body)
	}
	return mask(strings.Split(b.String(), "\n"), passing)
}

func mask(all []string, what *regexp.Regexp) []string {
	out := make([]string, len(all))
	for i, l := range all {
		out[i] = what.ReplaceAllString(l, "…")
	}
	return out
}

func join(all []string) []byte { return []byte(strings.Join(all, "\n")) }

// diff shows the first lines that differ, around what differs in them.
func diff(want, got []string) string {
	var b strings.Builder
	for i, shown := 0, 0; i < max(len(want), len(got)) && shown < 8; i++ {
		w, g := at(want, i), at(got, i)
		if w == g {
			continue
		}
		shown++
		n := 0
		for n < min(len(w), len(g)) && w[n] == g[n] {
			n++
		}
		fmt.Fprintf(&b, "line %d\n  whole:  …%s\n  broken: …%s\n", i+1, cut(w, n), cut(g, n))
	}
	fmt.Fprintf(&b, "%d and %d lines", len(want), len(got))
	return b.String()
}

func at(all []string, i int) string {
	if i < len(all) {
		return all[i]
	}
	return "(no such line)"
}

func cut(s string, n int) string { return s[max(0, n-80):min(len(s), n+240)] }
