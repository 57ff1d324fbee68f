package script

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
)

// client speaks to an agent that runs in the test.
type client struct {
	t     *testing.T
	root  string
	in    io.WriteCloser
	out   *bufio.Scanner
	exit  chan int
	texts []string
	next  int
}

// start runs an agent in a root that may have been used before.
func start(t *testing.T, root string, env ...string) *client {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &client{t: t, root: root, in: inW, out: bufio.NewScanner(outR), exit: make(chan int, 1)}
	c.out.Buffer(nil, 1<<20)
	if err := os.MkdirAll(filepath.Join(root, "workspace"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		code := Run(ctx, keeper.Proc{
			Env: append(env, "HOME=/home/agent", "PATH="+os.Getenv("PATH")), Dir: "/workspace",
			Stdin: inR, Stdout: outW, Stderr: io.Discard,
			MapPath: func(p string) string { return filepath.Join(root, p) },
		})
		outW.Close()
		c.exit <- code
	}()
	t.Cleanup(func() {
		cancel()
		outR.Close()
		<-c.exit
	})
	return c
}

// call makes a request and gathers what is said until its answer.
func (c *client) call(method string, params object) (result map[string]any, refused *rpcError) {
	c.t.Helper()
	c.next++
	c.write(object{"jsonrpc": "2.0", "id": c.next, "method": method, "params": params})
	c.texts = nil
	for c.out.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Error  *rpcError
			Params struct {
				Update struct {
					SessionUpdate string
					Content       struct{ Text string }
				}
			}
			Result map[string]any
		}
		if json.Unmarshal(c.out.Bytes(), &m) != nil {
			continue
		}
		if string(m.ID) == fmt.Sprint(c.next) && m.Method == "" {
			return m.Result, m.Error
		}
		if u := m.Params.Update; u.SessionUpdate == "agent_message_chunk" {
			c.texts = append(c.texts, u.Content.Text)
		}
	}
	return nil, nil
}

func (c *client) write(m object) {
	c.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		c.t.Fatal(err)
	}
}

// prompt carries out a prompt and returns its stop reason.
func (c *client) prompt(id, text string) string {
	c.t.Helper()
	r, refused := c.call("session/prompt", object{"sessionId": id, "prompt": []object{{"type": "text", "text": text}}})
	if refused != nil {
		c.t.Fatalf("prompt %q: %v", text, refused)
	}
	reason, _ := r["stopReason"].(string)
	return reason
}

func (c *client) open() string {
	c.t.Helper()
	r, refused := c.call("session/new", object{"cwd": "/workspace", "mcpServers": []any{}})
	if refused != nil {
		c.t.Fatal(refused)
	}
	return r["sessionId"].(string)
}

