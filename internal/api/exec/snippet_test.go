package exec_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	api "github.com/sojourn-dev/sojourn/internal/api/exec"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestSeedSnippetsRun runs the snippets of the published page, which
// testdata/seed.sh holds word for word; only host, key and session differ.
func TestSeedSnippetsRun(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: the published snippets need %s, which this machine does not have", program)
		}
	}
	s := servertest.Start(t, servertest.Config{HostPrograms: true, Isolation: "gvisor"})
	made := snippet[api.SessionBody](t, s, "create", "").Session
	if made.Status != "pending" || *made.ClientID != "worker-7" || *made.Budget.CostCapCents != 500 {
		t.Errorf("create: %+v", made)
	}
	session := "/api/v1/agent/sessions/" + made.ID
	s.Must("POST", session+"/start", nil, nil)
	s.Must("POST", session+"/exec", map[string]any{
		"command": []string{"sh", "-c", "cat > triage.py"}, "stdin": "import sys\nprint(sys.argv[1:])\n",
	}, nil)
	ran := snippet[api.Reply](t, s, "run", made.ID)
	if ran.Stdout != "['--batch', '7']\n" || ran.ExitCode == nil || *ran.ExitCode != 0 || *ran.Budget.Remaining.Iterations != 198 {
		t.Errorf("run: %+v", ran)
	}
	changed := snippet[api.ContextChangedBody](t, s, "context", made.ID)
	if state := changed.Session.Context.CustomState; string(state["cursor"]) != `"batch-7"` || string(state["processed"]) != "412" {
		t.Errorf("context: %s", state)
	}
	found := snippet[api.ReattachedBody](t, s, "reattach", made.ID)
	if found.Session.ID != made.ID || found.Session.Status != "running" || *found.Remaining.Iterations != 198 || found.LastSeq == 0 {
		t.Errorf("reattach: %+v", found)
	}
}

// snippet runs one of the published snippets.
func snippet[T any](t *testing.T, s *servertest.Server, name, session string) (out T) {
	t.Helper()
	text, err := os.ReadFile("testdata/seed.sh")
	if err != nil {
		t.Fatal(err)
	}
	const host = "https://api.sandbox.stateset.com"
	cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(string(text), host, s.URL)+"\n"+name)
	cmd.Env = append(os.Environ(), "STATESET_SANDBOX_API_KEY="+servertest.AdminKey, "SESSION_ID="+session)
	got, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s failed: %v\n%s", name, err, got)
	}
	if err := json.Unmarshal(got, &out); err != nil {
		t.Fatalf("%s printed %s: %v", name, got, err)
	}
	return out
}
