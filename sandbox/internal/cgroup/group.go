package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxFile is how much of a file of the kernel is read.
const maxFile = 1 << 20

// Group is the control group of one sandbox.
type Group struct {
	tree   *Tree
	name   string
	bounds Limits
}

// Bounds are the limits that the group was made with, if it was made here.
func (g *Group) Bounds() Limits {
	if g == nil {
		return Limits{}
	}
	return g.bounds
}

// mkdir makes the group in all hierarchies. Somebody may remove an empty parent at the
// same time, so it is tried again.
func (g *Group) mkdir() error {
	var err error
	for range 10 {
		if err = g.tree.h.parents(); err == nil {
			err = g.mkdirOnce()
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return err
}

func (g *Group) mkdirOnce() error {
	for _, d := range g.tree.h.dirs(g.name) {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// Exists reports whether the group is there.
func (g *Group) Exists() bool {
	if g == nil {
		return false
	}
	for _, d := range g.tree.h.dirs(g.name) {
		if _, err := os.Stat(d); err == nil {
			return true
		}
	}
	return false
}

// Remove ends all members of the group and removes it. It is no error when it is not
// there.
func (g *Group) Remove(ctx context.Context) error {
	if g == nil {
		return nil
	}
	pause := time.Millisecond
	for _, d := range g.tree.h.dirs(g.name) {
		for {
			err := unix.Rmdir(d)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("remove control group %s: %w", g.name, err)
			}
			if err := kill(d, g.name); err != nil {
				return fmt.Errorf("end members of control group %s: %w", g.name, err)
			}
			select { // the kernel does not say when the last member is gone for good
			case <-ctx.Done():
				return fmt.Errorf("remove control group %s: %w", g.name, context.Cause(ctx))
			case <-time.After(pause):
			}
			pause = min(2*pause, 100*time.Millisecond)
		}
	}
	return nil
}

// kill sends SIGKILL to all members of the group with a name in a directory.
func kill(dir, name string) error {
	if write(dir, "cgroup.kill", "1") == nil {
		return nil
	}
	// Version 1 and early kernels: one by one. A descriptor of the process makes sure
	// that it is still the one that was asked about.
	for _, pid := range members(dir) {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
		if isMember(pid, name) {
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// isMember reports whether a process as a whole belongs to the group: a thread that
// starts a member visits the group, and the kernel then lists its process.
func isMember(pid int, name string) bool {
	text, err := read("/proc/"+strconv.Itoa(pid), "cgroup")
	return err == nil && strings.Contains(text, "/"+name)
}

// members are the processes that have a thread in the group of a directory.
func members(dir string) []int {
	text, err := read(dir, "cgroup.procs")
	if err != nil {
		return nil
	}
	var pids []int
	for f := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 { // 0 is in a namespace above
			pids = append(pids, pid)
		}
	}
	return pids
}

// write sets a file of a group that the kernel has made.
func write(dir, name, value string) error {
	if dir == "" { // of a controller that is not there
		return os.ErrNotExist
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// read returns a file of a group.
func read(dir, name string) (string, error) {
	if dir == "" {
		return "", os.ErrNotExist
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(b), err
}

// Start starts a command whose process is born in the group. Without a group it is
// cmd.Start.
func (g *Group) Start(cmd *exec.Cmd) error {
	if g == nil {
		return cmd.Start()
	}
	return g.tree.h.start(g.name, cmd)
}
