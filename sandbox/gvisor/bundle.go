package gvisor

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

const (
	// openFiles is how many files a process in a sandbox may have open.
	openFiles = 65_536
	// oomScore makes the kernel end sandboxes before the server and the host's own
	// services when memory runs out.
	oomScore = 500
)

// heldCapabilities are what root in the sandbox may do to files and processes of the
// sandbox. gVisor's kernel checks them; the host's never sees them.
var heldCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
}

// bundle describes the sandbox to runsc.
func bundle(c *local.Cell, root local.Root, executable string, spec sandbox.Spec) *specs.Spec {
	score := oomScore
	return &specs.Spec{
		Version:  "1.0.0",
		Root:     &specs.Root{Path: root.Dir},
		Hostname: "sojourn",
		Process: &specs.Process{
			Args: c.KeeperArgs(),
			Env:  c.KeeperEnv(root.Env...),
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding:  heldCapabilities,
				Effective: heldCapabilities,
				Permitted: heldCapabilities,
			},
			NoNewPrivileges: true,
			OOMScoreAdj:     &score,
			Rlimits:         rlimits(spec.Limits),
		},
		Mounts: mounts(c, root, executable, spec),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
			},
		},
	}
}

func mounts(c *local.Cell, root local.Root, executable string, spec sandbox.Spec) []specs.Mount {
	share := local.ShareOf(spec.Limits)
	ms := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		// gVisor gives it no size, so nothing can be made in it; its devices work.
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "ro"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: sized(share.Shm, "nosuid", "nodev", "noexec", "mode=1777")},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		// The sandbox's kernel counts processes in it. See limitProcesses.
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: sized(share.Tmp, "nosuid", "nodev", "mode=1777")},
		bind(executable, sandbox.KeeperPath, "ro"),
		bind(c.Run(), sandbox.SocketDir, "ro", "nosuid", "nodev", "noexec"),
		bind(c.Workspace(), sandbox.WorkspacePath, "rw", "nosuid", "nodev"),
		bind(c.Home(), sandbox.HomePath, "rw", "nosuid", "nodev"),
	}
	for _, d := range root.Binds {
		ms = append(ms, bind(d, d, "ro", "nodev"))
	}
	for _, l := range spec.Layers {
		ms = append(ms, bind(l.Source, l.Target, "ro", "nosuid", "nodev"))
	}
	return ms
}

func bind(source, target string, options ...string) specs.Mount {
	return specs.Mount{Source: source, Destination: target, Type: "bind", Options: append([]string{"rbind"}, options...)}
}
