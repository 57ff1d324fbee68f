package cgroup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

const (
	// parentName is the group that has all owners' groups below it.
	parentName = "sojourn"
	// trialTime is how long the removal of a group may take that was never used.
	trialTime = 2 * time.Second
	// trialPrefix starts the names of groups with which Open tries what works.
	trialPrefix = "trial-"
)

// Config says where the kernel describes its groups. In the zero value that is /proc.
type Config struct {
	// Owner names the parent of the groups: letters and digits.
	Owner string
	// Mounts is a file in the form of /proc/self/mountinfo.
	Mounts string
	// Self is a file in the form of /proc/self/cgroup.
	Self string
}

// Support says what groups can bound on this machine.
type Support struct {
	Memory    bool
	Processes bool
	CPU       bool
	// Version is that of the control groups: 1, 2, or 0 when none can be used.
	Version int
	// Missing is what an operator can do about what cannot be bounded, as a
	// sentence; "" when everything can.
	Missing string
}

// Limits bounds a group. Zero means no limit.
type Limits struct {
	MemoryBytes int64 // swap counts too, where the kernel counts it
	Processes   int   // with their threads
	MilliCPUs   int   // 1000 is one core
	// KillTogether ends all processes of the group when one has to be killed for
	// memory, where the kernel can do that.
	KillTogether bool
}

// hierarchy is a version of control groups.
type hierarchy interface {
	version() int
	// parents makes the directories in which groups are made.
	parents() error
	// dirs are the directories of a group, or with the name "" of the parent.
	dirs(name string) []string
	// limit writes limits of a group that exists.
	limit(name string, l Limits) error
	stat(name string) (Stat, error)
	// start starts a command whose process is born in the group.
	start(name string, cmd *exec.Cmd) error
}

// Tree is the groups of one owner.
type Tree struct {
	h       hierarchy // nil when groups cannot be made
	support Support
}

// Open finds out what this machine allows by making a group and removing it. On
// version 2, when this process lives in a group that was delegated to it, Open moves
// the process to a group below that: only groups without members can have children
// with limits.
func Open(cfg Config) *Tree {
	if cfg.Mounts == "" {
		cfg.Mounts = "/proc/self/mountinfo"
	}
	if cfg.Self == "" {
		cfg.Self = "/proc/self/cgroup"
	}
	mounts, err := readMounts(cfg.Mounts)
	if err != nil {
		return &Tree{support: Support{Missing: "Control groups could not be found (" + err.Error() + ")."}}
	}
	var h hierarchy
	if v := newV1(mounts, cfg.Owner); v != nil {
		h = v
	} else if v := newV2(mounts, cfg); v != nil {
		h = v
	} else {
		return &Tree{support: Support{Missing: "Mount control groups at /sys/fs/cgroup to bound memory, processor and processes."}}
	}
	t := &Tree{h: h}
	t.support = t.try()
	if t.support.Version == 0 {
		t.h = nil
	}
	return t
}

// Support is what can be bounded.
func (t *Tree) Support() Support { return t.support }

// try sets each limit once and says what worked.
func (t *Tree) try() Support {
	trial := &Group{tree: t, name: trialPrefix + rand.Text()}
	if err := trial.mkdir(); err != nil {
		return Support{Missing: fixOf(t.h.version(), err)}
	}
	s := Support{
		Version:   t.h.version(),
		Memory:    t.h.limit(trial.name, Limits{MemoryBytes: 1 << 30}) == nil,
		Processes: t.h.limit(trial.name, Limits{Processes: 1 << 10}) == nil,
		CPU:       t.h.limit(trial.name, Limits{MilliCPUs: 500}) == nil,
	}
	if !s.Memory || !s.Processes || !s.CPU {
		s.Missing = fixOf(s.Version, errors.New("some controllers are missing"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	if err := trial.Remove(ctx); err != nil { // then sandboxes' could not be removed either
		return Support{Missing: fixOf(t.h.version(), err)}
	}
	return s
}

// fixOf says what an operator can do when groups cannot be made.
func fixOf(version int, err error) string {
	cause := "control groups of version " + strconv.Itoa(version) + ": " + err.Error()
	switch {
	case version == 1:
		return "Run the server as root, with /sys/fs/cgroup writable (" + cause + ")."
	case os.Geteuid() == 0:
		return "Let the server have a group of its own: Delegate=yes and DelegateSubgroup=server in its systemd unit, or in a container a writable /sys/fs/cgroup (" + cause + ")."
	}
	return "Run the server as root, or let its user have groups: Delegate=yes and DelegateSubgroup=server in a systemd user unit, and loginctl enable-linger (" + cause + ")."
}

// Make makes a group with limits. It is an error when it exists.
func (t *Tree) Make(name string, l Limits) (*Group, error) {
	if t.h == nil {
		return nil, errors.New("make control group: not possible on this machine")
	}
	g := &Group{tree: t, name: name, bounds: l}
	err := g.mkdir()
	if err == nil {
		err = t.h.limit(name, l)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), trialTime)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("make control group: %w", err), g.Remove(ctx))
	}
	return g, nil
}

// Group is the group with a name, whether it exists or not. It is nil when no group
// can exist; the methods of a nil group do what they do for a process without one.
func (t *Tree) Group(name string) *Group {
	if t.h == nil {
		return nil
	}
	return &Group{tree: t, name: name}
}

// List returns the names of all groups, also of those in which an Open that was killed
// tried what works.
func (t *Tree) List() ([]string, error) {
	if t.h == nil {
		return nil, nil
	}
	var names []string
	for _, d := range t.h.dirs("") {
		entries, err := os.ReadDir(d)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Close removes the parent of the groups if there are none. Groups stay as they are.
func (t *Tree) Close() {
	if t.h == nil {
		return
	}
	for _, d := range t.h.dirs("") {
		_ = os.Remove(d)               // not empty while there are groups,
		_ = os.Remove(filepath.Dir(d)) // or other owners
	}
}
