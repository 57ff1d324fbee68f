package modeltest_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/gateway/modeltest"
)

var serve = flag.String("serve", "", "address at which TestServe serves the model server until it is interrupted")

// TestServe is the way to run the model server by hand:
//
//	go test ./internal/gateway/modeltest -run TestServe -timeout 0 -v -serve 127.0.0.1:8099
func TestServe(t *testing.T) {
	if *serve == "" {
		t.Skip("it serves only when it is asked to, with -serve ADDRESS")
	}
	l, err := net.Listen("tcp", *serve)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("http://%s\n", l.Addr())
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt)
	s := &http.Server{Handler: &modeltest.Server{Log: os.Stdout}}
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	<-ended
	s.Close()
	<-done
}

// api is one way to ask the server.
type api struct {
	name, path string
	body       func(script, tools, history string, stream bool) string
	tools      string // a shell and a file writer
	called     string // an earlier turn that has called a tool and got its result
}

var apis = []api{
	{
		"messages", "/v1/messages",
		func(script, tools, history string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"tools":%s,"messages":[{"role":"user","content":%s}%s]}`, stream, tools, script, history)
		},
		`[{"name":"Bash","input_schema":{"properties":{"command":{"type":"string"},"why":{"type":"string"}},"required":["command","why"]}}]`,
		`,{"role":"assistant","content":[{"type":"tool_use","name":"Bash","id":"x","input":{}}]},{"role":"user","content":[{"type":"tool_result","content":"out"}]}`,
	},
	{
		"completions", "/v1/chat/completions",
		func(script, tools, history string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"stream_options":{"include_usage":true},"tools":%s,"messages":[{"role":"user","content":%s}%s]}`, stream, tools, script, history)
		},
		`[{"type":"function","function":{"name":"bash","parameters":{"properties":{"command":{"type":"string"},"why":{"type":"string"}},"required":["command","why"]}}}]`,
		`,{"role":"assistant","tool_calls":[{"function":{"name":"bash"}}]},{"role":"tool","content":"out"}`,
	},
	{
		"responses", "/v1/responses",
		func(script, tools, history string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"tools":%s,"input":[{"role":"user","content":[{"type":"input_text","text":%s}]}%s]}`, stream, tools, script, history)
		},
		`[{"type":"function","name":"shell","parameters":{"properties":{"command":{"type":"array"},"why":{"type":"string"}},"required":["command","why"]}}]`,
		`,{"type":"function_call","name":"shell","arguments":"{}"},{"type":"function_call_output","output":"out"}`,
	},
	{
		"content", "/v1beta/models/m:",
		func(script, tools, history string, _ bool) string {
			return fmt.Sprintf(`{"tools":[{"functionDeclarations":%s}],"contents":[{"role":"user","parts":[{"text":%s}]}%s]}`, tools, script, history)
		},
		`[{"name":"run_shell_command","parametersJsonSchema":{"properties":{"command":{"type":"string"},"why":{"type":"string"}},"required":["command","why"]}}]`,
		`,{"role":"model","parts":[{"functionCall":{"name":"run_shell_command"}}]},{"role":"user","parts":[{"functionResponse":{"response":{"output":"out"}}}]}`,
	},
}

// ask sends a script and returns status and answer.
func (a api) ask(t *testing.T, url, script, history string, stream bool) (*http.Response, string) {
	t.Helper()
	text, err := json.Marshal(script)
	if err != nil {
		t.Fatal(err)
	}
	path := a.path
	if a.name == "content" {
		path += map[bool]string{false: "generateContent", true: "streamGenerateContent?alt=sse"}[stream]
	}
	resp, err := http.Post(url+path, "application/json", strings.NewReader(a.body(string(text), a.tools, history, stream)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(answer)
}

// every runs a claim for all APIs, streamed and whole.
func every(t *testing.T, claim func(t *testing.T, a api, s *modeltest.Server, url string, stream bool)) {
	t.Parallel()
	for _, a := range apis {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s streamed=%v", a.name, stream), func(t *testing.T) {
				t.Parallel()
				s := &modeltest.Server{}
				claim(t, a, s, s.Start(t), stream)
			})
		}
	}
}

const script = "@mock think hmm\n@mock say first\n@mock run ls -l\n@mock lasttool\n@mock say finished"

func TestScriptIsFollowedCallByCall(t *testing.T) {
	every(t, func(t *testing.T, a api, s *modeltest.Server, url string, stream bool) {
		_, first := a.ask(t, url, script, "", stream)
		for _, want := range []string{"hmm", "first", "ls -l", `why\":\"mock`} {
			// Arguments are JSON in JSON, but for two APIs that have objects.
			if !strings.Contains(first, want) && !strings.Contains(first, strings.ReplaceAll(want, `\`, "")) && !stream {
				t.Errorf("the first reply has no %s: %s", want, first)
			}
		}
		if strings.Contains(first, "finished") {
			t.Errorf("the first reply has what comes after the tool: %s", first)
		}
		_, second := a.ask(t, url, script, a.called, stream)
		if !strings.Contains(second, "RESULT") || strings.Contains(second, "first") || !stream && !strings.Contains(second, "finished") {
			t.Errorf("the second reply is %s, want the result and what is behind the tool", second)
		}
		records := s.Records()
		if len(records) != 2 || records[1].Model != "m" || records[1].Stream != stream || len(records[1].History) != 3 || len(records[1].Tools) != 1 {
			t.Errorf("the records are %+v", records)
		}
	})
}

func TestPromptWithoutDirectivesTellsTheTurns(t *testing.T) {
	every(t, func(t *testing.T, a api, _ *modeltest.Server, url string, stream bool) {
		// A stream cuts the sentence into pieces.
		if _, got := a.ask(t, url, "hello", a.called, stream); !strings.Contains(got, "mock rep") {
			t.Errorf("%s, want the number of the turn", got)
		}
	})
}

func TestUsageIsAsTheScriptSays(t *testing.T) {
	every(t, func(t *testing.T, a api, _ *modeltest.Server, url string, stream bool) {
		_, got := a.ask(t, url, "@mock usage 1234 56\n@mock say hi", "", stream)
		if !strings.Contains(got, ":1234") || !strings.Contains(got, ":56") {
			t.Errorf("%s, want 1234 and 56 tokens", got)
		}
	})
}

func TestErrorsHaveTheirStatusAndHint(t *testing.T) {
	every(t, func(t *testing.T, a api, _ *modeltest.Server, url string, stream bool) {
		resp, got := a.ask(t, url, "@mock error 429\n@mock retry 9", "", stream)
		if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "9" || !strings.Contains(got, `"error"`) {
			t.Errorf("%d %v %s", resp.StatusCode, resp.Header, got)
		}
	})
}

func TestRequestsAreShownAndForgotten(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := &modeltest.Server{Key: "the-key", Log: &log}
	url := s.Start(t)
	for _, key := range []string{"wrong", "the-key"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/messages?beta=true", strings.NewReader(`{"model":"m",  "messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if want := map[string]int{"wrong": 401, "the-key": 200}[key]; resp.StatusCode != want {
			t.Errorf("key %s: %d, want %d", key, resp.StatusCode, want)
		}
	}
	resp, err := http.Get(url + "/_mock/requests")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var shown []modeltest.Record
	if err := json.NewDecoder(resp.Body).Decode(&shown); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 2 || shown[1].Query != "beta=true" || string(s.Records()[1].Body) != `{"model":"m",  "messages":[]}` || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("shown %+v, logged %s", shown, log.String())
	}
	s.Reset()
	if n := len(s.Records()); n != 0 {
		t.Errorf("%d records after a reset", n)
	}
}

func TestLastPartWithDirectivesCounts(t *testing.T) {
	t.Parallel()
	s := &modeltest.Server{}
	url := s.Start(t)
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"@mock say cancelled"},{"type":"text","text":"@mock say now"},{"type":"text","text":"<system-reminder>x"}]}]}`
	resp, err := http.Post(url+"/v1/messages", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(got), `"text":"now"`) {
		t.Errorf("%s, %v", got, err)
	}
}
