package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	// dialTime is how long a socket may take to accept.
	dialTime = 5 * time.Second
	// answerTime is how long an engine may take to say what it is.
	answerTime = 20 * time.Second
)

// problem is why an engine cannot be used, and what an operator can do about it.
type problem struct {
	reason string // lower case, without a full stop
	fix    string // a sentence
}

func (p *problem) Error() string { return p.reason + " (" + strings.TrimSuffix(p.fix, ".") + ")" }

// engine is a container engine on this machine, and the runtime that was chosen.
type engine struct {
	*client.Client
	host      string
	info      system.Info
	runtime   string // as the engine lists it
	isolation sandbox.Isolation
	rootless  bool // the engine's own root is a plain user
	podman    bool
	uid       int // of this process
}

// connect finds an engine that can be used as cfg asks.
func connect(ctx context.Context, cfg Config) (*engine, error) {
	if cfg.Isolation == sandbox.IsolationMicroVM {
		if err := checkKVM("/dev/kvm"); err != nil {
			return nil, err
		}
	}
	hosts := hostsFor(cfg.Host, os.Getenv)
	var tried []error
	for _, host := range hosts {
		e, err := dial(ctx, host)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		if err := e.choose(cfg); err != nil {
			return nil, errors.Join(err, e.Close())
		}
		return e, nil
	}
	return nil, worst(tried)
}

// hostsFor lists the engines to try, best first.
func hostsFor(host string, getenv func(string) string) []string {
	if host != "" {
		return []string{host}
	}
	if host := getenv(client.EnvOverrideHost); host != "" {
		return []string{host}
	}
	hosts := []string{"unix:///run/docker.sock", "unix:///var/run/docker.sock"}
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		hosts = append(hosts, "unix://"+filepath.Join(dir, "docker.sock"), "unix://"+filepath.Join(dir, "podman", "podman.sock"))
	}
	return append(hosts, "unix:///run/podman/podman.sock")
}

// worst returns the error that an operator can do most about: an engine that is there
// and refuses tells more than one that is not there.
func worst(tried []error) error {
	for _, err := range tried {
		if !errors.Is(err, errNoSocket) {
			return err
		}
	}
	if len(tried) == 1 {
		return tried[0]
	}
	return &problem{
		"no container engine answers on this machine",
		"Install and start one: apt install docker.io, or podman with systemctl enable --now podman.socket; or set DOCKER_HOST.",
	}
}

// errNoSocket reports that nothing is at an engine's address.
var errNoSocket = errors.New("there is no such socket")

// dial connects to the engine at host and asks what it is.
func dial(ctx context.Context, host string) (*engine, error) {
	path, isUnix := strings.CutPrefix(host, "unix://")
	if !isUnix || !filepath.IsAbs(path) {
		return nil, &problem{
			fmt.Sprintf("the engine %.200q is not a Unix socket of this machine: directories of this one cannot be mounted elsewhere", host),
			"Use an engine on this machine, or run the server where the engine is.",
		}
	}
	if err := knock(ctx, path); err != nil {
		return nil, err
	}
	// The environment could redirect a client that is made from it.
	c, err := client.New(client.WithHost(host), client.WithUserAgent("sojourn"))
	if err != nil {
		return nil, fmt.Errorf("connect to engine at %s: %w", path, err)
	}
	e := &engine{Client: c, host: host, uid: os.Geteuid()}
	if err := e.ask(ctx, path); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return e, nil
}

// knock connects once, because the client's own errors do not say what is wrong.
func knock(ctx context.Context, path string) error {
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("engine at %s: %w", path, errNoSocket)
	case errors.Is(err, fs.ErrPermission):
		return &problem{
			fmt.Sprintf("the engine's socket %s may not be opened by user %d", path, os.Geteuid()),
			"Run the server as root, add its user to the group that owns the socket (usermod -aG docker USER), or start a rootless engine.",
		}
	case errors.Is(err, unix.ECONNREFUSED):
		return &problem{
			fmt.Sprintf("nothing listens on the engine's socket %s", path),
			"Start the engine: systemctl start docker, or systemctl start podman.socket.",
		}
	}
	return fmt.Errorf("connect to engine at %s: %w", path, err)
}

