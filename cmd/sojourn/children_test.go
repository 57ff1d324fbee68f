package main

import (
	"crypto/rand"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox/namespace"
)

// serveNamespace starts a server whose sandboxes have processes that the host can see.
func serveNamespace(t *testing.T, flags ...string) *demoServer {
	t.Helper()
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sjc") // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if r := namespace.Probe(t.Context(), namespace.Config{Dir: filepath.Join(dir, "probe"), Executable: exe}); !r.Available {
		t.Skipf("SKIPPED: no sandbox whose processes the host can see can be made here: %s", r.Reason)
	}
	s := &demoServer{
		exe: exe, dir: dir, key: "a-key-for-this-test-0123456789", listen: "127.0.0.1:0",
		flags: append([]string{"--driver", "namespace", "--log-level", "error"}, flags...),
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		killSandboxes(dir)
	})
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestChildrenOfAnAgentEndWithTheirSandbox: the agent leaves processes behind that
// have sessions of their own and whose parents are dead. They live on after its turn
// and after its death, and not after the sandbox.
func TestChildrenOfAnAgentEndWithTheirSandbox(t *testing.T) {
	t.Parallel()
	s := serveNamespace(t)
	dir, c := s.dir, &demoClient{server: s}
	call := func(method, path string, body, out any) {
		t.Helper()
		if err := c.call(t.Context(), method, path, body, out); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited a minute for %s", what)
			}
		}
	}

	var made struct{ Session demoSession }
	call(http.MethodPost, "/v1/sessions", map[string]any{}, &made)
	path, mark := "/v1/sessions/"+made.Session.ID, rand.Text()
	var submitted struct{ Run struct{ ID string } }
	call(http.MethodPost, path+"/turns", map[string]any{
		"input": "@fork sleep 600; : " + mark + "\n@run (setsid sh -c 'sleep 600; : " + mark + "' >/dev/null 2>&1 &)\n@exit 3",
	}, &submitted)
	until("the agent's death", func() bool {
		var out struct{ Run struct{ State string } }
		call(http.MethodGet, path+"/runs/"+submitted.Run.ID, nil, &out)
		return out.Run.State == "crashed"
	})
	until("the children that are left behind", func() bool { return len(sandboxProcesses(mark)) == 2 })
	call(http.MethodPost, path+"/archive", nil, &struct{}{})
	until("the end of the sandbox", func() bool { return len(sandboxProcesses(dir, s.cmd.Process.Pid)) == 0 })
	if left := sandboxProcesses(mark); len(left) != 0 {
		t.Errorf("%d children have outlived their sandbox", len(left))
	}
}
