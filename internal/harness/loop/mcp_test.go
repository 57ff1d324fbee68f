package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/harnesstest"
	"github.com/sojourn-dev/sojourn/internal/harness/loop"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// TestMain makes this binary an MCP server where a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv("LOOP_TEST_MCP") != "" {
		fmt.Println("a line that is no message")
		fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 10_000))
		if err := mcpServer().Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

type greeting struct {
	Name string `json:"name"`
}

func mcpServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "greet", Description: "greets"}, func(_ context.Context, _ *mcp.CallToolRequest, in greeting) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: "hello " + in.Name + " from " + os.Getenv("LOOP_TEST_MCP")},
			&mcp.ImageContent{MIMEType: "image/png", Data: []byte("png")},
		}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "fail", Description: "fails"}, func(context.Context, *mcp.CallToolRequest, greeting) (*mcp.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("out of luck")
	})
	return s
}

func TestMCPServers(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		if r.Header.Get("X-Pass") != "open" {
			return nil
		}
		return mcpServer()
	}, nil))
	t.Cleanup(web.Close)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	servers := []json.RawMessage{
		json.RawMessage(fmt.Sprintf(`{"name":"in side","command":%q,"args":[],"env":[{"name":"LOOP_TEST_MCP","value":"inside"}]}`, exe)),
		json.RawMessage(fmt.Sprintf(`{"type":"http","name":"out","url":%q,"headers":[{"name":"X-Pass","value":"open"}]}`, web.URL)),
		json.RawMessage(`{"name":"broken","command":"/no/such/program","args":[]}`),
	}
	m := newMock(t)
	b := newBench(t, m, model.Chat, func(c *loop.Config, _ *harness.Runtime) { c.MCP = http.DefaultTransport })
	drive := func(run sojourn.RunID, prompt string) {
		t.Helper()
		out, err := b.Harness.Drive(t.Context(), harness.Job{
			Session: "ses", Run: run, Epoch: 1, Runtime: b.Runtime, MCPServers: servers, State: b.Ledger.State(), Conversation: b.Ledger.Conversation(),
			Input: []sojourn.Part{{Type: "text", Text: prompt}},
		}, &harnesstest.Port{Ledger: b.Ledger, Run: run, Peer: b.Sandbox.Peer(t), Die: func() {}})
		if err != nil || out.State != sojourn.RunCompleted {
			t.Fatalf("%s, %v", harnesstest.Describe(out), err)
		}
	}
	drive("r1", `@call mcp__in_side__greet {"name":"you"}`+"\n"+`call mcp__out__greet {"name":"all"}`+"\n"+`call mcp__in_side__fail {"name":"x"}`+
		"\n"+`call mcp__in_side__greet {"nome":7}`+"\n--\nsay end")
	got := results(m.last())
	for i, want := range []string{"hello you from inside\n[an image, image/png, 3 bytes]", "hello all from \n", "out of luck", "nome"} {
		if len(got) <= i || !strings.Contains(got[i], want) {
			t.Errorf("result %d of %q, want %q", i, got, want)
		}
	}
	if logs := strings.Join(b.Ledger.Logs("r1"), "\n"); !strings.Contains(logs, "broken") || strings.Contains(logs, "in side") {
		t.Errorf("logged %q, want the broken server alone", logs)
	}
	drive("r2", `@call mcp__in_side__greet {"name":"again"}`+"\n--\nsay end")
	if got := results(m.last()); !strings.Contains(got[len(got)-1], "hello again") {
		t.Errorf("the second turn's server gave %q", got[len(got)-1])
	}
}
