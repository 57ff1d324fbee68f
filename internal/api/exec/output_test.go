package exec

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// written is an engine whose one exec has ended and has written pieces, those with
// an odd number to stderr.
func written(t *testing.T, pieces ...string) (e *stub, w *output.Writer) {
	t.Helper()
	store, err := output.Open(t.TempDir(), output.Config{InlineBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if w, err = store.Writer("s", "x"); err != nil {
		t.Fatal(err)
	}
	e = &stub{facts: openSession(), exec: sojourn.Exec{
		ID: "x", Session: "s", State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(0)},
	}}
	for i, p := range pieces {
		add(t, w, i%2 == 1, p)
		if i%2 == 1 {
			e.exec.Result.Stderr += int64(len(p))
		} else {
			e.exec.Result.Stdout += int64(len(p))
		}
	}
	t.Cleanup(func() { w.Close() })
	e.output = func() (*output.Reader, error) { return store.Reader("s", "x", nil) }
	return e, w
}

func add(t *testing.T, w *output.Writer, stderr bool, text string) {
	t.Helper()
	if err := w.Append(w.Total(), stderr, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func finish(t *testing.T, w *output.Writer) {
	t.Helper()
	if _, err := w.Finish(); err != nil {
		t.Fatal(err)
	}
}

// raw returns the bytes of a text as the wire has it.
func raw(t *testing.T, text, encoding string) string {
	t.Helper()
	if encoding != asBase64 {
		return text
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const execPath = sessionsPath + "/s/exec"

func TestOutputIsTrue(t *testing.T) {
	for _, c := range []struct{ stdout, stderr, encoding string }{
		{"plain\n", "", "utf-8"},
		{"é\x00\x1b[0m\u2028<&>", "warn", "utf-8"},
		{"\xff\xfe", "ok", "base64"},
		{"a\xc3", "", "base64"},
		{"\ufffd is written as it is", "", "utf-8"},
	} {
		e, w := written(t, c.stdout, c.stderr)
		finish(t, w)
		r := reading[Reply](t, call{"POST", execPath, `{"command":["a"]}`, nil}.to(e), 200)
		if got := raw(t, r.Stdout, r.StdoutEncoding); got != c.stdout || r.StdoutEncoding != c.encoding {
			t.Errorf("%q came as %q (%s)", c.stdout, got, r.StdoutEncoding)
		}
		if r.Stderr != c.stderr || r.StderrEncoding != "utf-8" || r.Truncated || r.StdoutBytes != int64(len(c.stdout)) {
			t.Errorf("%q: %+v", c.stdout, r)
		}
		r = reading[Reply](t, call{"POST", execPath, `{"command":["a"],"encoding":"base64"}`, nil}.to(e), 200)
		if got := raw(t, r.Stdout, r.StdoutEncoding); got != c.stdout || r.StdoutEncoding != "base64" || r.StderrEncoding != "base64" {
			t.Errorf("%q in base64 came as %q (%s)", c.stdout, got, r.StdoutEncoding)
		}
	}
}

func TestACutSplitsNoCharacter(t *testing.T) {
	const text = "aé€😀"
	e, w := written(t, text, "12345")
	finish(t, w)
	for most := range len(text) + 1 {
		r := reading[Reply](t, call{"POST", execPath, fmt.Sprintf(`{"command":["a"],"maxOutputBytes":%d}`, most), nil}.to(e), 200)
		if r.StdoutEncoding != "utf-8" || !strings.HasPrefix(text, r.Stdout) || len(r.Stdout) > most || len(r.Stdout) < most-3 || strings.ContainsRune(r.Stdout, utf8.RuneError) {
			t.Errorf("%d bytes: %q (%s)", most, r.Stdout, r.StdoutEncoding)
		}
		if r.Truncated != (most < len(text)) || r.StdoutBytes != int64(len(text)) || r.Stderr != "12345"[:min(5, most)] {
			t.Errorf("%d bytes: truncated %v, %d in all, stderr %q", most, r.Truncated, r.StdoutBytes, r.Stderr)
		}
	}
}

func FuzzWholeLeavesWhatACharacterNeeds(f *testing.F) {
	f.Add([]byte("aé€😀\xff\x80"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n = min(max(n, 0), len(b))
		short := whole(b[:n])
		if !bytes.HasPrefix(b, short) || n-len(short) > 3 {
			t.Fatalf("whole(%q) = %q", b[:n], short)
		}
		if utf8.Valid(b) && !utf8.Valid(short) {
			t.Errorf("whole(%q) = %q is no text, as the whole was", b[:n], short)
		}
	})
}

// frame is any event of a stream.
type frame struct {
	id                           string
	Type, Data, Encoding, Error  string
	Offset, StreamOffset         int64
	Code                         any
	Outcome, ExecutionID, Stdout string
	Budget                       *ReplyBudget
}

// follow reads a stream to its end.
func follow(t *testing.T, body io.Reader) (all []frame) {
	t.Helper()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	var id string
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = text
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			f := frame{id: id}
			if err := json.Unmarshal([]byte(text), &f); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			all = append(all, f)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// joined puts the output of frames together.
func joined(t *testing.T, frames []frame) (stdout, stderr string) {
	t.Helper()
	for _, f := range frames {
		switch f.Type {
		case "stdout":
			stdout += raw(t, f.Data, f.Encoding)
		case "stderr":
			stderr += raw(t, f.Data, f.Encoding)
		}
	}
	return stdout, stderr
}

func TestAStreamHasEachByteOnceAndTheEnd(t *testing.T) {
	e, w := written(t, "one\n", "err\xff", "zwei €\n")
	finish(t, w)
	for name, c := range map[string]call{
		"stream": {"POST", execPath, `{"command":["a"],"stream":true}`, nil},
		"accept": {"POST", execPath, `{"command":["a"]}`, http.Header{"Accept": {"text/event-stream"}}},
	} {
		res := c.to(e)
		if res.Code != 200 || res.Header().Get("Content-Type") != "text/event-stream" || res.Header().Get("X-Execution-Id") != "x" {
			t.Fatalf("%s: %d %v", name, res.Code, res.Header())
		}
		frames := follow(t, res.Body)
		var kinds []string
		for _, f := range frames {
			kinds = append(kinds, f.Type)
		}
		if got := strings.Join(kinds, " "); got != "stdout stderr stdout exit done" {
			t.Fatalf("%s: %s", name, got)
		}
		if stdout, stderr := joined(t, frames); stdout != "one\nzwei €\n" || stderr != "err\xff" {
			t.Errorf("%s: %q, %q", name, stdout, stderr)
		}
		if f := frames[2]; f.Offset != 8 || f.StreamOffset != 4 || f.id != "17" || f.Encoding != "utf-8" {
			t.Errorf("%s: the third is %+v", name, f)
		}
		if f := frames[3]; f.Code != 0.0 {
			t.Errorf("%s: the exit is %+v", name, f)
		}
		if f := frames[4]; f.ExecutionID != "x" || f.Outcome != "exit" || f.Budget == nil || f.Stdout != "" {
			t.Errorf("%s: the end is %+v", name, f)
		}
	}
}

// TestAStreamResumesAtAnyByte follows a growing output, and goes on from ids that
// it has seen.
func TestAStreamResumesAtAnyByte(t *testing.T) {
	e, w := written(t)
	type part struct {
		stderr bool
		text   string
	}
	var parts []part
	var all [2]strings.Builder
	var both strings.Builder
	choice := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		piece := []string{"é", "€\n", "\xff", "plain ", strings.Repeat("😀", 9000)}[choice.IntN(5)]
		cut := choice.IntN(len(piece) + 1)
		for _, text := range []string{piece[:cut], piece[cut:]} {
			stderr := choice.IntN(4) == 0
			parts = append(parts, part{stderr, text})
			all[map[bool]int{true: 1}[stderr]].WriteString(text)
			both.WriteString(text)
		}
	}
	e.exec.Result.Stdout, e.exec.Result.Stderr = int64(all[0].Len()), int64(all[1].Len())
	server := httptest.NewServer(New(e, doorman{}, Config{}))
	defer server.Close()
	get := func(from string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+sessionsPath+"/s/executions/x/output", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"ApiKey admin"}, "Accept": {"text/event-stream"}, "Last-Event-Id": {from}}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	live := get("0")
	for _, p := range parts {
		add(t, w, p.stderr, p.text)
	}
	finish(t, w)
	frames := follow(t, live.Body)
	if stdout, stderr := joined(t, frames); stdout != all[0].String() || stderr != all[1].String() {
		t.Errorf("live: %d and %d bytes, want %d and %d, all the same", len(stdout), len(stderr), all[0].Len(), all[1].Len())
	}
	ids := []string{"0", "1", strconv.Itoa(both.Len() - 1), strconv.Itoa(both.Len())}
	for i := 0; i < len(frames); i += 7 {
		ids = append(ids, frames[i].id)
	}
	for _, id := range ids {
		from, err := strconv.Atoi(id)
		if err != nil {
			t.Fatal(err)
		}
		var rest string
		for _, f := range follow(t, get(id).Body) {
			if f.Type == "stdout" || f.Type == "stderr" {
				rest += raw(t, f.Data, f.Encoding)
			}
		}
		if rest != both.String()[from:] {
			t.Fatalf("from %s: %d bytes, want the last %d of %d", id, len(rest), both.Len()-from, both.Len())
		}
	}
}

func TestOutputIsReadInParts(t *testing.T) {
	e, w := written(t, "0123", "abcd", "4567")
	read := func(query string, header http.Header) *httptest.ResponseRecorder {
		return call{"GET", sessionsPath + "/s/executions/x/output" + query, "", header}.to(e)
	}
	if res := read("", nil); res.Body.String() != "0123abcd4567" || res.Header().Get("X-Output-Complete") != "false" || res.Header().Get("ETag") != "" {
		t.Errorf("unfinished: %q %v", res.Body, res.Header())
	}
	finish(t, w)
	for _, c := range []struct {
		query, parts string
		status       int
		body         string
	}{
		{"", "", 200, "0123abcd4567"},
		{"?stream=all&offset=2", "", 200, "23abcd4567"},
		{"?stream=stdout", "", 200, "01234567"},
		{"?stream=stderr&offset=4", "", 200, ""},
		{"?stream=stdout", "bytes=3-5", 206, "345"},
		{"?stream=stdout&offset=4", "bytes=-2", 206, "67"},
	} {
		res := read(c.query, http.Header{"Range": {c.parts}})
		if res.Code != c.status || res.Body.String() != c.body || res.Header().Get("X-Output-Complete") != "true" || res.Header().Get("ETag") == "" {
			t.Errorf("%s %s: %d %q %v, want %d %q", c.query, c.parts, res.Code, res.Body, res.Header(), c.status, c.body)
		}
	}
	refusal(t, read("?offset=13", nil), 400)
	if body := refusal(t, read("", http.Header{"Range": {"bytes=12-"}}), 416); body.Code != "INVALID_REQUEST" {
		t.Errorf("a range beyond the end: %+v", body)
	}
}

func TestInputIsHandedOnInPieces(t *testing.T) {
	e := &stub{facts: openSession()}
	input := strings.Repeat("0123456789abcdef", inputPiece/8) // two pieces
	path := sessionsPath + "/s/executions/x/stdin"
	octets := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}} // what curl says of any data
	out := reading[StdinBody](t, call{"POST", path + "?offset=0", input, octets}.to(e), 200)
	if string(e.written) != input || e.closed || *out.Offset != int64(len(input)) || out.Closed {
		t.Errorf("%d bytes written of %d, closed %v: %+v", len(e.written), len(input), e.closed, out)
	}
	out = reading[StdinBody](t, call{"POST", path + "?close=true&offset=" + strconv.Itoa(len(input)), "x", octets}.to(e), 200)
	if string(e.written) != input+"x" || !e.closed || !out.Closed {
		t.Errorf("%d bytes written, closed %v: %+v", len(e.written), e.closed, out)
	}
	e.written, e.closed = nil, false
	if out = reading[StdinBody](t, call{"POST", path + "?close=true", "", nil}.to(e), 200); !e.closed || out.Bytes != 0 || out.Offset != nil {
		t.Errorf("an end alone: closed %v, %+v", e.closed, out)
	}
}

func TestOutcomesAreTrue(t *testing.T) {
	start := time.Date(2026, 8, 11, 9, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		exec                  sojourn.Exec
		outcome, code, signal string
		timedOut              bool
	}{
		"zero":        {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(0)}}, "exit", "0", "", false},
		"137":         {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(137)}}, "exit", "137", "", false},
		"killed":      {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Signal: "SIGKILL"}, Reason: sojourn.ExecOutOfMemory}, "signal", "137", "SIGKILL", false},
		"terminated":  {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Signal: "SIGTERM"}, Reason: sojourn.ExecCancelled}, "signal", "143", "SIGTERM", false},
		"real time":   {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Signal: "SIG34"}}, "signal", "162", "SIG34", false},
		"timed out":   {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Signal: "SIGTERM"}, Reason: sojourn.ExecTimeout}, "timeout", "124", "SIGTERM", true},
		"out of time": {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(3)}, Reason: sojourn.ExecTimeout}, "timeout", "124", "", true},
		"cancelled":   {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(3)}, Reason: sojourn.ExecCancelled}, "exit", "3", "", false},
		"forgotten":   {sojourn.Exec{State: sojourn.ExecEnded, Reason: sojourn.ExecSandboxLost}, "unknown", "null", "", false},
		"missing":     {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Failure: "no such program", Code: new(127)}, Reason: sojourn.ExecNotStarted}, "not_started", "127", "", false},
		"bad dir":     {sojourn.Exec{State: sojourn.ExecEnded, Result: sojourn.ExecResult{Failure: "no such directory"}, Reason: sojourn.ExecNotStarted}, "not_started", "null", "", false},
		"lost":        {sojourn.Exec{State: sojourn.ExecLost, StartedAt: start, EndedAt: start.Add(time.Minute), Reason: sojourn.ExecSandboxLost}, "unknown", "null", "", false},
		"not yet":     {sojourn.Exec{State: sojourn.ExecRunning, StartedAt: start}, "", "null", "", false},
		"in its turn": {sojourn.Exec{State: sojourn.ExecQueued}, "", "null", "", false},
	} {
		o := outcomeOf(c.exec, start.Add(time.Hour))
		code, err := json.Marshal(o.ExitCode)
		if err != nil || o.Outcome != c.outcome || string(code) != c.code || o.Signal != c.signal || o.TimedOut != c.timedOut || o.Reason != string(c.exec.Reason) {
			t.Errorf("%s: %+v, exit code %s", name, o, code)
		}
		if own := c.exec.Result.Code; o.TimedOut && o.ProcessExitCode != own || !o.TimedOut && o.ProcessExitCode != nil {
			t.Errorf("%s: the process exited with %v", name, o.ProcessExitCode)
		}
		if unknown := c.exec.Reason == sojourn.ExecSandboxLost; (o.Error != "") != (unknown || c.exec.Result.Failure != "") {
			t.Errorf("%s: error %q", name, o.Error)
		}
	}
	o := outcomeOf(sojourn.Exec{
		State: sojourn.ExecEnded, Cost: sojourn.Cent + 1,
		Result: sojourn.ExecResult{Code: new(0), RunTime: 1500 * time.Millisecond, CPUTime: time.Second, Stdout: 5, Stderr: 7, KeptNote: "limit"},
	}, start)
	if o.CostCents != 2 || o.CostMicroCents != 1_000_001 || o.DurationMs != 1500 || o.CPUTimeMs != 1000 || o.StdoutBytes != 5 || o.StderrBytes != 7 || o.OutputCut != "limit" {
		t.Errorf("the figures are %+v", o)
	}
}

