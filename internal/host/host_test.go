package host

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// machine is one on which everything is there, but for what a test changes.
func machine(files map[string]string) Machine {
	all := map[string]string{
		"proc/self/ns/user":   "",
		"proc/self/status":    "Name:\tsojourn\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n",
		"proc/self/mountinfo": "25 20 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
		"proc/1/cgroup":       "0::/init.scope\n",
		"proc/meminfo":        "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n",
		"etc/resolv.conf":     "search lan\nnameserver 192.0.2.53\n",
		"usr/bin/git":         "", "usr/bin/node": "", "usr/local/bin/npm": "", "usr/bin/python3": "",
		"sys/fs/cgroup/cgroup.controllers":  "cpu memory pids\n",
		"proc/sys/user/max_user_namespaces": "15000\n",
		"proc/sys/net/ipv4/ip_forward":      "1\n",
	}
	for name, text := range files {
		all[name] = text
	}
	tree := fstest.MapFS{}
	for name, text := range all {
		if text != gone {
			tree[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return Machine{
		Files: tree, UID: 1000, OpenFiles: AdvisedOpenFiles,
		Open:  func(string) error { return nil },
		Find:  func(p string) (string, error) { return "/usr/bin/" + p, nil },
		Space: func(string) (int64, error) { return 1 << 30, nil },
	}
}

// gone is the content of files that are not there.
const gone = "\x00gone"

// seen is the check of a name.
func seen(t *testing.T, all []Check, name string) Check {
	t.Helper()
	for _, c := range all {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no check %q", name)
	return Check{}
}

func TestAMachineWithEverythingIsWell(t *testing.T) {
	for _, c := range machine(nil).Host() {
		if c.State != Works || c.Fix != "" || !strings.HasSuffix(c.Says, ".") {
			t.Errorf("%+v", c)
		}
	}
}

func TestWhatIsNotAsItShouldBeIsSaidWithAFix(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		root  bool
		check string
		state State
		says  string
		fix   string // "" is none
	}{
		"no user namespaces": {
			files: map[string]string{"proc/sys/user/max_user_namespaces": "0\n"}, root: true,
			check: "user-namespaces", state: Fails, says: "no user namespaces", fix: "sysctl user.max_user_namespaces=15000",
		},
		"a kernel without them": {
			files: map[string]string{"proc/self/ns/user": gone},
			check: "user-namespaces", state: Fails, says: "This kernel has no", fix: "CONFIG_USER_NS",
		},
		"Debian's switch": {
			files: map[string]string{"proc/sys/kernel/unprivileged_userns_clone": "0\n"},
			check: "user-namespaces", state: Fails, says: "root only", fix: "kernel.unprivileged_userns_clone=1",
		},
		"Ubuntu's AppArmor": {
			files: map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
			check: "user-namespaces", state: Fails, says: "AppArmor restricts", fix: "profile",
		},
		"Ubuntu's AppArmor and root": {
			files: map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, root: true,
			check: "user-namespaces", state: Works, says: "does not matter to a server with root",
		},
		"Docker's default": {
			files: map[string]string{
				".dockerenv":             "",
				"proc/self/status":       "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
				"proc/self/attr/current": "docker-default (enforce)\n",
			}, root: true,
			check: "confinement", state: Limited,
			says: `a container of Docker, a filter of system calls, a root without CAP_SYS_ADMIN and the security profile "docker-default"`,
			fix:  "seccomp=unconfined",
		},
		"a container that takes nothing": {
			files: map[string]string{"run/.containerenv": ""},
			check: "confinement", state: Works, says: "a container of Podman",
		},
		"a pod": {
			files: map[string]string{"proc/1/cgroup": "0::/kubepods/burstable/pod1\n", "proc/self/status": "Seccomp:\t2\n"},
			check: "confinement", state: Limited, says: "kubepods", fix: "--security-opt",
		},
		"a unit of systemd": {
			files: map[string]string{"proc/self/status": "CapEff:\t0\nSeccomp:\t2\n"},
			check: "confinement", state: Limited, says: "a filter of system calls", fix: "SystemCallFilter",
		},
		"no proc": {
			files: map[string]string{"proc/self/status": gone},
			check: "confinement", state: Untried, says: "could not be read",
		},
		"version 1": {
			files: map[string]string{"proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"1 2 0:4 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\nbroken\n"},
			check: "control-groups", state: Works, says: "Version 1, with memory and cpu;",
		},
		"no control groups": {
			files: map[string]string{"proc/self/mountinfo": "1 2 0:3 / / rw - ext4 /dev/sda rw\n"},
			check: "control-groups", state: Fails, says: "None are mounted", fix: "mount -t cgroup2",
		},
		"no node": {
			files: map[string]string{"usr/bin/node": gone, "usr/local/bin/npm": gone},
			check: "programs", state: Limited, says: "git and python3", fix: "node and npm",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine(test.files)
			if test.root {
				m.UID = 0
			}
			c := seen(t, m.Host(), test.check)
			if c.State != test.state || !strings.Contains(c.Says, test.says) {
				t.Errorf("%+v, want %s with %q", c, test.state, test.says)
			}
			if (c.Fix == "") != (test.fix == "") || !strings.Contains(c.Fix, test.fix) {
				t.Errorf("fix %q, want one with %q", c.Fix, test.fix)
			}
		})
	}
}

func TestDevicesAndPrograms(t *testing.T) {
	m := machine(nil)
	m.Open = func(device string) error {
		return &fs.PathError{Op: "open", Path: device, Err: errors.New("no such device")}
	}
	m.OpenFiles = 1024
	for _, name := range []string{"kvm", "loop-devices"} {
		if c := seen(t, m.Host(), name); c.State != Fails || !strings.Contains(c.Says, "(no such device)") || c.Fix == "" {
			t.Errorf("%+v", c)
		}
	}
	if c := seen(t, m.Host(), "open-files"); c.State != Limited || !strings.Contains(c.Says, "1024 files") || !strings.Contains(c.Fix, "LimitNOFILE=1048576") {
		t.Errorf("%+v", c)
	}
	m.Open = func(string) error { return fs.ErrPermission }
	if c := seen(t, m.Host(), "kvm"); c.State != Fails || !strings.Contains(c.Fix, "the group that owns /dev/kvm") {
		t.Errorf("what a user may not open: %+v", c)
	}
	m = machine(nil)
	m.Find = func(p string) (string, error) { return "", errors.New(p) }
	if c := seen(t, m.Host(), "loop-devices"); c.State != Fails || c.Fix != "Install e2fsprogs." {
		t.Errorf("without mkfs.ext4: %+v", c)
	}
}

// lookup is a resolver that answers with an error, or not at all.
type lookup struct {
	err   error
	stuck bool
}

func (l lookup) LookupNS(ctx context.Context, name string) ([]*net.NS, error) {
	if l.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, l.err
}

func TestNames(t *testing.T) {
	for name, test := range map[string]struct {
		r    lookup
		want State
	}{
		"answers":       {lookup{}, Works},
		"knows nothing": {lookup{err: &net.DNSError{IsNotFound: true}}, Works},
		"is not there":  {lookup{err: &net.DNSError{Err: "connection refused"}}, Fails},
		"times out":     {lookup{err: &net.DNSError{IsTimeout: true, IsNotFound: true}}, Fails},
	} {
		c := machine(nil).Names(t.Context(), test.r)
		if c.State != test.want || !strings.Contains(c.Says, "(192.0.2.53)") || (c.Fix == "") != (test.want == Works) {
			t.Errorf("a resolver that %s: %+v, want %s", name, c, test.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if c := machine(map[string]string{"etc/resolv.conf": gone}).Names(ctx, lookup{stuck: true}); c.State != Fails || !strings.Contains(c.Says, "no /etc/resolv.conf") {
		t.Errorf("a resolver that hangs: %+v", c)
	}
}

func TestRaw(t *testing.T) {
	needy := machine(map[string]string{"proc/sys/net/ipv4/ip_forward": "0\n"})
	for name, test := range map[string]struct {
		m       Machine
		named   string
		drivers []string
		state   State
		says    string
		fix     string
	}{
		"nobody asked": {needy, "", nil, Off, "would also need root and net.ipv4.ip_forward=1.", ""},
		"it works":     {machine(nil), "10.213.0.0/16", []string{"gvisor", "namespace"}, Works, "gvisor and namespace that ask", ""},
		"it does not":  {needy, "10.213.0.0/16", nil, Fails, "10.213.0.0/16", "root and net.ipv4.ip_forward=1"},
	} {
		c := test.m.Raw(test.named, test.drivers)
		if c.State != test.state || !strings.Contains(c.Says, test.says) || (c.Fix == "") != (test.fix == "") || !strings.Contains(c.Fix, test.fix) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestAhead(t *testing.T) {
	const gib = 1 << 30
	m := machine(nil)
	if got, want := m.Memory(), (Memory{TotalBytes: 16 * gib, AvailableBytes: 8 * gib}); got != want {
		t.Fatalf("memory %+v, want %+v", got, want)
	}
	if c := m.Ahead("gvisor", 32<<20); c.State != Works || !strings.Contains(c.Says, "8.0 GiB of 16 GiB") || !strings.Contains(c.Says, "memory for 192 ") {
		t.Errorf("%+v", c) // 8 GiB without an eighth of 16 GiB, by 32 MiB
	}
	if c := m.Ahead("gvisor", 7*gib); c.State != Limited || c.Fix == "" {
		t.Errorf("a sandbox that does not fit: %+v", c)
	}
	if c := m.Ahead("gvisor", 0); c.State != Works || !strings.Contains(c.Says, "could not be measured") {
		t.Errorf("a sandbox of unknown size: %+v", c)
	}
	for _, text := range []string{gone, "", "MemTotal: lots kB\n", "MemTotal: -1 kB\n"} {
		if c := machine(map[string]string{"proc/meminfo": text}).Ahead("gvisor", 1); c.State != Untried {
			t.Errorf("with %q: %+v", text, c)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1.5 KiB", 10 << 20: "10 MiB", 1 << 62: "4.0 EiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestHere looks at the machine that the test runs on: what is found must be whole.
func TestHere(t *testing.T) {
	m := Here()
	if m.OpenFiles == 0 || m.Memory().TotalBytes <= m.Memory().AvailableBytes {
		t.Errorf("%d open files, memory %+v", m.OpenFiles, m.Memory())
	}
	free, err := m.Space(t.TempDir() + "/not/there/yet")
	if err != nil || free <= 0 {
		t.Errorf("space where something will be: %d, %v", free, err)
	}
	for _, c := range m.Host() {
		if c.Name == "" || c.State == "" || !strings.HasSuffix(c.Says, ".") {
			t.Errorf("%+v", c)
		}
	}
}
