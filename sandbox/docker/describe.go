package docker

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// The labels of everything that a driver has in an engine.
const (
	labelServer  = "sojourn.server" // the id of the driver's directory
	labelCell    = "sojourn.cell"   // the directory of the cell
	labelSession = "sojourn.session"
	labelEpoch   = "sojourn.epoch"
)

const (
	// openFiles is how many files a process in a sandbox may have open.
	openFiles = 65_536
	// maxTasks is how many processes and threads the user of a sandbox may have in all
	// of Podman's: as many as there are process ids by default.
	maxTasks = 32_768
	// oomScore makes the kernel end sandboxes before the server and the host's own
	// services when memory runs out.
	oomScore = 500
	// cpuPeriod is in microseconds: the usual one.
	cpuPeriod = 100_000
	// minCPUQuota is the least that kernels take, in microseconds of a period.
	minCPUQuota = 1000
)

// fileCapabilities are what root in a sandbox may do to its own files, processes and
// ports. userCapabilities let it become other users, whose files a server that is not
// root could not read.
var (
	fileCapabilities = []string{"DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"}
	userCapabilities = []string{"CHOWN", "SETGID", "SETUID"}
)

// options describes a sandbox to the engine.
func (l *launcher) options(ctx context.Context, c *local.Cell, spec sandbox.Spec) (client.ContainerCreateOptions, error) {
	img, err := image{id: l.root}, error(nil)
	if spec.Image != "" {
		img, err = l.images.ensure(ctx, spec.Image)
		c.Record.Image = img.id
	}
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	ms, err := l.mounts(c, spec)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	return client.ContainerCreateOptions{
		Name: nameIn(c),
		Config: &container.Config{
			Image:      img.id,
			Hostname:   "sojourn",
			User:       l.user(),
			Entrypoint: c.KeeperArgs(),
			Cmd:        []string{},
			Env:        l.environment(c, img.env),
			WorkingDir: "/",
			Labels: map[string]string{
				labelServer: l.server, labelCell: c.Dir,
				labelSession: c.Session, labelEpoch: strconv.FormatInt(c.Epoch, 10),
			},
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // an image's would run in the sandbox
		},
		HostConfig: &container.HostConfig{
			NetworkMode:   "none",
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			LogConfig:     container.LogConfig{Type: "none"},
			CapDrop:       []string{"ALL"},
			CapAdd:        l.held(),
			SecurityOpt:   l.security,
			CgroupnsMode:  container.CgroupnsModePrivate,
			IpcMode:       container.IPCModePrivate,
			OomScoreAdj:   oomScore,
			Runtime:       l.engine.runtime,
			Init:          new(false), // the keeper is one
			Mounts:        ms,
			Resources:     l.resources(spec.Limits),
			// The keeper answers names; the host's servers are nobody's business inside.
			DNS:        []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
			DNSOptions: []string{"timeout:2", "attempts:1"},
			DNSSearch:  []string{"."},
		},
	}, nil
}

// user is whom the keeper runs as: root, or the server's own user where root's files
// would be out of its reach.
func (l *launcher) user() string {
	if l.engine.ownRoot() {
		return "0:0"
	}
	return strconv.Itoa(l.engine.uid) + ":" + strconv.Itoa(unix.Getegid())
}

// held are the capabilities of root in the sandbox; another user has none.
func (l *launcher) held() []string {
	switch {
	case l.engine.uid == 0:
		return append(fileCapabilities[:len(fileCapabilities):len(fileCapabilities)], userCapabilities...)
	case l.engine.rootless:
		return fileCapabilities
	}
	return nil
}

func (l *launcher) mounts(c *local.Cell, spec sandbox.Spec) ([]mount.Mount, error) {
	points, err := mountPoints()
	if err != nil {
		return nil, err
	}
	ms := []mount.Mount{
		bind(l.executable, sandbox.KeeperPath, true),
		bind(c.Run(), sandbox.SocketDir, true),
		bind(c.Workspace(), sandbox.WorkspacePath, false),
		bind(c.Home(), sandbox.HomePath, false),
	}
	if spec.Image == "" {
		for _, d := range l.binds {
			ms = append(ms, readOnly(points, d, d)...)
		}
	}
	for _, layer := range spec.Layers {
		source, err := filepath.EvalSymlinks(layer.Source) // mount points have their real names
		if err != nil {
			return nil, fmt.Errorf("layer: %w", err)
		}
		ms = append(ms, readOnly(points, source, layer.Target)...)
	}
	return ms, nil
}

func (l *launcher) resources(limits sandbox.Limits) container.Resources {
	r := container.Resources{Ulimits: []*container.Ulimit{{Name: "core", Soft: 0, Hard: 0}}}
	if limits.MemoryBytes > 0 {
		r.Memory, r.MemorySwap = limits.MemoryBytes, limits.MemoryBytes // both together: no swap
	}
	if limits.Processes > 0 {
		r.PidsLimit = new(int64(limits.Processes))
	}
	if limits.MilliCPUs > 0 {
		r.CPUPeriod, r.CPUQuota = cpuPeriod, max(int64(limits.MilliCPUs)*cpuPeriod/1000, minCPUQuota)
	}
	files := int64(limits.OpenFiles)
	if files == 0 {
		files = min(mayHave(unix.RLIMIT_NOFILE), openFiles)
	}
	r.Ulimits = append(r.Ulimits, &container.Ulimit{Name: "nofile", Soft: files, Hard: files})
	if l.engine.podman { // whose own number is one that not every machine lets it set
		tasks := min(mayHave(unix.RLIMIT_NPROC), maxTasks)
		r.Ulimits = append(r.Ulimits, &container.Ulimit{Name: "nproc", Soft: tasks, Hard: tasks})
	}
	return r
}

// mayHave is how much of a resource a process may have by the limit of this one: an engine
// of the same machine with no more rights cannot give more.
func mayHave(resource int) int64 {
	var r unix.Rlimit
	if unix.Getrlimit(resource, &r) != nil || r.Max > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(r.Max)
}

// parseLabels is the inverse of the labels in options.
func parseLabels(labels map[string]string) (made, bool) {
	m := made{dir: labels[labelCell], session: labels[labelSession]}
	epoch, err := strconv.ParseInt(labels[labelEpoch], 10, 64)
	if err != nil || !filepath.IsAbs(m.dir) || strings.ContainsRune(m.dir, 0) {
		return made{}, false
	}
	m.epoch = epoch
	return m, true
}