func TestARefusedExecIsAConflict(t *testing.T) {
	for reason, code := range map[sojourn.ExecReason]string{
		sojourn.ExecBusy: "SESSION_BUSY", sojourn.ExecBudget: "BUDGET_EXCEEDED", sojourn.ExecPaused: "INVALID_STATE", sojourn.ExecRejected: "INVALID_STATE",
	} {
		e := &stub{facts: openSession(), exec: sojourn.Exec{ID: "x", Session: "s", State: sojourn.ExecRefused, Reason: reason}}
		body := refusal(t, call{"POST", execPath, `{"command":["a"]}`, nil}.to(e), 409)
		if body.Code != code || body.Details["executionId"] != "x" || body.Details["reason"] != string(reason) {
			t.Errorf("%s: %+v, want %s", reason, body, code)
		}
	}
}

func TestAParkedExecIsAccepted(t *testing.T) {
	f := openSession()
	f.Open = []sojourn.Interaction{{ID: "i", Session: "s", Exec: "x", Kind: "approval", State: sojourn.InteractionOpen, ExpiresAt: time.Date(2026, 8, 11, 10, 0, 0, 0, time.UTC)}}
	e := &stub{facts: f, exec: sojourn.Exec{ID: "x", Session: "s", State: sojourn.ExecParked}}
	r := reading[Reply](t, call{"POST", execPath, `{"command":["a"],"requireApproval":true,"stream":true}`, nil}.to(e), 202)
	if r.Status != "pending_approval" || r.ExitCode != nil || r.Approval == nil || r.Approval.ID != "i" || r.Approval.ExpiresAt == "" {
		t.Errorf("%+v", r)
	}
	out := reading[ApprovedBody](t, call{"POST", sessionsPath + "/s/approve", `{"decision":"approve","comment":"fine"}`, nil}.to(e), 200)
	if e.answered != (sojourn.Answer{OptionID: "approve", Comment: "fine"}) || out.Approval.Status != "approved" || out.Approval.ID != "i" {
		t.Errorf("answered %+v: %+v", e.answered, out.Approval)
	}
	e.facts.Open = append(e.facts.Open, sojourn.Interaction{ID: "j", Exec: "y", State: sojourn.InteractionOpen})
	refusal(t, call{"POST", sessionsPath + "/s/approve", `{"decision":"approve"}`, nil}.to(e), 400)
	e.facts.Open = nil
	if body := refusal(t, call{"POST", sessionsPath + "/s/approve", `{"decision":"approve"}`, nil}.to(e), 409); body.Code != "INVALID_STATE" {
		t.Errorf("with nothing open: %+v", body)
	}
}

