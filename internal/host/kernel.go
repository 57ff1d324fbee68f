package host

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// AdvisedOpenFiles is how many files a server of many sandboxes should be allowed to
// have open: gVisor holds one on the host for each file that its programs know.
const AdvisedOpenFiles = 1 << 20

// Host is what the machine itself allows, whatever the driver.
func (m Machine) Host() []Check {
	return []Check{
		m.openFiles(), m.userNamespaces(), m.confinement(), m.controlGroups(),
		m.device("kvm", "/dev/kvm", "the driver microvm, whose sandboxes are machines of their own",
			"Use a machine with hardware virtualisation (on a virtual one: nested), load the kvm module, or do without microvm."),
		m.loopDevices(), m.programs(),
	}
}

func (m Machine) openFiles() Check {
	c := Check{Name: "open-files", State: Works, Says: fmt.Sprintf("The server may have %d files open.", m.OpenFiles)}
	if m.OpenFiles < AdvisedOpenFiles {
		c.State = Limited
		c.Says = fmt.Sprintf("The server may have %d files open; with many sandboxes or large trees in gVisor that can be too few.", m.OpenFiles)
		c.Fix = fmt.Sprintf("Allow %d: LimitNOFILE=%d in its systemd unit, or ulimit -Hn.", AdvisedOpenFiles, AdvisedOpenFiles)
	}
	return c
}

// switches are settings of the kernel that keep users from making namespaces of users.
var switches = []struct {
	path, off, says, fix string
	root                 bool // root is kept from it, too
}{
	{
		"/proc/sys/user/max_user_namespaces", "0", "The kernel allows no user namespaces",
		"sysctl user.max_user_namespaces=15000", true,
	},
	{
		"/proc/sys/kernel/unprivileged_userns_clone", "0", "The kernel allows user namespaces to root only",
		"sysctl kernel.unprivileged_userns_clone=1", false,
	},
	{
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces of plain users",
		"sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for the server that allows userns", false,
	},
}

func (m Machine) userNamespaces() Check {
	c := Check{Name: "user-namespaces", State: Works, Says: "The kernel's settings allow user namespaces."}
	if !m.exists("/proc/self/ns/user") {
		return Check{
			Name: c.Name, State: Fails, Says: "This kernel has no user namespaces: only gvisor as root, and process, do without.",
			Fix: "Use a kernel with CONFIG_USER_NS.",
		}
	}
	for _, s := range switches {
		if v, err := m.read(s.path); err != nil || v != s.off {
			continue
		}
		if m.UID == 0 && !s.root {
			c.Says = s.says + ", which does not matter to a server with root."
			continue
		}
		return Check{Name: c.Name, State: Fails, Says: s.says + ".", Fix: "Allow them: " + s.fix + "; or run the server as root."}
	}
	return c
}

// capSysAdmin is the number of the capability without which nobody mounts anything.
const capSysAdmin = 21

// confinement says what somebody has put around the server: a container, a filter of
// system calls, an AppArmor profile.
func (m Machine) confinement() Check {
	var around []string
	container := m.container()
	if container != "" {
		around = append(around, container)
	}
	status, err := m.read("/proc/self/status")
	if err != nil {
		return Check{Name: "confinement", State: Untried, Says: "What confines the server could not be read: " + err.Error() + "."}
	}
	filtered := field(status, "Seccomp") == "2"
	if filtered {
		around = append(around, "a filter of system calls")
	}
	caps, err := strconv.ParseUint(field(status, "CapEff"), 16, 64)
	weak := m.UID == 0 && err == nil && caps&(1<<capSysAdmin) == 0
	if weak {
		around = append(around, "a root without CAP_SYS_ADMIN")
	}
	profile, _ := m.read("/proc/self/attr/current") // not there without such a module
	profile, _, _ = strings.Cut(profile, " (")
	if profile = strings.Trim(profile, "\x00"); profile != "" && profile != "unconfined" && profile != "kernel" {
		around = append(around, fmt.Sprintf("the security profile %.100q", profile))
	}
	if len(around) == 0 {
		return Check{Name: "confinement", State: Works, Says: "Nothing is around the server that would keep it from making sandboxes."}
	}
	c := Check{Name: "confinement", State: Limited, Says: "Around the server there is " + list(around) + "."}
	switch {
	case container != "" && len(around) == 1:
		c.State = Works
	case container != "" && (filtered || weak):
		c.Fix = "If drivers do not work, start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined, and with --cap-add SYS_ADMIN for root."
	case filtered || weak:
		c.Fix = "If drivers do not work, look at what starts the server: SystemCallFilter, RestrictNamespaces, CapabilityBoundingSet and NoNewPrivileges of its systemd unit."
	}
	return c
}

