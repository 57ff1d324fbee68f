package config

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Sample is a configuration file with all that there is, commented.
//
//go:embed sample.yaml
var Sample string

// maxFile bounds the file.
const maxFile = 1 << 20

// Config is the whole file.
type Config struct {
	Sandbox Sandbox `yaml:"sandbox"`
	Driver  Driver  `yaml:"driver"`
	Warm    Warm    `yaml:"warm"`
	Images  Images  `yaml:"images"`
	// MCPServers are given to every agent that takes them.
	MCPServers []MCPServer `yaml:"mcpServers"`
	Network    Network     `yaml:"network"`
	Models     Models      `yaml:"models"`
	Rates      Rates       `yaml:"rates"`
	Calls      Calls       `yaml:"calls"`
	// Runtimes are changes of the table of agent programs, by id.
	Runtimes map[string]Runtime `yaml:"runtimes"`
	// DefaultRuntime is that of sessions which name none; "" is the script agent.
	DefaultRuntime string `yaml:"defaultRuntime"`
}

// Calls bounds how often one key may call. Zero is the default.
type Calls struct {
	PerSecond float64 `yaml:"perSecond"` // below zero is no limit
	Burst     int     `yaml:"burst"`     // at once
}

// Sandbox is what sessions get that do not say otherwise.
type Sandbox struct {
	Image   string `yaml:"image"`
	Idle    string `yaml:"idle"` // destroy or snapshot
	Limits  Limits `yaml:"limits"`
	Network Policy `yaml:"network"`
	// UnresponsiveAfter is how long a sandbox may answer nothing before it is ended.
	// Zero is the default.
	UnresponsiveAfter Duration `yaml:"unresponsiveAfter"`
}

// Limits bounds one sandbox. 0 is no limit.
type Limits struct {
	Memory    Size  `yaml:"memory"`
	Disk      Size  `yaml:"disk"`
	CPUs      Cores `yaml:"cpus"`
	Processes int   `yaml:"processes"`
	OpenFiles int   `yaml:"openFiles"`
}

// Policy is what sandboxes may reach.
type Policy struct {
	Mode        string   `yaml:"mode"` // none, allow or open
	Allow       []string `yaml:"allow"`
	Credentials []string `yaml:"credentials"`
}

// Driver is what the drivers need to know.
type Driver struct {
	Runsc  string `yaml:"runsc"` // of the gvisor driver, absolute; "" is the one that is compiled in
	Docker Docker `yaml:"docker"`
}

// Docker is what the docker and microvm drivers need to know.
type Docker struct {
	Host    string `yaml:"host"`
	Runtime string `yaml:"runtime"`
}

// Warm says how many sandboxes are kept ready.
type Warm struct {
	Min int `yaml:"min"`
	Max int `yaml:"max"`
}

// Images says which root file systems there are.
type Images struct {
	Names       map[string]string   `yaml:"names"`
	Allow       []string            `yaml:"allow"`
	Platform    string              `yaml:"platform"`
	Insecure    []string            `yaml:"insecure"`
	Mirrors     map[string][]string `yaml:"mirrors"`
	Credentials []Registry          `yaml:"credentials"`
	// DockerConfig is the path of a file in the form of Docker's config.json.
	DockerConfig string   `yaml:"dockerConfig"`
	Cache        Size     `yaml:"cache"`
	MaxImage     Size     `yaml:"maxImage"`
	Pinned       []string `yaml:"pinned"`
	Refresh      Duration `yaml:"refresh"`
}

// Registry is how to log in at one.
type Registry struct {
	Host         string `yaml:"host"`
	User         string `yaml:"user"`
	PasswordFile string `yaml:"passwordFile"`
}

// Network is the way out of sandboxes.
type Network struct {
	AllowPrivate []string     `yaml:"allowPrivate"`
	Credentials  []Credential `yaml:"credentials"`
}

