package sandboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// testLimits makes sandboxes reach each of their limits, beside a neighbour who must
// not feel it.
func testLimits(t *testing.T, s *Suite) {
	d := s.open(t, s.newDir(t))
	caps := d.Capabilities()
	if caps.Isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: this driver runs no programs that could reach a limit")
	}
	t.Logf("limits: %+v", caps.Limits)
	if caps.Limits.How == "" {
		t.Error("Limits.How says nothing")
	}
	neighbour := start(t, d, "neighbour", 1)
	tests := []struct {
		name      string
		supported bool
		limits    sandbox.Limits
		run       func(*testing.T, sandbox.Driver, *cell)
	}{
		{"Memory", caps.Limits.Memory, sandbox.Limits{MemoryBytes: 256 << 20}, testMemoryLimit},
		{"MemoryOfMany", caps.Limits.Memory, sandbox.Limits{MemoryBytes: 64 << 20}, testMemoryOfMany},
		{"CPU", caps.Limits.CPU, sandbox.Limits{MilliCPUs: 200}, testCPULimit},
		{"Processes", caps.Limits.Processes, sandbox.Limits{Processes: 64}, testProcessLimit},
		{"Disk", caps.Limits.Disk, sandbox.Limits{DiskBytes: 32 << 20}, testDiskLimit},
		{"OpenFiles", caps.Limits.OpenFiles, sandbox.Limits{OpenFiles: 100}, testOpenFilesLimit},
		{"None", true, sandbox.Limits{}, testNoLimits},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			spec := sandbox.Spec{Session: "limit-" + test.name, Epoch: 1, Limits: test.limits}
			sb, err := d.Create(within(t), spec)
			if !test.supported {
				if !errors.Is(err, sandbox.ErrUnsupported) {
					t.Errorf("Create with a limit that the driver does not claim = %v, want ErrUnsupported", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("Create = %v", err)
			}
			test.run(t, d, connect(t, sb))
			n := *neighbour
			n.t = t
			if out := n.sh("echo x >f && cat f && rm f"); out != "x\n" {
				t.Errorf("the neighbour says %q", out)
			}
			if err := sb.Destroy(within(t)); err != nil {
				t.Errorf("Destroy = %v", err)
			}
		})
	}
}

// insideArgs is the command that makes this binary do something inside.
func insideArgs(args ...string) []string {
	return append([]string{sandbox.KeeperPath, commandInside}, args...)
}

// usage asks a sandbox that still can tell.
func (c *cell) usage() sandbox.Usage {
	c.t.Helper()
	m, ok := c.Sandbox.(sandbox.Meter)
	if !ok {
		c.t.Fatalf("%T is no sandbox.Meter", c.Sandbox)
	}
	u, err := m.Usage(within(c.t))
	if err != nil {
		c.t.Fatalf("Usage = %v", err)
	}
	return u
}