// container says in what kind of container the server runs; "" when it seems to be none.
func (m Machine) container() string {
	switch {
	case m.exists("/.dockerenv"):
		return "a container of Docker"
	case m.exists("/run/.containerenv"):
		return "a container of Podman"
	}
	groups, _ := m.read("/proc/1/cgroup")
	for _, mark := range []string{"kubepods", "docker", "libpod", "containerd", "lxc"} {
		if strings.Contains(groups, mark) {
			return "a container (" + mark + ")"
		}
	}
	return ""
}

func (m Machine) controlGroups() Check {
	c := Check{Name: "control-groups", State: Works}
	table, err := m.read("/proc/self/mountinfo")
	if err != nil {
		return Check{Name: c.Name, State: Untried, Says: "Mounts could not be read: " + err.Error() + "."}
	}
	var v1 []string
	v2 := ""
	for line := range strings.Lines(table) {
		left, right, _ := strings.Cut(line, " - ")
		from, to := strings.Fields(left), strings.Fields(right)
		switch {
		case len(from) < 5 || len(to) < 3:
		case to[0] == "cgroup2":
			v2 = from[4]
		case to[0] == "cgroup":
			for _, o := range strings.Split(to[2], ",") {
				if o == "memory" || o == "pids" || o == "cpu" {
					v1 = append(v1, o)
				}
			}
		}
	}
	switch {
	case len(v1) > 0:
		c.Says = "Version 1, with " + list(v1) + "; only root makes groups there."
	case v2 == "":
		c.State, c.Says = Fails, "None are mounted, so memory, processor and processes can hardly be limited."
		c.Fix = "Mount them: mount -t cgroup2 none /sys/fs/cgroup; in a container, give it a writable /sys/fs/cgroup."
	default:
		controllers, _ := m.read(v2 + "/cgroup.controllers")
		if controllers == "" {
			controllers = "none that this process may read"
		}
		c.Says = "Version 2; controllers: " + controllers + "."
	}
	return c
}

func (m Machine) device(name, path, of, fix string) Check {
	if err := m.Open(path); err != nil {
		if errors.Is(err, fs.ErrPermission) && m.UID != 0 {
			fix = "Add the server's user to the group that owns " + path + ", or run the server as root."
		}
		return Check{Name: name, State: Fails, Says: fmt.Sprintf("%s cannot be opened, which is for %s (%v).", path, of, cause(err)), Fix: fix}
	}
	return Check{Name: name, State: Works, Says: path + " can be opened, which is for " + of + "."}
}

// loopDevices is what root needs to give each sandbox a file system of its own.
func (m Machine) loopDevices() Check {
	const of = "disk limits that a write can meet"
	c := m.device("loop-devices", "/dev/loop-control", of,
		"Run the server as root with loop devices, or keep its data on a file system with project quotas; without both, files are measured every few seconds.")
	if c.State == Works {
		if _, err := m.Find("mkfs.ext4"); err != nil {
			c.State, c.Says, c.Fix = Fails, "Loop devices can be used, and there is no mkfs.ext4, both of which are for "+of+".", "Install e2fsprogs."
		}
	}
	return c
}

// systemDirs are where sandboxes without an image look for programs of the host.
var systemDirs = []string{"/usr/local/bin", "/usr/bin"}

// programs are those that agents use, where sandboxes without an image see them.
func (m Machine) programs() Check {
	var there, not []string
	for _, p := range []string{"git", "node", "npm", "python3"} {
		found := false
		for _, d := range systemDirs {
			found = found || m.exists(d+"/"+p)
		}
		if found {
			there = append(there, p)
		} else {
			not = append(not, p)
		}
	}
	c := Check{Name: "programs", State: Works, Says: "Sandboxes without an image see " + list(there) + " of this host."}
	if len(there) == 0 {
		c.Says = "Sandboxes without an image see none of the programs that agents use."
	}
	if len(not) > 0 {
		c.State = Limited
		c.Fix = "For agents that need " + list(not) + ": install them below /usr on this host, or give sandboxes an image that has them."
	}
	return c
}
