package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeTree is a directory in which files are what the kernel would make. It shows what
// is written and where; that the kernel obeys cannot be tried with it.
type fakeTree struct {
	t   *testing.T
	dir string
}

func newFakeTree(t *testing.T) fakeTree { return fakeTree{t: t, dir: t.TempDir()} }

func (f fakeTree) file(path, content string) {
	f.t.Helper()
	path = filepath.Join(f.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f fakeTree) want(path, content string) {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, path))
	if err != nil || string(b) != content {
		f.t.Errorf("%s = %q, %v, want %q", path, b, err, content)
	}
}

// v2 makes the tree of version 2 in which this process is in the group own.
func (f fakeTree) v2(own string) *v2 {
	f.t.Helper()
	f.file("mountinfo", fmt.Sprintf("30 23 0:26 / %s/cg rw,nosuid - cgroup2 cgroup rw,nsdelegate\n", f.dir))
	f.file("self", "1:name=systemd:/elsewhere\n0::"+own+"\n")
	for d := own; ; d = filepath.Dir(d) {
		f.file("cg"+d+"/cgroup.controllers", "cpuset cpu io memory pids\n")
		f.file("cg"+d+"/cgroup.subtree_control", "")
		f.file("cg"+d+"/cgroup.procs", "")
		if d == "/" {
			break
		}
		f.file("cg"+d+"/cgroup.type", "domain\n")
	}
	mounts, err := readMounts(filepath.Join(f.dir, "mountinfo"))
	if err != nil {
		f.t.Fatal(err)
	}
	return newV2(mounts, Config{Owner: "owner", Self: filepath.Join(f.dir, "self")})
}

func TestVersion2GroupsOfRootAreAtTheTop(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: without root a writable directory counts as delegated")
	}
	f := newFakeTree(t)
	v := f.v2("/system.slice/sojourn.service")
	if want := filepath.Join(f.dir, "cg"); v.base != want || v.inside {
		t.Errorf("base = %s, inside %t, want %s", v.base, v.inside, want)
	}
}

