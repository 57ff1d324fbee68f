package config

import (
	"encoding/json"
	"testing"
)

func TestMCPServers(t *testing.T) {
	c, err := Parse([]byte(`
mcpServers:
  - {name: files, command: /opt/mcp/files, args: [--root, /workspace], env: {B: "2", A: "1"}}
  - {name: docs, url: "https://mcp.example.com/v1", headers: {X-Team: a}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"args":["--root","/workspace"],"command":"/opt/mcp/files","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"name":"files"}`,
		`{"headers":[{"name":"X-Team","value":"a"}],"name":"docs","type":"http","url":"https://mcp.example.com/v1"}`,
	} {
		if got := c.MCPServers[i].ACP(); string(got) != want || !json.Valid(got) {
			t.Errorf("server %d: %s, want %s", i, got, want)
		}
	}
	if got := (MCPServer{Name: "x", Command: "/x"}).ACP(); string(got) != `{"args":[],"command":"/x","env":[],"name":"x"}` {
		t.Errorf("a bare server: %s", got)
	}
	for name, text := range map[string]string{
		"no name":         "mcpServers: [{command: /x}]",
		"a name twice":    "mcpServers: [{name: a, command: /x}, {name: a, command: /y}]",
		"neither":         "mcpServers: [{name: a}]",
		"both":            `mcpServers: [{name: a, command: /x, url: "http://h"}]`,
		"no address":      `mcpServers: [{name: a, url: "file:///x"}]`,
		"a password":      `mcpServers: [{name: a, url: "http://u:p@h"}]`,
		"headers to none": "mcpServers: [{name: a, command: /x, headers: {A: b}}]",
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
