package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestSampleIsValid reads the sample as it is, and once more with all of its
// examples turned on: none of them may be out of date.
func TestSampleIsValid(t *testing.T) {
	c, err := Parse([]byte(Sample))
	if err != nil {
		t.Fatalf("sample.yaml: %v", err)
	}
	if c.Sandbox.Network.Mode != "none" || c.Warm != (Warm{}) {
		t.Errorf("the sample changes defaults: %+v", c)
	}
	on := regexp.MustCompile(`(?m)^( *)#([^ \n])`).ReplaceAllString(Sample, "$1$2")
	c, err = Parse([]byte(on))
	if err != nil {
		t.Fatalf("sample.yaml with its examples: %v\n%s", err, on)
	}
	if c.Sandbox.Limits.CPUs != 2000 || c.Images.Names["base"] == "" || len(c.Network.Credentials) != 1 ||
		c.Network.Credentials[0].ValueFile == "" || c.Driver.Docker.Runtime == "" ||
		len(c.Models.Providers) != 1 || c.Models.Providers[0].Models[0].Price.Output != 2*microCents ||
		c.Runtimes["ours"].Files[".ours/settings.json"] == "" || !c.Runtimes["gemini"].Disabled || c.DefaultRuntime == "" {
		t.Errorf("examples of sample.yaml do not stand where they belong: %+v", c)
	}
}

func TestParse(t *testing.T) {
	c, err := Parse([]byte(`
sandbox:
  image: agents
  idle: snapshot
  limits: {memory: 512M, disk: 2GiB, cpus: 0.5, processes: 64, openFiles: 256}
  network: {mode: allow, allow: [github.com], credentials: [github]}
images:
  names: {agents: "ghcr.io/acme/agents:1"}
  refresh: 90s
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Sandbox{
		Image: "agents", Idle: "snapshot",
		Limits:  Limits{Memory: 512 << 20, Disk: 2 << 30, CPUs: 500, Processes: 64, OpenFiles: 256},
		Network: Policy{Mode: "allow", Allow: []string{"github.com"}, Credentials: []string{"github"}},
	}
	if !reflect.DeepEqual(c.Sandbox, want) {
		t.Errorf("sandbox: %+v, want %+v", c.Sandbox, want)
	}
	if time.Duration(c.Images.Refresh) != 90*time.Second || c.Images.Names["agents"] == "" {
		t.Errorf("images: %+v", c.Images)
	}
	for name, text := range map[string]string{
		"unknown key":        "sandbocks: {}",
		"unknown inner key":  "sandbox: {limits: {mem: 1G}}",
		"a size of nothing":  "sandbox: {limits: {memory: 0}}",
		"a size that is not": "sandbox: {limits: {memory: lots}}",
		"a size too large":   "sandbox: {limits: {memory: 99999999T}}",
		"a list for a size":  "sandbox: {limits: {memory: [1]}}",
		"cores that are not": "sandbox: {limits: {cpus: all}}",
		"cores of nan":       "sandbox: {limits: {cpus: .nan}}",
		"negative processes": "sandbox: {limits: {processes: -1}}",
		"min above max":      "warm: {min: 3, max: 2}",
		"two documents":      "warm: {max: 1}\n---\nwarm: {max: 2}",
		"no YAML":            "{",
		"a duration":         "images: {refresh: often}",
		"a key twice":        "warm: {max: 1, max: 2}",
	} {
		if got, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s was read as %+v", name, got)
		}
	}
}

func TestLoad(t *testing.T) {
	if c, err := Load(""); err != nil || !reflect.DeepEqual(c, Config{}) {
		t.Errorf("no file: %+v, %v", c, err)
	}
	file := filepath.Join(t.TempDir(), "sojourn.yaml")
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte("warm: {max: 4}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(file); err != nil || c.Warm.Max != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(file, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil {
		t.Error("an enormous file was read")
	}
}

func TestSecretIsFetchedAndNeverShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(" s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOJOURN_TEST_SECRET", "s3cret")
	for _, s := range []Secret{{ValueFile: file}, {ValueEnv: "SOJOURN_TEST_SECRET"}} {
		if got, err := s.Read(); err != nil || got != "s3cret" {
			t.Errorf("%+v: %q, %v", s, got, err)
		}
	}
	for _, s := range []Secret{{}, {ValueFile: file, ValueEnv: "X"}, {ValueEnv: "SOJOURN_TEST_NONE"}, {ValueFile: file + "x"}} {
		if _, err := s.Read(); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
