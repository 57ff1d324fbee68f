package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// command is the word that makes our executable behave as the init.
const command = "namespace-init"

// The descriptors that the init starts with, beside the standard three.
const (
	executableFD = 3 // our executable, to start from
	planFD       = 4 // a Unix socket: the plan comes in, an error goes out
)

// ready starts the line that the init says when all that is left to do is to become the
// keeper. How the root can be changed ends it.
const ready = "ready "

const (
	maxPlan = 1 << 20
	// maxTrees is how many descriptors of trees come with a plan; a message cannot
	// carry more than 253.
	maxTrees = 200
	maxError = 4 << 10
)

// plan is what the init has to build.
type plan struct {
	Trees []tree   `json:"trees"` // the root first
	Args  []string `json:"args"`
	Env   []string `json:"env"`
	// Received says that the trees come as open descriptors with the plan; else
	// the init opens their sources itself.
	Received bool `json:"received"`
	// Changes says that the second tree is where changes of the root are kept.
	Changes bool `json:"changes,omitempty"`
	// Groups says that more ids than 0 are mapped.
	Groups bool `json:"groups"`
	// Processes is how many processes and threads may run, where the init has to
	// see to it; 0 is no limit.
	Processes int `json:"processes,omitempty"`
	// OpenFiles is how many files a process may have open.
	OpenFiles uint64 `json:"openFiles"`
	// FileBytes is how large a file may become; 0 is no limit. No file can be larger
	// than the disk: where disks are only measured that makes up for the time
	// between.
	FileBytes uint64 `json:"fileBytes,omitempty"`
	// Share bounds what is written to directories in memory.
	Share local.Share `json:"share"`
}

// tree is a part of the host's files.
type tree struct {
	Source string `json:"source"`
	Target string `json:"target"` // absolute in the sandbox; "" is nowhere
	Write  bool   `json:"write,omitempty"`
	// Own says that files of the host's root belong to root in the sandbox, as its
	// own files must; without it they may belong to nobody.
	Own bool `json:"own,omitempty"`
}

// newPlan describes a sandbox to its init. What the sandbox changes in its root goes into
// the directory changes; without one the root is read-only.
func newPlan(c *local.Cell, root local.Root, changes, executable string, spec sandbox.Spec) plan {
	p := plan{
		Args: c.KeeperArgs(), Env: c.KeeperEnv(root.Env...),
		Processes: c.Processes(), OpenFiles: local.OpenFiles(spec.Limits, openFiles),
		FileBytes: uint64(spec.Limits.DiskBytes), Share: local.ShareOf(spec.Limits),
	}
	p.Trees = []tree{{Source: root.Dir, Target: "/", Own: changes != ""}}
	if p.Changes = changes != ""; p.Changes {
		p.Trees = append(p.Trees, tree{Source: changes, Write: true, Own: true})
	}
	p.Trees = append(p.Trees, []tree{
		{Source: executable, Target: sandbox.KeeperPath},
		{Source: c.Run(), Target: sandbox.SocketDir, Own: true},
		{Source: c.Workspace(), Target: sandbox.WorkspacePath, Write: true, Own: true},
		{Source: c.Home(), Target: sandbox.HomePath, Write: true, Own: true},
	}...)
	for _, d := range root.Binds {
		p.Trees = append(p.Trees, tree{Source: d, Target: d})
	}
	for _, l := range spec.Layers {
		p.Trees = append(p.Trees, tree{Source: l.Source, Target: l.Target})
	}
	return p
}

// send gives the plan to the init, with descriptors of its trees if there are any.
func (p plan) send(conn *net.UnixConn, trees []*os.File) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("send plan to init: %w", err)
	}
	if len(b) > maxPlan || len(trees) > maxTrees {
		return fmt.Errorf("send plan to init: %d bytes and %d trees are too many", len(b), len(trees))
	}
	var rights []byte
	if len(trees) > 0 {
		fds := make([]int, len(trees))
		for i, f := range trees {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	// One byte carries the descriptors; the plan follows as a stream.
	if _, _, err := conn.WriteMsgUnix([]byte{'p'}, rights, nil); err != nil {
		return fmt.Errorf("send plan to init: %w", err)
	}
	if _, err := conn.Write(b); err != nil {
		return fmt.Errorf("send plan to init: %w", err)
	}
	return conn.CloseWrite()
}

// receive reads the plan and the descriptors of its trees from the server. It waits
// for as long as the server lives.
func receive(fd int) (plan, []int, error) {
	byteRead, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*maxTrees))
	n, oobn, _, _, err := unix.Recvmsg(fd, byteRead, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return plan{}, nil, fmt.Errorf("receive plan: %w", err)
	}
	if n == 0 {
		return plan{}, nil, errors.New("receive plan: the server is gone")
	}
	var fds []int
	msgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return plan{}, nil, fmt.Errorf("receive plan: %w", err)
	}
	for i := range msgs {
		if fds, err = syscall.ParseUnixRights(&msgs[i]); err != nil {
			return plan{}, nil, fmt.Errorf("receive plan: %w", err)
		}
	}
	var b []byte
	for buf := make([]byte, 64<<10); ; {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return plan{}, nil, fmt.Errorf("receive plan: %w", err)
		}
		b = append(b, buf[:n]...)
		if n == 0 || len(b) > maxPlan {
			break
		}
	}
	var p plan
	if err := json.Unmarshal(b, &p); err != nil {
		return plan{}, nil, fmt.Errorf("receive plan: %w", err)
	}
	if len(p.Trees) == 0 || p.Received && len(fds) != len(p.Trees) {
		return plan{}, nil, fmt.Errorf("receive plan: %d descriptors for %d trees", len(fds), len(p.Trees))
	}
	return p, fds, nil
}
