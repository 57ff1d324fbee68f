package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// patience bounds every single operation on a busy machine.
const patience = 90 * time.Second

// openDriver opens the driver on a fresh directory, whose sandboxes end with the test.
func openDriver(t testing.TB, dir string) sandbox.Driver {
	t.Helper()
	needEngine(t)
	d, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDriver(t, d) })
	return d
}

func closeDriver(t testing.TB, d sandbox.Driver) {
	hs, err := d.List(context.Background())
	if err != nil {
		t.Errorf("List = %v", err)
	}
	for _, h := range hs {
		if err := d.Remove(context.Background(), h); err != nil {
			t.Errorf("Remove = %v", err)
		}
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
}

// create makes a sandbox and returns it with a client of its keeper.
func create(t testing.TB, d sandbox.Driver, spec sandbox.Spec) (sandbox.Sandbox, *link.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sb, err := d.Create(ctx, spec)
	if err != nil {
		t.Fatalf("Create = %v", err)
	}
	conn, err := sb.Dial(ctx)
	if err != nil {
		t.Fatalf("Dial = %v", err)
	}
	c, err := link.Open(ctx, link.Framed(conn), link.Options{Epoch: spec.Epoch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return sb, c
}

// execute runs a program in a sandbox to its end and returns what it wrote.
func execute(ctx context.Context, c *link.Client, id string, argv ...string) (out string, code int, err error) {
	p := link.StartParams{ProcessID: id, Argv: argv, Cwd: "/", Env: map[string]string{"PATH": "/usr/bin:/bin"}}
	if err := c.Start(ctx, p); err != nil {
		return "", 0, err
	}
	for after := int64(0); ; {
		r, err := c.Read(ctx, link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			return out, 0, err
		}
		for _, chunk := range r.Chunks {
			out += string(chunk.Data)
		}
		after = r.NextSeq - 1
		if r.Closed && r.ExitCode != nil {
			return out, *r.ExitCode, nil
		}
		if r.Closed {
			return out + r.Failure, -1, nil
		}
	}
}

// must runs a program that has to succeed.
func must(t testing.TB, c *link.Client, id string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, code, err := execute(ctx, c, id, argv...)
	if err != nil || code != 0 {
		t.Fatalf("%.300q = %q, exit %d, %v", argv, out, code, err)
	}
	return out
}

const mebi = 1 << 20

// TestLimitsAreFelt reads inside what was asked for outside.
func TestLimitsAreFelt(t *testing.T) {
	t.Parallel()
	d := openDriver(t, t.TempDir())
	_, c := create(t, d, sandbox.Spec{Session: "limits", Limits: sandbox.Limits{
		MemoryBytes: 96 * mebi, Processes: 77, MilliCPUs: 250, OpenFiles: 321,
	}})
	if got := must(t, c, "files", "sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -c"); got != "321\n321\n0\n" {
		t.Errorf("open files and size of cores = %q", got)
	}
	script := `cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max 2>/dev/null ||
		cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us`
	got := strings.Fields(must(t, c, "groups", "sh", "-c", script))
	if len(got) < 3 || got[0] != "100663296" || got[1] != "77" || got[2] != "25000" {
		t.Errorf("limits of the control group = %q", got)
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{Session: "disk", Limits: sandbox.Limits{DiskBytes: mebi}}); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Create with a disk limit = %v, want ErrUnsupported", err)
	}
}

// TestMemoryHogIsReported lets a program eat more than its sandbox may have: the program
// dies, the sandbox lives, its neighbour feels nothing. Then the keeper itself is the one
// that is killed.
func TestMemoryHogIsReported(t *testing.T) {
	t.Parallel()
	d := openDriver(t, t.TempDir())
	limits := sandbox.Limits{MemoryBytes: 64 * mebi}
	_, neighbour := create(t, d, sandbox.Spec{Session: "neighbour", Limits: limits})
	sb, c := create(t, d, sandbox.Spec{Session: "hog", Limits: limits})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, code, err := execute(ctx, c, "hog", "sh", "-c", "exec head -c 500M /dev/zero | tail -c 500M >/dev/null")
	if err != nil {
		t.Fatalf("run a hog = %v", err)
	}
	t.Logf("the hog ended with %d: %s", code, out)
	if code == 0 {
		t.Error("a program had more memory than its sandbox may have")
	}
	must(t, neighbour, "echo", "echo")
	u, err := sb.(sandbox.Meter).Usage(ctx)
	if err != nil || u.MemoryKills == 0 || u.MemoryBytes <= 0 || u.MemoryBytes > 64*mebi || u.CPU <= 0 || u.Processes < 1 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	must(t, c, "echo", "echo") // the keeper has survived

	// Here the keeper is the one that the kernel takes first.
	hungry, k := create(t, d, sandbox.Spec{Session: "hungry", Limits: limits})
	preferToKill(t, hungry)
	many := "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do (head -c 500M /dev/zero | tail -c 500M >/dev/null) & done; wait"
	_, _, _ = execute(ctx, k, "hogs", "sh", "-c", many) // its end is the sandbox's
	select {
	case <-hungry.Done():
	case <-ctx.Done():
		t.Fatal("the sandbox does not end")
	}
	if err := hungry.Err(); sandbox.ReasonOf(err) != sandbox.EndOutOfMemory || !errors.Is(err, sandbox.ErrGone) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("Err = %v, want out of memory at 64 MiB", err)
	}
}

// preferToKill makes the first process of a sandbox the one that is killed first when
// memory runs out.
func preferToKill(t *testing.T, sb sandbox.Sandbox) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", firstProcess(t, sb)), []byte("1000"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// firstProcess is the id on this machine of the first process of a sandbox.
func firstProcess(t *testing.T, sb sandbox.Sandbox) int {
	t.Helper()
	var r struct {
		Process struct {
			PID int `json:"pid"`
		} `json:"process"`
	}
	if err := json.Unmarshal(sb.Handle().Data, &r); err != nil || r.Process.PID <= 1 {
		t.Fatalf("process of the handle: %+v, %v", r, err)
	}
	return r.Process.PID
}