func TestVersion2LeavesADelegatedGroup(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	if os.Geteuid() == 0 {
		// What root takes for the top of a container: nothing is above.
		f.file("cg/cgroup.type", "domain\n")
	}
	v := f.v2("/")
	if !v.inside {
		t.Fatalf("v2 = %+v, want it inside a delegated group", v)
	}
	f.file("cg/server/cgroup.procs", "")
	for _, d := range []string{"cg/sojourn", "cg/sojourn/owner"} {
		f.file(d+"/cgroup.controllers", "memory pids\n")
		f.file(d+"/cgroup.subtree_control", "")
	}
	if err := v.parents(); err != nil {
		t.Fatalf("parents = %v", err)
	}
	f.want("cg/server/cgroup.procs", fmt.Sprint(os.Getpid()))
	// The kernel adds up what is written; a plain file keeps the last.
	f.want("cg/cgroup.subtree_control", "+cpu")
	f.want("cg/sojourn/cgroup.subtree_control", "+pids")
	f.want("cg/sojourn/owner/cgroup.subtree_control", "+pids")

	f.file("self", "0::/server\n")
	f.file("cg/cgroup.procs", "")
	mounts, err := readMounts(filepath.Join(f.dir, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	again := newV2(mounts, Config{Owner: "owner", Self: filepath.Join(f.dir, "self")})
	if again.base != v.base || again.inside {
		t.Errorf("a server that was restarted in its own group has %+v, want base %s", again, v.base)
	}
}

func TestVersion2Limits(t *testing.T) {
	t.Parallel()
	t.Log("the kernel's own version 2 is tried by the suites of the drivers where it has controllers; here it is a directory")
	f := newFakeTree(t)
	v := f.v2("/x")
	v.base = filepath.Join(f.dir, "cg")
	group := "cg/sojourn/owner/g/"
	for _, name := range []string{"memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"} {
		f.file(group+name, "")
	}
	if err := v.limit("g", Limits{MemoryBytes: 1 << 28, Processes: 64, MilliCPUs: 1500, KillTogether: true}); err != nil {
		t.Fatalf("limit = %v", err)
	}
	f.want(group+"memory.max", "268435456")
	f.want(group+"memory.swap.max", "0")
	f.want(group+"memory.oom.group", "1")
	f.want(group+"pids.max", "64")
	f.want(group+"cpu.max", "150000 100000")

	if err := os.Remove(filepath.Join(f.dir, group, "pids.max")); err != nil {
		t.Fatal(err)
	}
	if err := v.limit("g", Limits{Processes: 1}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("limit without the controller = %v, want ErrNotExist", err)
	}
}

func TestVersion2Stat(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	v := f.v2("/x")
	v.base = filepath.Join(f.dir, "cg")
	for name, content := range map[string]string{
		"memory.current": "4096\n", "memory.peak": "8192\n", "memory.max": "max\n",
		"memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 1\n",
		"pids.current":  "5\n", "pids.events": "max 9\n",
		"cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 1\nnr_throttled 1\nthrottled_usec 70\n",
	} {
		f.file("cg/sojourn/owner/g/"+name, content)
	}
	want := Stat{
		MemoryBytes: 4096, MemoryPeakBytes: 8192, MemoryKills: 2, Processes: 5, ProcessDenied: 9,
		CPU: 1500 * time.Microsecond, CPUThrottled: 70 * time.Microsecond,
	}
	g := &Group{tree: &Tree{h: v}, name: "g"}
	if s, err := g.Stat(); err != nil || s != want {
		t.Errorf("Stat = %+v, %v, want %+v", s, err, want)
	}
	f.file("cg/sojourn/owner/g/pids.current", "a lot\n")
	if _, err := g.Stat(); err == nil {
		t.Error("Stat of a file without a number succeeded")
	}
}

func TestVersion1FindsControllersWhereverTheyAre(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	f.file("mountinfo", strings.ReplaceAll(`25 30 0:22 / DIR/systemd rw - cgroup cgroup rw,name=systemd
26 30 0:23 / DIR/unified rw - cgroup2 cgroup2 rw
27 30 0:24 / DIR/mem\040ory rw shared:9 - cgroup cgroup rw,memory
28 30 0:25 / DIR/cpu rw - cgroup cgroup rw,cpu,cpuacct
29 30 0:26 / DIR/pids rw - cgroup cgroup rw,pids
a line that is none
31 30 0:26 / DIR/elsewhere rw - cgroup cgroup rw,pids
`, "DIR", f.dir))
	mounts, err := readMounts(filepath.Join(f.dir, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	v := newV1(mounts, "owner")
	if len(v.bases) != 3 || v.by["memory"] != f.dir+"/mem ory" || v.by["cpuacct"] != f.dir+"/cpu" || v.by["pids"] != f.dir+"/pids" {
		t.Fatalf("newV1 = %+v", v)
	}
	for _, name := range []string{"mem ory/sojourn/owner/g/memory.limit_in_bytes", "cpu/sojourn/owner/g/cpu.cfs_quota_us", "cpu/sojourn/owner/g/cpu.cfs_period_us", "pids/sojourn/owner/g/pids.max"} {
		f.file(name, "")
	}
	if err := v.limit("g", Limits{MemoryBytes: 1 << 20, Processes: 3, MilliCPUs: 5}); err != nil {
		t.Fatalf("limit without a count of swap = %v", err)
	}
	f.want("mem ory/sojourn/owner/g/memory.limit_in_bytes", "1048576")
	f.want("pids/sojourn/owner/g/pids.max", "3")
	f.want("cpu/sojourn/owner/g/cpu.cfs_quota_us", "5000")
	f.want("cpu/sojourn/owner/g/cpu.cfs_period_us", "1000000")
}

func TestBandwidth(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ milli, quota, period int }{
		{1000, 100_000, 100_000}, {2500, 250_000, 100_000}, {10, 1_000, 100_000}, {9, 9_000, 1_000_000}, {1, 1_000, 1_000_000},
	} {
		if q, p := bandwidth(test.milli); q != test.quota || p != test.period {
			t.Errorf("bandwidth(%d) = %d, %d, want %d, %d", test.milli, q, p, test.quota, test.period)
		}
	}
}

// TestRemoveGivesUpWithItsContext has a directory that never becomes empty, as a group
// is whose member cannot be killed.
func TestRemoveGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFakeTree(t)
	v := f.v2("/x")
	v.base = filepath.Join(f.dir, "cg")
	f.file("cg/sojourn/owner/g/cgroup.procs", "")
	g := &Group{tree: &Tree{h: v}, name: "g"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Remove(ctx); err == nil || !g.Exists() {
		t.Errorf("Remove = %v, want that it could not", err)
	}
}