func TestDocumentationListsEveryInstruction(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(@[a-z-]+)`).FindAllStringSubmatch(string(doc), -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	if want := slices.Sorted(maps.Keys(instructions)); !slices.Equal(listed, want) {
		t.Errorf("documented: %v\nimplemented: %v", listed, want)
	}
}

func TestInstructionsSayWhatTheyDid(t *testing.T) {
	c := start(t, t.TempDir(), "COLOUR=blue")
	id := c.open()
	for _, tc := range []struct{ prompt, want, stop string }{
		{"hello", "echo: hello", "end_turn"},
		{`@say a\nb`, "a\nb", "end_turn"},
		{"@env COLOUR", "blue", "end_turn"},
		{"@write dir/f.txt some text\n@cat dir/f.txt", "some text\n", "end_turn"},
		{"@cat /workspace/dir/f.txt", "some text\n", "end_turn"},
		{"@cat missing", "cat: no such file: missing", "end_turn"},
		{"@remember a b c\n@recall a", "b c", "end_turn"},
		{"@remember a d\n@recall a", "d", "end_turn"},
		{"@recall z", "nothing is remembered as z", "end_turn"},
		{"@work 3 1", "step 1 of 3|step 2 of 3|step 3 of 3", "end_turn"},
		{"@flood 2 3", "0...|1...", "end_turn"},
		{"@big 5", "xxxxx", "end_turn"},
		{"@sleep 1\n@stop refusal\n@say never", "", "refusal"},
		{"@stop-no-reason", "", ""},
		{"@dance", "unknown instruction: @dance", "end_turn"},
		{"@noise x\n@raw y\n@stderr z\n@plan a; b\n@usage 1 2\n@think t\n@call c d\n@noise-bytes 100", "", "end_turn"},
		{"@run exit 3", "", "end_turn"},
	} {
		stop := c.prompt(id, tc.prompt)
		if got := strings.Join(c.texts, "|"); got != tc.want || stop != tc.stop {
			t.Errorf("%q: said %q and stopped with %q, want %q and %q", tc.prompt, got, stop, tc.want, tc.stop)
		}
	}
}

// A short output must never pass for a whole one, and its end is what counts.
func TestLongOutputSaysWhatIsMissing(t *testing.T) {
	if got := shown([]byte("all of it\n")); got != "all of it\n" {
		t.Errorf("a short output is shown as %q", got)
	}
	if got := shown(bytes.Repeat([]byte("x"), shownBytes)); len(got) != shownBytes {
		t.Errorf("%d bytes are shown as %d", shownBytes, len(got))
	}
	long := append(bytes.Repeat([]byte("x"), 20_000_000), "END"...)
	got := shown(long)
	cut := fmt.Sprintf("\n[%d of %d bytes are not shown]\n", len(long)-shownBytes, len(long))
	if len(got) != shownBytes+len(cut) || !strings.Contains(got, cut) || !strings.HasSuffix(got, "xEND") {
		t.Errorf("%d bytes are shown, ending with %q", len(got), got[max(0, len(got)-60):])
	}
}

func TestDigestTellsTreesApart(t *testing.T) {
	c := start(t, t.TempDir())
	id := c.open()
	seen := map[string]string{}
	for _, change := range []string{
		"@write f a", "@write f b", "@run chmod 600 f", "@run ln -s f l", "@run ln -sf g l", "@run mkdir d", "@run mv f h",
	} {
		c.prompt(id, change+"\n@sha")
		c.prompt(id, "@sha .")
		digest := c.texts[0]
		if other, ok := seen[digest]; ok {
			t.Errorf("%q leaves the digest of %q", change, other)
		}
		seen[digest] = change
		if c.prompt(id, "@sha /workspace"); c.texts[0] != digest {
			t.Errorf("the same tree has digests %q and %q", digest, c.texts[0])
		}
	}
}

func TestConversationSurvivesTheAgent(t *testing.T) {
	root := t.TempDir()
	c := start(t, root)
	id := c.open()
	c.prompt(id, "@remember colour blue")
	_, err := os.Stat(filepath.Join(root, "home/agent/.script-agent", id+".jsonl"))
	if err != nil {
		t.Errorf("the conversation's file: %v", err)
	}
	for _, how := range []string{"session/resume", "session/load"} {
		c = start(t, root)
		_, refused := c.call(how, object{"sessionId": id, "cwd": "/workspace", "mcpServers": []any{}})
		if refused != nil {
			t.Fatalf("%s: %v", how, refused)
		}
		c.prompt(id, "@recall colour")
		if got := strings.Join(c.texts, "|"); got != "blue" {
			t.Errorf("%s: recalled %q, want blue", how, got)
		}
	}
}

func TestUnknownConversationIsRefused(t *testing.T) {
	c := start(t, t.TempDir())
	for _, id := range []string{"", "scr_missing", "../../etc/passwd"} {
		for _, method := range []string{"session/load", "session/resume", "session/prompt"} {
			if _, refused := c.call(method, object{"sessionId": id, "cwd": "/workspace"}); refused == nil || refused.Code != -32002 {
				t.Errorf("%s of %q: %v, want code -32002", method, id, refused)
			}
		}
	}
}

func TestOneTurnAtATime(t *testing.T) {
	c := start(t, t.TempDir())
	id := c.open()
	prompt := func(text string) object {
		return object{"sessionId": id, "prompt": []object{{"type": "text", "text": text}}}
	}
	c.write(object{"jsonrpc": "2.0", "id": "first", "method": "session/prompt", "params": prompt("@sleep 60000")})
	if _, refused := c.call("session/prompt", prompt("@say two")); refused == nil {
		t.Error("a second turn began beside the first")
	}
	c.write(object{"jsonrpc": "2.0", "method": "session/cancel", "params": object{"sessionId": id}})
}

func TestExitCodes(t *testing.T) {
	for prompt, want := range map[string]int{"@exit 7": 7, "@signal KILL": 137, "@signal TERM": 143} {
		c := start(t, t.TempDir())
		id := c.open()
		c.call("session/prompt", object{"sessionId": id, "prompt": []object{{"type": "text", "text": prompt}}})
		got := <-c.exit
		if c.exit <- got; got != want {
			t.Errorf("%s: exit code %d, want %d", prompt, got, want)
		}
	}
	c := start(t, t.TempDir())
	c.open()
	c.in.Close()
	got := <-c.exit
	if c.exit <- got; got != 0 {
		t.Errorf("end of input: exit code %d, want 0", got)
	}
}

func TestBadInputIsAnswered(t *testing.T) {
	c := start(t, t.TempDir())
	if _, err := io.WriteString(c.in, "not json\n"); err != nil {
		t.Fatal(err)
	}
	if !c.out.Scan() || !strings.Contains(c.out.Text(), "-32700") {
		t.Errorf("answer %q, want a parse error", c.out.Text())
	}
	if _, refused := c.call("no/such/method", nil); refused == nil || refused.Code != -32601 {
		t.Errorf("unknown method: %v, want code -32601", refused)
	}
	if _, refused := c.call("session/prompt", object{"sessionId": 7}); refused == nil || refused.Code != -32602 {
		t.Errorf("wrong type: %v, want code -32602", refused)
	}
}