func FuzzFramesSayWhatWasWritten(f *testing.F) {
	f.Add([]byte("a\"\\\n\r\t\x00\x1f\x7f é\u2028😀"), int64(5), int64(3), true)
	f.Add([]byte("\xff\xfe"), int64(0), int64(0), false)
	f.Fuzz(func(t *testing.T, data []byte, offset, streamOffset int64, stderr bool) {
		if len(data) == 0 || offset < 0 || streamOffset < 0 || offset > 1<<50 {
			t.Skip("no piece")
		}
		p := output.Piece{Offset: offset, StreamOffset: streamOffset, Stderr: stderr, Data: data}
		for _, always64 := range []bool{false, true} {
			text := appendOutput(nil, p, always64, false)
			if bytes.Count(text, []byte("\n")) != 3 || bytes.ContainsAny(text, "\r") {
				t.Fatalf("%q is not one event", text)
			}
			frames := follow(t, bytes.NewReader(text))
			if len(frames) != 1 {
				t.Fatalf("%q has %d events", text, len(frames))
			}
			got := frames[0]
			kind := map[bool]string{true: "stderr"}[stderr]
			if kind == "" {
				kind = "stdout"
			}
			want := frame{id: strconv.FormatInt(offset+int64(len(data)), 10), Type: kind, Data: got.Data, Encoding: got.Encoding, Offset: offset, StreamOffset: streamOffset}
			if got != want || raw(t, got.Data, got.Encoding) != string(data) || always64 && got.Encoding != asBase64 {
				t.Errorf("%q became %+v", data, got)
			}
		}
	})
}

