package namespace

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
	"github.com/sojourn-dev/sojourn/sandbox/internal/nat"
)

// The ids of the host that sandboxes of a server with root get: 65,536 each, from a
// range that neither users, containers nor systemd use. Which ones follows from the
// sandbox's id, so two sandboxes hardly ever share them, and nothing depends on it.
const (
	firstHostID  = 0x4000_0000
	idsOfSandbox = 0x1_0000
	idRanges     = 0x3000
)

// launcher starts and ends the processes of a sandbox.
type launcher struct {
	roots      *local.Roots
	executable string
	privileged bool
	network    *nat.Network // nil where sandboxes cannot have one
}

// Launch starts the init in its namespaces, records it, gives it its plan and returns
// when it has become the keeper.
func (l *launcher) Launch(ctx context.Context, c *local.Cell, spec sandbox.Spec) (local.Process, error) {
	root, err := l.roots.Find(ctx, c, spec)
	if err != nil {
		return local.Process{}, err
	}
	changes := ""
	if root.IsImage() {
		if changes, err = makeChanges(c); err != nil {
			return local.Process{}, err
		}
	}
	p := newPlan(c, root, changes, l.executable, spec)
	p.Groups = l.privileged

	conn, initEnd, err := socketPair()
	if err != nil {
		return local.Process{}, err
	}
	defer conn.Close()
	child, err := l.start(c, initEnd)
	initEnd.Close()
	if err != nil {
		return local.Process{}, err
	}
	process, err := local.FindProcess(child.Pid)
	if err == nil {
		err = c.Begun(process)
	}
	if err == nil {
		err = l.attach(c, child.Pid, spec)
	}
	if err == nil {
		c.Record.Root, err = l.instruct(ctx, conn, p, child.Pid)
	}
	if err != nil {
		conn.Close() // an init without a plan ends
		return local.Process{}, errors.Join(err, child.Kill(), reap(child))
	}
	return process, child.Release() // whoever sees its end reaps it
}

// Resolve returns the digest of an image; see local.Resolver.
func (l *launcher) Resolve(ctx context.Context, reference string) (string, error) {
	return l.roots.Resolve(ctx, reference)
}

// Kill ends the keeper; the kernel ends everything else in its process namespace
// before the keeper counts as dead.
func (l *launcher) Kill(ctx context.Context, c *local.Cell) error {
	p := c.Record.Process
	if p.PID == 0 {
		return nil // nothing was started, or an init without a plan that is ending
	}
	if err := p.Kill(); err != nil {
		return fmt.Errorf("kill keeper: %w", err)
	}
	if err := p.Wait(ctx); err != nil {
		return err
	}
	return l.network.Detach(c.ID) // which the kernel may be about to do
}

func (l *launcher) start(c *local.Cell, initEnd *os.File) (*os.Process, error) {
	// The init starts from a descriptor: as another user it could not reach the
	// file by its path.
	exe, err := os.Open(l.executable)
	if err != nil {
		return nil, fmt.Errorf("start init: %w", err)
	}
	defer exe.Close()
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", executableFD), command, c.ID)
	cmd.Args[0] = "sojourn"
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{exe, initEnd}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Credential: &syscall.Credential{NoSetGroups: !l.privileged},
	}
	if l.privileged {
		first := hostIDs(c.ID)
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: idsOfSandbox}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
	} else {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if err := c.Start(cmd); err != nil {
		return nil, fmt.Errorf("make namespaces: %w", err)
	}
	return cmd.Process, nil
}

// instruct sends the plan and waits until the init has become the keeper, which closes
// its end of the socket, or says what went wrong. It returns how the sandbox's root can
// be changed.
func (l *launcher) instruct(ctx context.Context, conn *net.UnixConn, p plan, pid int) (root string, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var trees []*os.File
	if l.privileged {
		if trees, err = mapTrees(p.Trees, pid); err != nil {
			return "", err
		}
		defer closeAll(trees)
		p.Received = true
	}
	err = p.send(conn, trees) // an init that gave up has said why
	said, readErr := io.ReadAll(io.LimitReader(conn, maxError))
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", err
	case readErr != nil:
		return "", fmt.Errorf("wait for init: %w", readErr)
	case len(said) == 0:
		return "", errors.New("build sandbox: init died")
	}
	line, failure, _ := strings.Cut(string(said), "\n")
	root, isReady := strings.CutPrefix(line, ready)
	if !isReady || failure != "" {
		return "", fmt.Errorf("build sandbox: %s", cmp.Or(failure, line))
	}
	return root, nil
}

// hostIDs is the first id of the host for a sandbox.
func hostIDs(id string) int {
	b, err := hex.DecodeString(id[:4])
	if err != nil {
		panic(err) // local makes the ids
	}
	return firstHostID + (int(b[0])<<8|int(b[1]))%idRanges*idsOfSandbox
}

// socketPair returns the server's and the init's end of a connection.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to init: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "plan"), os.NewFile(uintptr(fds[1]), "plan")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("connect to init: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

// reap waits for a child that has been killed.
func reap(child *os.Process) error {
	_, err := child.Wait()
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