// ask finds out what the engine is and refuses what cannot work.
func (e *engine) ask(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if _, err := e.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		if cerrdefs.IsInvalidArgument(err) {
			return &problem{
				fmt.Sprintf("the engine at %s is too old: %v", path, err),
				"Update it: Docker 19.03 or later, or Podman 4 or later.",
			}
		}
		return fmt.Errorf("ask engine at %s for its version: %w", path, err)
	}
	r, err := e.Info(ctx, client.InfoOptions{})
	if err != nil {
		return fmt.Errorf("ask engine at %s what it can do: %w", path, err)
	}
	v, err := e.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return fmt.Errorf("ask engine at %s for its version: %w", path, err)
	}
	e.info, e.rootless = r.Info, secured(r.Info, "rootless")
	e.podman = slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
	return e.checkInfo()
}

func (e *engine) checkInfo() error {
	switch {
	case e.info.OSType != "" && e.info.OSType != "linux":
		return &problem{fmt.Sprintf("the engine runs %.40q, not linux", e.info.OSType), "Use an engine for Linux."}
	case e.secured("userns"):
		return &problem{
			"the engine maps users (userns-remap), so workspaces would belong to users that the server does not know",
			"Use an engine without userns-remap, or a rootless one with a server of the same user.",
		}
	case e.rootless && e.uid == 0:
		return &problem{
			"the engine is a plain user's and cannot enter directories of root",
			"Run the server as the engine's user, or use an engine that runs as root.",
		}
	}
	return nil
}

// secured reports whether the engine lists a security option.
func (e *engine) secured(name string) bool { return secured(e.info, name) }

func secured(info system.Info, name string) bool {
	return slices.ContainsFunc(info.SecurityOptions, func(o string) bool {
		first, _, _ := strings.Cut(o, ",")
		return first == "name="+name || first == name
	})
}

// secure returns the security options of sandboxes. Docker takes the list of system calls
// as it is, Podman as a file.
func (e *engine) secure(dir string) ([]string, error) {
	security := []string{"no-new-privileges"}
	if e.isolation != sandbox.IsolationContainer {
		return security, nil
	}
	list, err := filter()
	if err != nil {
		return nil, err
	}
	if e.podman {
		path := filepath.Join(dir, filterName)
		if err := writeWhole(path, list); err != nil {
			return nil, fmt.Errorf("write list of system calls: %w", err)
		}
		list = path
	}
	return append(security, "seccomp="+list), nil
}

// unfiltered reports whether sandboxes would run without a system call filter.
func (e *engine) unfiltered() bool {
	return !e.secured("seccomp") || slices.Contains(e.info.SecurityOptions, "name=seccomp,profile=unconfined")
}

// ownRoot reports whether root in a sandbox is a user of its own choice: with a server
// that is not root, and an engine that is, root's files could not be removed, so that
// the sandbox runs as the server's user.
func (e *engine) ownRoot() bool { return e.uid == 0 || e.rootless }

func (e *engine) capabilities(images bool) sandbox.Capabilities {
	shared := e.isolation == sandbox.IsolationContainer
	limits := sandbox.LimitSupport{
		Memory:    e.info.MemoryLimit,
		CPU:       e.info.CPUCfsQuota,
		Processes: e.info.PidsLimit && shared,
		OpenFiles: true,
	}
	return sandbox.Capabilities{
		Isolation:    e.isolation,
		Exec:         true,
		PTY:          true,
		Limits:       withHow(limits, e.info, shared),
		Networks:     []sandbox.Network{sandbox.NetworkNone},
		Images:       images,
		Unprivileged: e.uid != 0,
	}
}

// withHow says by which means limits hold, and what is missing.
func withHow(l sandbox.LimitSupport, info system.Info, shared bool) sandbox.LimitSupport {
	var missing []string
	for _, m := range []struct {
		has  bool
		name string
	}{{l.Memory, "memory"}, {l.CPU, "cpu"}, {l.Processes || !shared, "processes"}} {
		if !m.has {
			missing = append(missing, m.name)
		}
	}
	l.How = "The engine sets cgroups (version " + info.CgroupVersion + ")"
	if len(missing) > 0 {
		l.How += "; it may not limit " + strings.Join(missing, ", ") + " (a rootless engine needs cgroup version 2 and delegation by systemd)"
	}
	if !shared {
		l.How += "; processes of a kernel of the sandbox's own are not counted by the engine"
	}
	l.How += "; disk is not limited."
	return l
}