// Whoever stands behind all that was written would miss bytes and not know it.
func TestAStreamFromBehindTheEndIsRefused(t *testing.T) {
	t.Parallel() // a running exec is given time to write so far
	const path = sessionsPath + "/s/executions/x/output"
	events := http.Header{"Accept": {"text/event-stream"}}
	last := http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {"7"}}
	for _, state := range []sojourn.ExecState{sojourn.ExecEnded, sojourn.ExecRunning} {
		e, w := written(t, "abc", "def")
		if e.exec.State = state; state == sojourn.ExecEnded {
			finish(t, w)
		}
		if r := refusal(t, call{"GET", path + "?offset=7", "", events}.to(e), 400); r.Code != "INVALID_REQUEST" || !strings.Contains(r.Error, "6 bytes") {
			t.Errorf("%s: %+v", state, r)
		}
		if r := refusal(t, call{"GET", path, "", last}.to(e), 400); r.Code != "INVALID_CURSOR" {
			t.Errorf("%s, Last-Event-ID: %+v", state, r)
		}
	}
	e, w := written(t, "abc", "def")
	finish(t, w)
	if res := (call{"GET", path + "?offset=6", "", events}).to(e); res.Code != 200 || !strings.Contains(res.Body.String(), `"done"`) {
		t.Errorf("from the end itself: %d %s", res.Code, res.Body)
	}
}
