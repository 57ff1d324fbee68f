package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sojourn-dev/sojourn/internal/model"
)

const (
	maxServers     = 32
	maxServerTools = 128
	maxToolName    = 64
	maxDescription = 8 << 10
	maxSchema      = 64 << 10
)

// serverSpec is an MCP server of the session, as ACP writes it.
type serverSpec struct {
	Type    string      `json:"type"` // "" or "stdio", or "http"
	Name    string      `json:"name"`
	Command string      `json:"command"`
	Args    []string    `json:"args"`
	Env     []nameValue `json:"env"`
	URL     string      `json:"url"`
	Headers []nameValue `json:"headers"`
}

type nameValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// server is an MCP server that was started, or tried to.
type server struct {
	spec    serverSpec
	process string // "" for one outside the sandbox
	session *mcp.ClientSession
	tools   []*tool
	err     error
}

// close ends the session with the server, and its process.
func (s *server) close() {
	if s.session != nil {
		_ = s.session.Close() // it has nothing left to say
	}
}

// equip makes the tools of the drive: the built-in ones, and those of the
// session's MCP servers. A server that does not come up is left out, with a line
// in the log.
func (d *drive) equip() error {
	for _, t := range builtin() {
		d.tools.add(t)
	}
	specs, err := d.serverSpecs()
	if err != nil || len(specs) == 0 && len(d.st.Servers) == 0 {
		return err
	}
	for _, p := range d.st.Servers { // of an earlier drive, which cannot be taken over
		if err := d.dispose(p); err != nil {
			return err
		}
	}
	d.st.Generation++
	d.st.Servers = nil
	for i, spec := range specs {
		s := &server{spec: spec}
		if spec.Type != "http" {
			s.process = fmt.Sprintf("loop/mcp/%d.%d", d.st.Generation, i)
			d.st.Servers = append(d.st.Servers, s.process)
		}
		d.servers = append(d.servers, s)
	}
	if err := d.commit(); err != nil {
		return err
	}
	_, err = await(d, func(ctx context.Context) (struct{}, error) {
		var all sync.WaitGroup
		for _, s := range d.servers {
			all.Go(func() { s.err = d.connect(ctx, s) })
		}
		all.Wait()
		return struct{}{}, nil
	})
	if err != nil {
		return err
	}
	for _, s := range d.servers {
		if s.err != nil && d.work.Err() == nil {
			d.log("The MCP server %s is not available: %v.", s.spec.Name, s.err)
		}
		for _, t := range s.tools {
			d.tools.add(t)
		}
	}
	return nil
}

// serverSpecs reads the session's MCP servers, in order of their names.
func (d *drive) serverSpecs() ([]serverSpec, error) {
	var specs []serverSpec
	for _, raw := range d.job.MCPServers[:min(len(d.job.MCPServers), maxServers)] {
		var s serverSpec
		if err := json.Unmarshal(raw, &s); err != nil || s.Name == "" {
			d.log("An MCP server is left out: its description cannot be read.")
			continue
		}
		specs = append(specs, s)
	}
	slices.SortStableFunc(specs, func(a, b serverSpec) int { return cmp.Compare(a.Name, b.Name) })
	return specs, nil
}

// dispose ends a process of an earlier drive.
func (d *drive) dispose(process string) error {
	if err := d.link.Remove(d.ctx, process); err != nil && !refused(err) {
		return fmt.Errorf("end the MCP server %s: %w", process, err)
	}
	return nil
}

// connect starts a session with a server and learns its tools.
func (d *drive) connect(ctx context.Context, s *server) error {
	transport, err := d.transport(s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.MCPStart)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: agentName, Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	if s.session, err = client.Connect(ctx, transport, nil); err != nil {
		return err
	}
	for t, err := range s.session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if len(s.tools) >= maxServerTools {
			break
		}
		if made := s.tool(t); made != nil {
			s.tools = append(s.tools, made)
		}
	}
	slices.SortFunc(s.tools, func(a, b *tool) int { return cmp.Compare(a.spec.Name, b.spec.Name) })
	return nil
}

// transport is the way to a server.
func (d *drive) transport(s *server) (mcp.Transport, error) {
	switch s.spec.Type {
	case "", "stdio":
		if s.spec.Command == "" {
			return nil, fmt.Errorf("it has no command")
		}
		return &stdio{drive: d, server: s}, nil
	case "http":
		if d.cfg.MCP == nil {
			return nil, fmt.Errorf("servers outside the sandbox are not allowed here")
		}
		return &mcp.StreamableClientTransport{
			Endpoint: s.spec.URL, HTTPClient: &http.Client{Transport: headed{d.cfg.MCP, s.spec.Headers}}, DisableStandaloneSSE: true,
		}, nil
	}
	return nil, fmt.Errorf("its type %q is not known", clip(s.spec.Type, 40))
}

// headed adds headers to requests.
type headed struct {
	http.RoundTripper
	headers []nameValue
}

func (h headed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for _, v := range h.headers {
		r.Header.Set(v.Name, v.Value)
	}
	return h.RoundTripper.RoundTrip(r)
}

// tool makes a row of a server's tool; nil when no model could be offered it.
func (s *server) tool(t *mcp.Tool) *tool {
	raw, err := json.Marshal(t.InputSchema)
	if err != nil || len(raw) > maxSchema || len(raw) == 0 || raw[0] != '{' || t.Name == "" {
		return nil
	}
	title := s.spec.Name + ": " + t.Name
	return &tool{
		spec: model.Tool{Name: toolName(s.spec.Name, t.Name), Description: clip(t.Description, maxDescription), Schema: raw},
		kind: "other", effects: true, // what a server says of itself is a hint
		describe: func(json.RawMessage) (string, string) { return title, "" },
		run: func(ctx context.Context, task *task) (result, error) {
			return s.call(ctx, t.Name, task.input), nil
		},
	}
}

// toolName is what the model calls a server's tool.
func toolName(server, name string) string {
	plain := func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}
	full := "mcp__" + strings.Map(plain, server) + "__" + strings.Map(plain, name)
	return full[:min(len(full), maxToolName)]
}

// call makes a call of the server's tool. Whatever goes wrong is for the model
// to read.
func (s *server) call(ctx context.Context, name string, input json.RawMessage) result {
	res, err := s.session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: input})
	if err != nil {
		if ctx.Err() != nil {
			return refusal(saidCancelled + " It may have had effects.")
		}
		return refusal("The MCP server gave no result, the call may have had effects: %s", clip(err.Error(), 2000))
	}
	var out []string
	for _, c := range res.Content {
		out = append(out, contentText(c))
	}
	if len(out) == 0 && res.StructuredContent != nil {
		raw, _ := json.Marshal(res.StructuredContent) // it came as JSON
		out = append(out, string(raw))
	}
	return result{output: or(strings.Join(out, "\n"), "[no output]"), failed: res.IsError}
}

// contentText is what a model can read of a piece of content.
func contentText(c mcp.Content) string {
	switch c := c.(type) {
	case *mcp.TextContent:
		return c.Text
	case *mcp.ImageContent:
		return fmt.Sprintf("[an image, %s, %d bytes]", clip(c.MIMEType, 100), len(c.Data))
	case *mcp.AudioContent:
		return fmt.Sprintf("[audio, %s, %d bytes]", clip(c.MIMEType, 100), len(c.Data))
	case *mcp.EmbeddedResource:
		if c.Resource != nil && c.Resource.Text != "" {
			return c.Resource.Text
		}
	case *mcp.ResourceLink:
		return fmt.Sprintf("[a resource: %s]", clip(c.URI, 1000))
	}
	return "[content that is not text]"
}