// await waits for something to become true of the usage.
func (c *cell) await(what string, is func(sandbox.Usage) bool) sandbox.Usage {
	c.t.Helper()
	ctx := within(c.t)
	for {
		u := c.usage()
		if is(u) {
			return u
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("Usage = %+v, want %s", u, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// expelled reports whether the sandbox has ended, and checks the reason and that the
// detail names the limit. It waits for the end if it is under way: for long if the
// sandbox has not answered any more.
func expelled(t *testing.T, c *cell, answers bool, reason sandbox.EndReason, limit string) bool {
	t.Helper()
	wait := patience
	if answers {
		wait = 500 * time.Millisecond
	}
	select {
	case <-c.Done():
	case <-time.After(wait): // or it lives, and the caller goes on to ask it
		return false
	}
	if got := sandbox.ReasonOf(c.Err()); got != reason || !strings.Contains(c.Err().Error(), limit) {
		t.Errorf("Err = %v, want %s and %q", c.Err(), reason, limit)
	}
	return true
}

// exhaust runs a program that may take its sandbox with it. ok reports whether the
// sandbox answered with the end of the program.
func (c *cell) exhaust(argv ...string) (out string, ok bool) {
	c.t.Helper()
	ctx := within(c.t)
	const id = "exhaust"
	p := link.StartParams{ProcessID: id, Argv: argv, Cwd: sandbox.WorkspacePath, Env: env}
	if err := c.client.Start(ctx, p); err != nil {
		return err.Error(), false
	}
	var after int64
	for {
		r, err := c.client.Read(ctx, link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			return out + err.Error(), false
		}
		for _, chunk := range r.Chunks {
			out += string(chunk.Data)
		}
		after = r.NextSeq - 1
		if r.Closed {
			return out, true
		}
	}
}

func testMemoryLimit(t *testing.T, d sandbox.Driver, c *cell) {
	out, ok := c.exhaust(insideArgs("hog", "1024")...)
	if strings.Contains(out, "held") {
		t.Fatalf("a program held 1 GiB: %s", out)
	}
	if expelled(t, c, ok, sandbox.EndOutOfMemory, "256 MiB") {
		if d.Capabilities().Isolation != sandbox.IsolationGVisor {
			t.Error("the whole sandbox has ended for one program")
		}
		return
	}
	if u := c.usage(); u.MemoryKills < 1 || u.MemoryPeakBytes < 100<<20 || u.MemoryPeakBytes > 257<<20 {
		t.Errorf("Usage = %+v, want a kill and a peak near the limit", u)
	}
	if out := c.sh("echo alive"); out != "alive\n" {
		t.Errorf("after a program was killed another says %q", out)
	}
}

// testMemoryOfMany has many programs fill the memory, each of which holds less than the
// keeper: not the largest one has to go then, but one of them.
func testMemoryOfMany(t *testing.T, d sandbox.Driver, c *cell) {
	switch d.Capabilities().Isolation {
	case sandbox.IsolationGVisor:
		t.Log("SKIPPED: the host sees one program, and ends it")
		return
	case sandbox.IsolationProcess:
		t.Log("SKIPPED: the wall around the keeper lets it say nothing of its programs in /proc")
		return
	}
	// What a program starts in its first moments, before the keeper has given it its
	// score, has the keeper's: so the many wait for that.
	c.launch("many", "sh", "-c", `until [ "$(cat /proc/self/oom_score_adj)" -gt 500 ]; do :; done; i=0; while [ $i -lt 30 ]; do
		sh -c 'x=$(head -c 6000000 /dev/zero | tr "\0" x); while sleep 1; do :; done' & i=$((i+1)); done; wait`)
	c.await("several kills", func(u sandbox.Usage) bool { return u.MemoryKills >= 3 || !c.alive("many") })
	if out := c.sh("echo alive"); out != "alive\n" {
		t.Errorf("after many programs met their limit another says %q", out)
	}
}

func testCPULimit(t *testing.T, _ sandbox.Driver, c *cell) {
	c.launch("spin", insideArgs("spin")...)
	c.await("it throttled", func(u sandbox.Usage) bool { return u.CPUThrottled > 0 && u.CPU > 0 })
	if out := c.sh("echo alive"); out != "alive\n" {
		t.Errorf("beside a busy program another says %q", out)
	}
}

// testProcessLimit lets a sandbox fork more than it may.
func testProcessLimit(t *testing.T, d sandbox.Driver, c *cell) {
	// The shell counts without forking, because it could not.
	out := c.sh("(i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done) 2>/dev/null; set -- /proc/[0-9]*; echo $#")
	var n int
	if _, err := fmt.Sscan(out, &n); err != nil || n < 10 || n > 64 && !d.Capabilities().HostPaths { // which has the host's /proc
		t.Errorf("%q processes run under a limit of 64: %v", out, err)
	}
	ps, err := c.client.Processes(within(t))
	if err != nil || len(ps) == 0 {
		t.Errorf("beside a fork bomb the keeper says %v, %v", ps, err)
	}
	u := c.usage()
	if u.Processes > 64 {
		t.Errorf("Usage = %+v, want at most 64 processes", u)
	}
	if u.Processes > 0 && u.ProcessDenied == 0 { // it is counted at all
		t.Errorf("Usage = %+v, want some refused", u)
	}
	c.crowd()
	// A group that could be changed from inside would be no limit.
	if out, _ := c.run("sh", "-c", "for f in /sys/fs/cgroup/pids.max /sys/fs/cgroup/*/pids.max; do echo max >$f; done"); strings.Contains(out, "No such") {
		t.Logf("there is no group to be seen inside: %s", out)
	}
	c.run("sh", "-c", "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done")
	if u := c.usage(); u.Processes > 64 {
		t.Errorf("after a try to change the limit Usage = %+v, want at most 64 processes", u)
	}
}

// crowd asks much of the keeper at a time, where there may be no more processes: it has
// to do with the threads that it has.
func (c *cell) crowd() {
	c.t.Helper()
	ctx := within(c.t)
	data := make([]byte, 1<<20)
	var all errgroup.Group
	for i := range 64 {
		name := fmt.Sprintf("%s/crowd-%d", sandbox.WorkspacePath, i)
		id := "crowd-" + rand.Text()
		all.Go(func() error {
			if err := c.client.WriteFile(ctx, name, data); err != nil {
				return err
			}
			_, err := c.client.ReadFile(ctx, name)
			return errors.Join(err, c.client.RemovePath(ctx, name, false, false))
		})
		all.Go(func() error {
			return c.client.Start(ctx, link.StartParams{ProcessID: id, Argv: []string{"sh", "-c", ":"}, Cwd: sandbox.WorkspacePath, Env: env})
		})
		all.Go(func() error { _, err := c.client.Processes(ctx); return err })
	}
	if err := all.Wait(); err != nil {
		c.t.Fatalf("a keeper who is asked much where there may be no more processes says %v", err)
	}
	if _, err := c.client.Stats(ctx); err != nil {
		c.t.Fatalf("a keeper who was asked much says %v", err)
	}
}

func testDiskLimit(t *testing.T, d sandbox.Driver, c *cell) {
	c.sh("echo kept >kept")
	places, second := []string{"/tmp", "/dev/shm", "/dev", "/usr", "/"}, sandbox.HomePath+"/big"
	if d.Capabilities().HostPaths { // only its own can be written, and are on one disk
		places, second = nil, "big2"
	}
	for _, dir := range places {
		out, code := c.run(insideArgs("write", dir+"/big", "64")...)
		if code == 0 {
			t.Errorf("64 MiB were written to %s: %s", dir, out)
		}
		t.Logf("%s: %s", dir, strings.TrimSpace(out))
		c.run("rm", "-f", dir+"/big")
	}
	out, ok := c.exhaust("sh", "-c", `"$0" "$1" write big 20 && "$0" "$1" write "$2" 20 && sleep 60`, sandbox.KeeperPath, commandInside, second)
	if !ok || !strings.Contains(out, "no space left") {
		ended(t, c) // it is measured
		if !expelled(t, c, false, sandbox.EndDiskFull, "32 MiB") {
			t.Errorf("the program said %q, want that there is no space left, or the sandbox ended", out)
		}
		dirs, err := d.Remains(within(t), c.Handle())
		if err != nil {
			t.Fatalf("Remains = %v", err)
		}
		wantKept(t, dirs)
		return
	}
	if u := c.usage(); u.DiskBytes < 16<<20 || u.DiskBytes > 32<<20 || u.DiskDenied < 1 {
		t.Errorf("Usage = %+v, want the disk full once", u)
	}
	c.sh("rm -f big big2 && echo more >more")
	wantKept(t, c.Dirs())
	if names := glob(t, c.Dirs().Workspace, "*"); len(names) != 2 {
		t.Errorf("the workspace has %v", names)
	}
}

func wantKept(t *testing.T, dirs sandbox.Dirs) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(dirs.Workspace, "kept")); err != nil || string(b) != "kept\n" {
		t.Errorf("from the host a file of the workspace is %q, %v", b, err)
	}
}

func testOpenFilesLimit(t *testing.T, _ sandbox.Driver, c *cell) {
	out := c.sh("ulimit -n; ulimit -Hn")
	if out != "100\n100\n" {
		t.Errorf("a process may have %q files open, want 100", out)
	}
	if out, code := c.run("sh", "-c", "ulimit -n 200"); code == 0 {
		t.Errorf("the limit was raised: %s", out)
	}
}

func testNoLimits(t *testing.T, d sandbox.Driver, c *cell) {
	c.sh("echo x >f")
	u := c.usage()
	if d.Capabilities().Limits.Memory && (u.MemoryBytes <= 0 || u.MemoryPeakBytes < u.MemoryBytes) {
		t.Errorf("Usage = %+v, want memory", u)
	}
	if d.Capabilities().Limits.CPU && u.CPU <= 0 {
		t.Errorf("Usage = %+v, want processor time", u)
	}
	if u.MemoryKills != 0 || u.ProcessDenied != 0 || u.DiskDenied != 0 {
		t.Errorf("Usage = %+v, want no limit reached", u)
	}
	ctx, cancel := context.WithTimeout(within(t), patience)
	defer cancel()
	if err := c.Destroy(ctx); err != nil {
		t.Errorf("Destroy = %v", err)
	}
	if sandbox.ReasonOf(c.Err()) != sandbox.EndDestroyed {
		t.Errorf("Err = %v, want %s", c.Err(), sandbox.EndDestroyed)
	}
}
