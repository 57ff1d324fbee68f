package docker

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/system"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// anEngine is an engine with the runtimes that are named "NAME=PROGRAM".
func anEngine(runtimes ...string) *engine {
	e := &engine{host: "unix:///run/engine.sock", info: system.Info{
		OSType: "linux", DefaultRuntime: "runc", SecurityOptions: []string{"name=seccomp,profile=default"},
		Runtimes: map[string]system.RuntimeWithStatus{},
	}}
	for _, r := range runtimes {
		name, program, _ := strings.Cut(r, "=")
		e.info.Runtimes[name] = system.RuntimeWithStatus{Runtime: system.Runtime{Path: program}}
	}
	return e
}

// TestRuntimeHasTheWallThatWasAskedFor is the table of demands and runtimes.
func TestRuntimeHasTheWallThatWasAskedFor(t *testing.T) {
	here := t.TempDir() // no program of this name is in it
	kvm := checkKVM("/dev/kvm") == nil
	for name, test := range map[string]struct {
		runtimes []string
		config   Config
		want     string // the runtime
		wall     sandbox.Isolation
		refusal  string // part of the reason
	}{
		"default":            {[]string{"runc=runc"}, Config{}, "runc", sandbox.IsolationContainer, ""},
		"container":          {[]string{"runc=runc", "runsc=runsc"}, Config{Isolation: sandbox.IsolationContainer}, "runc", sandbox.IsolationContainer, ""},
		"gvisor by wall":     {[]string{"runc=runc", "safe=/usr/bin/env"}, Config{Isolation: sandbox.IsolationGVisor}, "", "", "no runtime with the isolation gvisor"},
		"gvisor found":       {[]string{"runc=runc", "safe=runsc"}, Config{Isolation: sandbox.IsolationGVisor}, "safe", sandbox.IsolationGVisor, ""},
		"gvisor by name":     {[]string{"runc=runc", "runsc=runsc"}, Config{Runtime: "runsc"}, "runsc", sandbox.IsolationGVisor, ""},
		"not listed":         {[]string{"runc=runc"}, Config{Runtime: "runsc"}, "", "", "does not list the runtime"},
		"weaker than asked":  {[]string{"runc=runc"}, Config{Runtime: "runc", Isolation: sandbox.IsolationGVisor}, "", "", "gives the isolation container, not gvisor"},
		"name says kata":     {[]string{"kata=/usr/bin/runc"}, Config{Runtime: "kata", Isolation: sandbox.IsolationMicroVM}, "", "", "gives the isolation container, not microvm"},
		"unknown program":    {[]string{"odd=/opt/odd"}, Config{Runtime: "odd"}, "", "", "nothing is known about the wall"},
		"no machine runtime": {[]string{"runc=runc"}, Config{Isolation: sandbox.IsolationMicroVM}, "", "", "no runtime with the isolation microvm, only runc"},
		"listed, not there":  {[]string{"runc=runc", "kata=" + here + "/kata-runtime"}, Config{Isolation: sandbox.IsolationMicroVM}, "", "", "no runtime with the isolation microvm"},
		"no such wall":       {[]string{"runc=runc"}, Config{Isolation: sandbox.IsolationProcess}, "", "", "not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			e := anEngine(test.runtimes...)
			err := e.choose(test.config)
			if test.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), test.refusal) {
					t.Errorf("choose = %v, want a refusal with %q", err, test.refusal)
				}
				return
			}
			if err != nil || e.runtime != test.want || e.isolation != test.wall {
				t.Errorf("choose = %q, %q, %v, want %q, %q", e.runtime, e.isolation, err, test.want, test.wall)
			}
		})
	}
	// With such a runtime it is the machine that decides.
	e := anEngine("runc=runc", "kata=kata-runtime")
	err := e.choose(Config{Isolation: sandbox.IsolationMicroVM})
	if kvm && (err != nil || e.runtime != "kata" || e.isolation != sandbox.IsolationMicroVM) || !kvm && err == nil {
		t.Errorf("with kata and /dev/kvm %v: choose = %q, %v", kvm, e.runtime, err)
	}
}

func TestMicroVMNamesTheMissingDevice(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "kvm")
	err := checkKVM(missing)
	p, ok := errors.AsType[*problem](err)
	if !ok || !strings.Contains(p.reason, missing) || p.fix == "" {
		t.Errorf("checkKVM = %v, want a problem that names %s", err, missing)
	}
}

func TestEnginesThatCannotWorkAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*engine)
		refusal string
	}{
		"windows":         {func(e *engine) { e.info.OSType = "windows" }, "not linux"},
		"users mapped":    {func(e *engine) { e.info.SecurityOptions = append(e.info.SecurityOptions, "name=userns") }, "userns-remap"},
		"rootless, root":  {func(e *engine) { e.rootless = true }, "plain user's"},
		"fine":            {func(*engine) {}, ""},
		"rootless, plain": {func(e *engine) { e.rootless, e.uid = true, 1000 }, ""},
	} {
		e := anEngine("runc=runc")
		test.change(e)
		if err := e.checkInfo(); (err == nil) != (test.refusal == "") || err != nil && !strings.Contains(err.Error(), test.refusal) {
			t.Errorf("%s: checkInfo = %v, want %q", name, err, test.refusal)
		}
	}
	for _, options := range [][]string{nil, {"name=seccomp,profile=unconfined"}} {
		e := anEngine("runc=runc")
		e.info.SecurityOptions = options
		if err := e.choose(Config{}); err == nil || !strings.Contains(err.Error(), "system call filter") {
			t.Errorf("choose with %q = %v, want a refusal", options, err)
		}
	}
}

// TestSocketTroubleIsExplained tries what operators meet first.
func TestSocketTroubleIsExplained(t *testing.T) {
	dir := t.TempDir()
	closed, shut := filepath.Join(dir, "closed"), filepath.Join(dir, "shut")
	for _, path := range []string{closed, shut} {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		ln.Close()
	}
	old := oldEngine(t, filepath.Join(dir, "old"))
	for name, test := range map[string]struct{ host, reason, fix string }{
		"remote":      {"tcp://192.0.2.1:2375", "not a Unix socket of this machine", "on this machine"},
		"ssh":         {"ssh://me@host", "not a Unix socket of this machine", "on this machine"},
		"not running": {"unix://" + closed, "nothing listens", "systemctl start docker"},
		"very old":    {"unix://" + old, "too old", "Update it"},
		"relative":    {"unix://docker.sock", "not a Unix socket of this machine", ""},
	} {
		_, err := dial(t.Context(), test.host)
		p, ok := errors.AsType[*problem](err)
		if !ok || !strings.Contains(p.reason, test.reason) || !strings.Contains(p.fix, test.fix) {
			t.Errorf("%s: dial = %v, want %q and %q", name, err, test.reason, test.fix)
		}
	}
	if _, err := dial(t.Context(), "unix://"+filepath.Join(dir, "none")); !errors.Is(err, errNoSocket) {
		t.Errorf("dial without a socket = %v", err)
	}
	if os.Geteuid() == 0 {
		return // whom no mode keeps out
	}
	if err := os.Chmod(shut, 0); err != nil {
		t.Fatal(err)
	}
	_, err := dial(t.Context(), "unix://"+shut)
	if p, ok := errors.AsType[*problem](err); !ok || !strings.Contains(p.fix, "docker") {
		t.Errorf("dial a socket of others = %v", err)
	}
}

// oldEngine is an engine that speaks a version of the API from years ago.
func oldEngine(t *testing.T, path string) string {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Api-Version", "1.24")
		w.Header().Set("Ostype", "linux")
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close(); <-done })
	return path
}

func TestFindsEngines(t *testing.T) {
	env := map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}
	getenv := func(name string) string { return env[name] }
	got := hostsFor("", getenv)
	for _, want := range []string{"unix:///run/docker.sock", "unix:///run/user/7/podman/podman.sock", "unix:///run/podman/podman.sock"} {
		if !slices.Contains(got, want) {
			t.Errorf("hosts = %q, want %s among them", got, want)
		}
	}
	env["DOCKER_HOST"] = "unix:///somewhere"
	if got := hostsFor("", getenv); !slices.Equal(got, []string{"unix:///somewhere"}) {
		t.Errorf("hosts with DOCKER_HOST = %q", got)
	}
	if got := hostsFor("unix:///mine", getenv); !slices.Equal(got, []string{"unix:///mine"}) {
		t.Errorf("hosts that the operator named = %q", got)
	}
	// What is there and refuses is worth more to know than what is not there.
	p := &problem{"may not", "Do."}
	if got := worst([]error{errNoSocket, p, errNoSocket}); got != error(p) {
		t.Errorf("worst = %v", got)
	}
	if got := worst([]error{errNoSocket, errNoSocket}); !strings.Contains(got.Error(), "apt install docker.io") {
		t.Errorf("worst of nothing = %v", got)
	}
}

func TestKeeperWithoutWallsIsRefused(t *testing.T) {
	good := "Name:\tsojourn\nCapBnd:\t00000000000004fb\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	if err := judgeStatus(good); err != nil {
		t.Errorf("judgeStatus of a good keeper = %v", err)
	}
	for _, change := range [][2]string{
		{"00000000000004fb", "000001ffffffffff"},
		{"00000000000004fb", "00000000002004fb"}, // SYS_ADMIN
		{"00000000000004fb", ""},
		{"NoNewPrivs:\t1", "NoNewPrivs:\t0"},
		{"Seccomp:\t2", "Seccomp:\t0"},
		{"Seccomp:\t2\n", ""},
	} {
		if err := judgeStatus(strings.Replace(good, change[0], change[1], 1)); err == nil {
			t.Errorf("judgeStatus with %q in place of %q = nil", change[1], change[0])
		}
	}
}

