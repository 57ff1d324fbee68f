package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
)

// MCPServer is a server of tools: a program in the sandbox, or an address that the
// network policy must allow.
type MCPServer struct {
	Name    string            `yaml:"name"`
	Command string            `yaml:"command"` // absolute in the sandbox
	Args    []string          `yaml:"args"`
	Env     map[string]string `yaml:"env"`
	URL     string            `yaml:"url"`
	Headers map[string]string `yaml:"headers"`
}

func checkMCP(servers []MCPServer) error {
	names := map[string]bool{}
	for _, s := range servers {
		u, err := url.Parse(s.URL)
		switch {
		case s.Name == "" || names[s.Name]:
			return fmt.Errorf("mcpServers: %q: every server has a name of its own", s.Name)
		case (s.Command == "") == (s.URL == ""):
			return fmt.Errorf("mcpServers: %s: set one of command and url", s.Name)
		case s.URL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil):
			return fmt.Errorf("mcpServers: %s: url must be an http or https address without a password", s.Name)
		case s.URL != "" && len(s.Args)+len(s.Env) > 0, s.Command != "" && len(s.Headers) > 0:
			return fmt.Errorf("mcpServers: %s: args and env belong to a command, headers to a url", s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

// ACP writes the server as the Agent Client Protocol does.
func (s MCPServer) ACP() json.RawMessage {
	type pair struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	pairs := func(m map[string]string) []pair {
		list := []pair{}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			list = append(list, pair{name, m[name]})
		}
		return list
	}
	var out any = map[string]any{"name": s.Name, "command": s.Command, "args": append([]string{}, s.Args...), "env": pairs(s.Env)}
	if s.URL != "" {
		out = map[string]any{"type": "http", "name": s.Name, "url": s.URL, "headers": pairs(s.Headers)}
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings
	}
	return b
}