// Credential is a secret that the broker may use for named hosts.
type Credential struct {
	Name      string   `yaml:"name"`
	Hosts     []string `yaml:"hosts"`
	Header    string   `yaml:"header"`
	Prefix    string   `yaml:"prefix"`
	User      string   `yaml:"user"`
	Env       string   `yaml:"env"` // in the sandbox: holds the placeholder
	PlainHTTP bool     `yaml:"plainHTTP"`
	Secret    `yaml:",inline"`
}

// Secret says where a secret is. Exactly one of its fields is set.
type Secret struct {
	ValueFile string `yaml:"valueFile"`
	ValueEnv  string `yaml:"valueEnv"`
}

// Read fetches the secret. Space around it is left out. Its errors name the
// place and never the secret.
func (s Secret) Read() (string, error) {
	var value string
	switch {
	case s.ValueFile != "" && s.ValueEnv != "", s.ValueFile == "" && s.ValueEnv == "":
		return "", errors.New("set one of valueFile and valueEnv")
	case s.ValueEnv != "":
		value = os.Getenv(s.ValueEnv)
	default:
		f, err := os.Open(s.ValueFile)
		if err != nil {
			return "", err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxFile))
		if err != nil {
			return "", err
		}
		value = string(b)
	}
	if value = strings.TrimSpace(value); value == "" {
		return "", fmt.Errorf("there is no secret in %s%s", s.ValueFile, s.ValueEnv)
	}
	return value, nil
}

// Load reads a file; "" is the empty one.
func Load(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	if len(b) > maxFile {
		return Config{}, fmt.Errorf("read the configuration: %s has more than %d bytes", path, maxFile)
	}
	c, err := Parse(b)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads the text of a file.
func Parse(text []byte) (c Config, err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("there is more than one document")
	}
	return c, c.check()
}

// minUnresponsive is what a sandbox may at least take to answer: less would end those
// that are merely slow.
const minUnresponsive = 3 * time.Second

// check refuses what no part of the server would look at more closely.
func (c Config) check() error {
	if err := checkMCP(c.MCPServers); err != nil {
		return err
	}
	l := c.Sandbox.Limits
	switch {
	case min(l.Processes, l.OpenFiles) < 0:
		return errors.New("sandbox.limits: must not be negative")
	case c.Sandbox.UnresponsiveAfter != 0 && time.Duration(c.Sandbox.UnresponsiveAfter) < minUnresponsive:
		return fmt.Errorf("sandbox.unresponsiveAfter: at least %v", minUnresponsive)
	case min(c.Warm.Min, c.Warm.Max) < 0 || c.Warm.Min > c.Warm.Max:
		return errors.New("warm: min and max must not be negative, and min not above max")
	}
	return errors.Join(c.Models.check(), checkRuntimes(c.Runtimes))
}

// Size is a number of bytes: digits, and K, M, G or T for powers of 1024.
type Size int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseSize(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is no size such as 512M or 2G", n.Line, n.Value)
	}
	*s = Size(v)
	return nil
}

// ParseSize reads a size above zero.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I")
	factor := int64(1)
	if n := len(digits) - 1; n > 0 {
		if i := strings.IndexByte("KMGT", digits[n]); i >= 0 {
			factor, digits = int64(1)<<(10*(i+1)), digits[:n]
		}
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v <= 0 || v > (1<<62)/factor {
		return 0, fmt.Errorf("%q is no size such as 512M or 2G", text)
	}
	return v * factor, nil
}

// Cores is a number of processor cores in thousandths.
type Cores int

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *Cores) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseCores(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is no number of cores such as 0.5 or 2", n.Line, n.Value)
	}
	*c = Cores(v)
	return nil
}

// ParseCores reads a number of cores above zero and returns thousandths.
func ParseCores(text string) (int, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0.001 && v <= 4096) {
		return 0, fmt.Errorf("%q is no number of cores such as 0.5 or 2", text)
	}
	return int(v*1000 + 0.5), nil
}

// Duration is a duration in Go's form, such as 90s or 1h.
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is no duration such as 90s or 1h", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}
