package config

import (
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Models says which models agents can call, and through whom.
type Models struct {
	Providers []Provider `yaml:"providers"`
	// CountChatUsage asks providers for the usage of streamed chat completions when
	// the agent does not; without it that is estimated.
	CountChatUsage bool `yaml:"countChatUsage"`
}

// Provider is an account at a model API.
type Provider struct {
	Name    string            `yaml:"name"`
	API     string            `yaml:"api"` // anthropic, openai or gemini
	BaseURL string            `yaml:"baseURL"`
	Headers map[string]string `yaml:"headers"`
	Models  []Model           `yaml:"models"`
	// ChatOnly says that an openai provider has chat completions and no Responses,
	// for the built-in loop.
	ChatOnly bool `yaml:"chatOnly"`
	// The key, read like any secret; a provider without one has neither field.
	Secret `yaml:",inline"`
}

// Model is a name by which agents call a model of a provider.
type Model struct {
	Name     string `yaml:"name"`
	Upstream string `yaml:"upstream"` // "" is the same as Name
	Price    *Price `yaml:"price"`    // nil is unknown
	// ContextTokens is how much the model reads and writes in one call, and
	// MaxOutputTokens bounds its answer; 0 is unknown. The built-in loop asks.
	ContextTokens   int64 `yaml:"contextTokens"`
	MaxOutputTokens int64 `yaml:"maxOutputTokens"`
}

// Price is what a million tokens of each kind cost.
type Price struct {
	Input      Money `yaml:"input"`
	Cached     Money `yaml:"cached"`     // input that the provider had in its cache
	CacheWrite Money `yaml:"cacheWrite"` // input that it put there
	Output     Money `yaml:"output"`
}

// HasKey reports whether the provider wants a key.
func (p Provider) HasKey() bool { return p.Secret != Secret{} }

// apis are the protocols that providers speak.
var apis = []string{"anthropic", "openai", "gemini"}

func (m Models) check() error {
	names := map[string]bool{}
	for _, p := range m.Providers {
		u, err := url.Parse(p.BaseURL)
		switch {
		case p.Name == "" || names[p.Name]:
			return fmt.Errorf("models.providers: %q: every provider has a name of its own", p.Name)
		case !slices.Contains(apis, p.API):
			return fmt.Errorf("models.providers: %s: api %q is none of anthropic, openai, gemini", p.Name, p.API)
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil:
			return fmt.Errorf("models.providers: %s: baseURL must be an http or https address without a password", p.Name)
		case p.ValueFile != "" && p.ValueEnv != "":
			return fmt.Errorf("models.providers: %s: set one of valueFile and valueEnv", p.Name)
		case len(p.Models) == 0:
			return fmt.Errorf("models.providers: %s: it has no models", p.Name)
		}
		names[p.Name] = true
		for _, model := range p.Models {
			if min(model.ContextTokens, model.MaxOutputTokens) < 0 {
				return fmt.Errorf("models.providers: %s: %s: contextTokens and maxOutputTokens must not be negative", p.Name, model.Name)
			}
			if model.Name == "" {
				return fmt.Errorf("models.providers: %s: a model has no name", p.Name)
			}
		}
	}
	return nil
}

// Money is an amount in millionths of a cent. In the file it is written in whole
// units of the currency, such as 1.25.
type Money int64

// microCents are in one unit of a currency.
const microCents = 100_000_000

// UnmarshalYAML implements yaml.Unmarshaler.
func (m *Money) UnmarshalYAML(n *yaml.Node) error {
	v, err := ParseMoney(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is no amount such as 1.25", n.Line, n.Value)
	}
	*m = Money(v)
	return nil
}

// ParseMoney reads a decimal amount and returns it in millionths of a cent, exactly.
func ParseMoney(text string) (int64, error) {
	const most = 1_000_000
	digits := 0
	for i, c := range text {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c == '.' && i > 0 && i < len(text)-1:
		default:
			return 0, fmt.Errorf("%q is no amount", text)
		}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok || digits == 0 || digits > 20 {
		return 0, fmt.Errorf("%q is no amount", text)
	}
	if r.Mul(r, big.NewRat(microCents, 1)); !r.IsInt() || r.Cmp(big.NewRat(most*microCents, 1)) > 0 {
		return 0, errors.New("an amount is at most a million, with eight decimals")
	}
	return r.Num().Int64(), nil
}
