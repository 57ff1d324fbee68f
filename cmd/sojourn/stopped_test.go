package main

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStoppedSandboxIsGivenUp: every process of a sandbox is stopped on the host, so that
// nothing in it answers any more. A cancel ends, the files are kept, and the session goes
// on in another sandbox.
func TestStoppedSandboxIsGivenUp(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("sandbox: {unresponsiveAfter: 3s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveNamespace(t, "--config", config)
	c := &demoClient{server: s}
	call := func(method, path string, body, out any) {
		t.Helper()
		if err := c.call(t.Context(), method, execSessions+path, body, out); err != nil {
			t.Fatal(err)
		}
	}
	session := ""
	run := func(in map[string]any) (x chaosExec) {
		t.Helper()
		call(http.MethodPost, session+"/exec", in, &x)
		return x
	}
	var made struct{ Session struct{ ID string } }
	call(http.MethodPost, "", map[string]any{
		"name": "stopped", "autoStart": true, "budget": map[string]any{"costCapCents": 1000},
	}, &made)
	session = "/" + made.Session.ID
	if x := run(map[string]any{"command": []string{"sh", "-c", "echo kept > f"}}); x.Outcome != "exit" {
		t.Fatalf("the first exec ended as %+v", x)
	}
	x := run(map[string]any{"command": []string{"sleep", "600"}, "detached": true, "timeoutMs": 600_000})

	pids := sandboxProcesses(s.dir, s.cmd.Process.Pid)
	if len(pids) == 0 {
		t.Fatal("no process of the sandbox was found")
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Errorf("stop process %d: %v", pid, err)
		}
	}
	var seen struct{ Execution chaosExec }
	call(http.MethodPost, session+"/executions/"+x.ExecutionID+"/cancel", map[string]any{}, &seen)
	for deadline := time.Now().Add(time.Minute); seen.Execution.Status == "running"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("an exec that was cancelled runs on for a minute; the log:\n%s", s.logTail())
		}
		call(http.MethodGet, session+"/executions/"+x.ExecutionID, nil, &seen)
	}
	if x := seen.Execution; x.Status != "lost" || x.Reason != "sandbox_lost" {
		t.Errorf("it ended as %+v, want it lost with its sandbox", x)
	}
	if x := run(map[string]any{"command": []string{"cat", "f"}}); x.Stdout != "kept\n" {
		t.Errorf("in the next sandbox: %+v", x)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); err == nil {
			t.Errorf("process %d of the old sandbox is still there", pid)
		}
	}
}
