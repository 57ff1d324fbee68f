package keeper

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// parseSignal reads "SIGTERM" or "TERM", and "interrupt" as the public
// protocol says it.
func parseSignal(name string) (unix.Signal, error) {
	upper := strings.ToUpper(name)
	if upper == "INTERRUPT" {
		return unix.SIGINT, nil
	}
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	if sig := unix.SignalNum(upper); sig != 0 {
		return sig, nil
	}
	return 0, invalid("signal %q is not known", name)
}

func signalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(sig)) // the realtime signals have no names
}

// send signals a target of the child. That nobody is left to get it is no
// error: the process may end at any moment anyway.
func (c *child) send(sig unix.Signal, target string, self int) error {
	var err error
	switch target {
	case link.TargetProcess:
		if c.ended.Load() {
			return nil
		}
		err = unix.Kill(c.pid, sig)
	case "", link.TargetGroup:
		if c.renumbered() {
			return nil
		}
		err = unix.Kill(-c.pid, sig)
		if fg := c.foreground(); fg > 0 && fg != c.pid {
			err = errors.Join(ignoreGone(err), unix.Kill(-fg, sig))
		}
	case link.TargetTree:
		_, err = c.sendTree(sig, self)
	default:
		return invalid("target %q is not known", target)
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// foreground is the process group that a terminal's keys go to, or 0.
func (c *child) foreground() int {
	if c.tty == nil {
		return 0
	}
	raw, err := c.tty.SyscallConn()
	if err != nil {
		return 0
	}
	group := 0
	// A terminal that has been closed has no foreground.
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCGPGRP); err == nil {
			group = n
		}
	})
	return group
}

// renumbered reports whether the number of the ended main process belongs to
// another process by now. While anything of its group or session is left the
// kernel does not give it away, so then nothing is.
func (c *child) renumbered() bool {
	return c.ended.Load() && unix.Access("/proc/"+strconv.Itoa(c.pid), unix.F_OK) == nil
}

// tree picks from all processes those that the child has started.
func (c *child) tree(all []task, self int) []task {
	pid := c.pid
	if c.renumbered() {
		pid = -1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	tree := treeOf(all, roots{pid: pid, files: c.files, known: c.known, others: c.reap.mains(), self: self})
	c.known.learn(all, tree)
	return tree
}

// sendTree signals everything that the child has started and reports how many
// processes that were.
func (c *child) sendTree(sig unix.Signal, self int) (int, error) {
	all, err := tasks()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	tree := c.tree(all, self)
	var failed []error
	// The kernel signals a group as a whole: who forks meanwhile gets it, too.
	group := slices.ContainsFunc(tree, func(t task) bool { return t.group == c.pid })
	if group {
		failed = append(failed, ignoreGone(unix.Kill(-c.pid, sig)))
	}
	for _, t := range tree {
		if group && t.group == c.pid {
			continue
		}
		if err := ignoreGone(unix.Kill(t.pid, sig)); err != nil {
			failed = append(failed, fmt.Errorf("signal process %d: %w", t.pid, err))
		}
	}
	return len(tree), errors.Join(failed...)
}

// sendAll signals everything in the sandbox but the keeper.
func sendAll(sig unix.Signal) error {
	if os.Getpid() != 1 {
		return &link.Error{Code: link.CodeUnsupported, Message: "signals to all processes: this keeper is not PID 1"}
	}
	return ignoreGone(unix.Kill(-1, sig))
}
