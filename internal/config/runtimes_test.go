package config

import (
	"strings"
	"testing"
)

func TestModelsAndRuntimes(t *testing.T) {
	c, err := Parse([]byte(`
models:
  countChatUsage: true
  providers:
    - name: here
      api: openai
      baseURL: http://127.0.0.1:8080/v1
      models: [{name: small}, {name: large, upstream: llama, price: {input: 0.00000001, output: 12.5}}]
    - {name: there, api: anthropic, baseURL: "https://api.test", valueEnv: KEY, models: [{name: large}]}
runtimes:
  codex: {model: small, approvals: ask, exact: false, env: {RUST_LOG: debug}}
defaultRuntime: codex
`))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Models.Providers
	if len(p) != 2 || p[0].HasKey() || !p[1].HasKey() || p[0].Models[0].Price != nil || !c.Models.CountChatUsage {
		t.Errorf("models: %+v", c.Models)
	}
	if got := *p[0].Models[1].Price; got != (Price{Input: 1, Output: 1250 * 1_000_000}) {
		t.Errorf("price %+v, want an input of 1 and an output of 1250 million millionths of a cent", got)
	}
	r := c.Runtimes["codex"]
	if r.Model != "small" || r.Approvals != "ask" || r.Exact == nil || *r.Exact || r.Env["RUST_LOG"] != "debug" || c.DefaultRuntime != "codex" {
		t.Errorf("runtimes: %+v", c.Runtimes)
	}
}

func TestModelsAndRuntimesAreChecked(t *testing.T) {
	const provider = `models: {providers: [{name: a, api: openai, baseURL: "http://a/v1", models: [{name: m}]`
	for text, say := range map[string]string{
		`models: {providers: [{api: openai, baseURL: "http://a", models: [{name: m}]}]}`:                                     "name of its own",
		provider + `}, {name: a, api: openai, baseURL: "http://b", models: [{name: n}]}]}`:                                   "name of its own",
		`models: {providers: [{name: a, api: grpc, baseURL: "http://a", models: [{name: m}]}]}`:                              "none of anthropic",
		`models: {providers: [{name: a, api: openai, baseURL: "ftp://a", models: [{name: m}]}]}`:                             "baseURL",
		`models: {providers: [{name: a, api: openai, baseURL: "http://u:p@a", models: [{name: m}]}]}`:                        "baseURL",
		`models: {providers: [{name: a, api: openai, baseURL: "http://a"}]}`:                                                 "no models",
		`models: {providers: [{name: a, api: openai, baseURL: "http://a", models: [{}]}]}`:                                   "no name",
		`models: {providers: [{name: a, api: openai, baseURL: "http://a", key: x, models: [{name: m}]}]}`:                    "key",
		`models: {providers: [{name: a, api: openai, baseURL: "http://a", valueEnv: A, valueFile: b, models: [{name: m}]}]}`: "one of",
		`models: {providers: [{name: a, api: openai, baseURL: "http://a", models: [{name: m, price: {input: -1}}]}]}`:        "amount",
		`runtimes: {Codex: {}}`:                                       "small letters",
		`runtimes: {a: {comand: [x]}}`:                                "comand",
		`runtimes: {a: {api: soap}}`:                                  "api",
		`runtimes: {a: {approvals: maybe}}`:                           "approvals",
		`runtimes: {a: {files: {../x: y}}}`:                           "below the home",
		`runtimes: {a: {files: {/etc/x: y}}}`:                         "below the home",
		`runtimes: {a: {state: ["[", "x"]}}`:                          "pattern",
		`runtimes: {a: {state: [../**]}}`:                             "pattern",
		`runtimes: {a: {resume: [retry]}}`:                            "resume",
		`runtimes: {a: {settings: [{value: x}]}}`:                     "settings",
		`runtimes: {a: {settings: [{option: x}]}}`:                    "settings",
		`runtimes: {a: {settings: [{mode: x, option: y, value: z}]}}`: "settings",
	} {
		if c, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s was read as %+v", text, c)
		} else if !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v; want something about %q", text, err, say)
		}
	}
}

func TestMoneyIsExact(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 100_000_000, "0.1": 10_000_000, "0.00000001": 1, "1000000": 100_000_000_000_000, "3.75": 375_000_000,
	} {
		if got, err := ParseMoney(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1e3", "1/3", "0.000000001", "1000000.1", "1.", ".5", "1.2.3", "0x10", "1_0", "free", strings.Repeat("9", 40)} {
		if got, err := ParseMoney(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
}
