package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// contractHeaders are the headers that a contract speaks about.
var contractHeaders = []string{"Content-Type", "Location", "Retry-After", "Allow", "Www-Authenticate"}

// http makes a call and prints the answer.
func (s *script) http(ts *testscript.TestScript, neg bool, args []string) {
	key, header := ts.Getenv("ADMIN"), http.Header{}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-key":
			key = args[1]
		case "-H":
			name, value, _ := strings.Cut(args[1], ":")
			header[http.CanonicalHeaderKey(name)] = []string{strings.TrimSpace(value)}
		default:
			ts.Fatalf("http has no option %s", args[0])
		}
		args = args[2:]
	}
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: http [-key KEY] [-H NAME:VALUE] METHOD PATH [BODY]")
	}
	var body []byte
	if len(args) == 3 {
		body = []byte(args[2])
		if file, ok := strings.CutPrefix(args[2], "@"); ok {
			text, err := os.ReadFile(ts.MkAbs(file))
			ts.Check(err)
			body = text
		}
		if header.Get("Content-Type") == "" {
			header.Set("Content-Type", "application/json")
		}
	}
	if key != "none" {
		header.Set("Authorization", s.scheme+" "+key)
	}
	res, text := s.call(ts, args[0], args[1], header, body)
	if ok := res.StatusCode < 300; ok == neg {
		ts.Fatalf("%s %s: %s\n%s", args[0], args[1], res.Status, text)
	}
	s.print(ts, res, text)
}

// call makes a call and keeps its answer.
func (s *script) call(ts *testscript.TestScript, method, path string, header http.Header, body []byte) (*http.Response, []byte) {
	r, err := http.NewRequest(method, s.server.URL+path, bytes.NewReader(body))
	ts.Check(err)
	r.Header = header
	res, err := http.DefaultClient.Do(r)
	ts.Check(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	ts.Check(err)
	s.last = nil
	if json.Unmarshal(text, &s.last) != nil {
		s.last = nil
	}
	return res, text
}

// print writes an answer for a golden file.
func (s *script) print(ts *testscript.TestScript, res *http.Response, text []byte) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d\n", res.StatusCode)
	for _, name := range contractHeaders {
		if v := res.Header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString("\n")
	if json.Indent(&b, text, "", "  ") != nil {
		b.Write(text)
	}
	if !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
		b.WriteByte('\n')
	}
	io.WriteString(ts.Stdout(), s.mask(b.String()))
}

var (
	anyID      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anyInstant = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)
	anyName    = regexp.MustCompile(`scr_[a-z0-9]{26}`) // of the scripted agent's conversations
	anyHint    = regexp.MustCompile(`"hint": ".{4}"`)
	anyCount   = regexp.MustCompile(`"(entries|bytes|storedBytes|lastSequence|lastSeq|last_seq|durationMs|cpuTimeMs|maxRssBytes)":( ?)\d+`)
	anyAge     = regexp.MustCompile(`"(durationSeconds|duration_seconds)":( ?)\d+(\.\d+)?`)
	anySecret  = regexp.MustCompile(`sjn_([a-z]+)_[A-Za-z0-9_-]{43}`)
)

// mask hides what differs from run to run: a named value by its name.
func (s *script) mask(text string) string {
	for value, name := range s.names {
		text = strings.ReplaceAll(text, value, "$"+name)
	}
	text = anySecret.ReplaceAllString(text, "sjn_${1}_<secret>")
	text = anyHint.ReplaceAllString(text, `"hint": "<hint>"`)
	text = anyCount.ReplaceAllString(text, `"$1":$2<n>`)
	text = anyAge.ReplaceAllString(text, `"$1":$2<n>`)
	text = anyName.ReplaceAllString(text, "<conversation>")
	text = anyID.ReplaceAllString(text, "<id>")
	text = strings.ReplaceAll(text, s.server.URL, "$URL")
	return anyInstant.ReplaceAllString(text, "<time>")
}

// at returns what is at a path of the last answer, such as runs.0.id.
func (s *script) at(path string) (any, bool) {
	v := s.last
	for _, step := range strings.Split(path, ".") {
		switch node := v.(type) {
		case map[string]any:
			next, ok := node[step]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(node) {
				return nil, false
			}
			v = node[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// text writes a value of an answer as a script does.
func text(v any, ok bool) string {
	switch v := v.(type) {
	case nil:
		if !ok {
			return "absent"
		}
		return "null"
	case string:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// set names a value of the last answer.
func (s *script) set(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: set NAME PATH")
	}
	v, ok := s.at(args[1])
	if !ok {
		ts.Fatalf("the last answer has no %s: %s", args[1], text(s.last, true))
	}
	ts.Setenv(args[0], text(v, ok))
	if value, isText := v.(string); isText && !anyInstant.MatchString(value) {
		s.names[value] = args[0]
	}
}

// matches reports whether got is want, or matches it when that is "~REGEXP".
func matches(got, want string) bool {
	if pattern, ok := strings.CutPrefix(want, "~"); ok {
		return regexp.MustCompile(pattern).MatchString(got)
	}
	return got == want
}

// is compares a value of the last answer.
func (s *script) is(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: is PATH VALUE")
	}
	got, want := text(s.at(args[0])), args[1]
	if matches(got, want) == neg {
		ts.Fatalf("%s is %s, want %s (not: %v)\n%s", args[0], got, want, neg, text(s.last, true))
	}
}

// instantAt returns the instant at a path of the last answer.
func (s *script) instantAt(ts *testscript.TestScript, path string) time.Time {
	t, err := time.Parse("2006-01-02T15:04:05.000Z", text(s.at(path)))
	if err != nil {
		ts.Fatalf("%s: %v", path, err)
	}
	return t
}

// nearness is what a busy machine may take to bring an answer.
const nearness = 8 * time.Second

// near checks how far an instant is from now.
func (s *script) near(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: near PATH D")
	}
	d := time.Until(s.instantAt(ts, args[0])) - duration(ts, args[1])
	if (d.Abs() < nearness) == neg {
		ts.Fatalf("%s is %v off", args[0], d)
	}
}

// later checks that an instant of the last answer is behind another one.
func (s *script) later(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: later PATH INSTANT")
	}
	than, err := time.Parse("2006-01-02T15:04:05.000Z", args[1])
	ts.Check(err)
	if got := s.instantAt(ts, args[0]); got.After(than) == neg {
		ts.Fatalf("%s is %v, and %v is the other", args[0], got, than)
	}
}