func TestMountPointsAreShownTopDown(t *testing.T) {
	info := `25 1 8:1 / / rw - ext4 /dev/a rw
30 25 0:1 / /usr/local/share rw - tmpfs t rw
31 25 0:2 / /usr/local rw - tmpfs t rw
32 25 0:3 / /usr\040local rw - tmpfs t rw
33 25 0:4 / /usr/with\134slash rw - tmpfs t rw
broken
`
	points := parseMountPoints(info)
	ms := readOnly(points, "/usr", "/inside")
	var got []string
	for _, m := range ms {
		if !m.ReadOnly || !m.BindOptions.NonRecursive {
			t.Errorf("%s is not read-only by itself", m.Target)
		}
		got = append(got, m.Source+">"+m.Target)
	}
	want := []string{"/usr>/inside", "/usr/local>/inside/local", `/usr/with\slash>/inside/with\slash`, "/usr/local/share>/inside/local/share"}
	if !slices.Equal(got, want) {
		t.Errorf("mounts = %q\nwant %q", got, want)
	}
}

func TestCountersOfBothVersions(t *testing.T) {
	dir := t.TempDir()
	mounts := "1 0 0:1 / " + dir + "/memory rw - cgroup cgroup rw,memory\n2 0 0:2 / " + dir + "/unified rw - cgroup2 cgroup2 rw\n"
	for path, content := range map[string]string{
		"memory/docker/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		"unified/box/memory.events":          "low 0\noom 9\noom_kill 5\n",
		"unified/box/pids.events":            "max 7\n",
	} {
		full := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	first := groupDirs("9:cpu,memory:/docker/x\n0::/elsewhere\n", mounts, "memory")
	if len(first) != 2 || readCounter(first[0], "oom_kill", "memory.events", "memory.oom_control") != 3 {
		t.Errorf("version 1: %q", first)
	}
	second := groupDirs("0::/box\n", mounts, "pids")
	if len(second) != 1 || readCounter(second[0], "max", "pids.events") != 7 || readCounter(second[0], "oom_kill", "memory.events") != 5 {
		t.Errorf("version 2: %q", second)
	}
	// A path that leads up stays below the mount.
	if up := groupDirs("0::/../../etc\n", mounts, "pids"); len(up) != 1 || !strings.HasPrefix(up[0], dir) {
		t.Errorf("a path that leads up: %q", up)
	}
}

func TestServerIDStays(t *testing.T) {
	dir := t.TempDir()
	one, err := serverID(dir)
	if err != nil {
		t.Fatal(err)
	}
	if two, err := serverID(dir); err != nil || two != one {
		t.Errorf("second id = %q, %v, want %q", two, err, one)
	}
	if other, err := serverID(t.TempDir()); err != nil || other == one {
		t.Errorf("id of another directory = %q, %v", other, err)
	}
	if err := os.WriteFile(filepath.Join(dir, serverName), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := serverID(dir); err == nil {
		t.Error("a damaged id is taken")
	}
}

func TestOnlyAllowedImages(t *testing.T) {
	s := images{allowed: []string{"debian:bookworm", "registry.test/team/*"}}
	for ref, want := range map[string]bool{
		"debian:bookworm": true, "debian:bookworm2": false, "registry.test/team/a:1": true, "registry.test/other/a": false,
		"": false, "registry.test/team/" + strings.Repeat("a", maxReference): false,
		"registry.test/team/../other/a": false, "registry.test/team/a?x=y": false, "registry.test/team/": false,
	} {
		if got := s.allows(ref); got != want {
			t.Errorf("allows(%.60q) = %v, want %v", ref, got, want)
		}
	}
	if (&images{}).allows("anything") {
		t.Error("without a list something is allowed")
	}
	digest := "sha256:" + strings.Repeat("ab", 32)
	if got := digestOf("debian:bookworm", []string{"other@" + digest, "debian@" + digest}); got != digest {
		t.Errorf("digestOf = %q", got)
	}
}

// TestListOfCallsForbids looks at what engines are given.
func TestListOfCallsForbids(t *testing.T) {
	f, err := filter()
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range forbidden {
		if strings.Contains(f, `"`+call+`"`) {
			t.Errorf("the list names %s", call)
		}
	}
	if !strings.Contains(f, `"openat"`) || !strings.Contains(f, "SCMP_ACT_ERRNO") {
		t.Errorf("list of system calls = %.300s", f)
	}
	if (&launcher{engine: &engine{uid: 1000}}).user() == "0:0" || (&launcher{engine: &engine{uid: 1000}}).held() != nil {
		t.Error("a sandbox of a plain user's server has root of the host")
	}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil && mayHave(unix.RLIMIT_NOFILE) <= 0 {
		t.Errorf("mayHave = %d of %d", mayHave(unix.RLIMIT_NOFILE), r.Max)
	}
}
