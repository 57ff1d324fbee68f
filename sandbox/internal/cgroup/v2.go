package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// serverName is the group below a delegated one in which the server itself is.
	serverName = "server"
	// wanted are the controllers that groups need.
	wanted = "memory pids cpu"
)

// v2 is control groups of version 2: one hierarchy.
type v2 struct {
	owner string
	base  string // the group below which ours are
	// inside says that the base has this process as a member, which must leave it
	// before groups below can have limits. Open alone changes it, with its trial.
	inside bool
}

// newV2 returns nil when version 2 is not mounted.
func newV2(mounts []mount, cfg Config) *v2 {
	i := slices.IndexFunc(mounts, func(m mount) bool { return m.unified })
	if i < 0 {
		return nil
	}
	v := &v2{owner: cfg.Owner, base: mounts[i].dir}
	own, err := ownGroup(cfg.Self)
	if err != nil {
		return v
	}
	// What is mounted may be the view of a group, while paths start at the root of
	// the namespace: only groups that are really there count.
	rel, err := filepath.Rel(mounts[i].root, own)
	if err != nil || !filepath.IsLocal(rel) {
		return v
	}
	dir := filepath.Join(v.base, rel)
	if filepath.Base(dir) == serverName && delegated(filepath.Dir(dir)) { // an earlier Open, or systemd
		v.base = filepath.Dir(dir)
		return v
	}
	if delegated(dir) {
		v.base, v.inside = dir, true
	}
	return v
}

// delegated reports whether groups may be made below the group of a directory. To root
// all can be written, so it goes by the mark that systemd makes, and by being the top
// of what is visible that is not the top of the machine.
func delegated(dir string) bool {
	if os.Geteuid() != 0 {
		return unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil &&
			unix.Access(dir, unix.W_OK) == nil
	}
	for _, mark := range []string{"trusted.delegate", "user.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, mark, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	_, typed := os.Stat(filepath.Join(dir, "cgroup.type")) // the top of the machine has none
	_, above := os.Stat(filepath.Join(filepath.Dir(dir), "cgroup.procs"))
	return typed == nil && above != nil
}

// ownGroup is the group of this process, a path from the root of its namespace.
func ownGroup(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if own, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return own, nil
		}
	}
	return "", errors.New("no group of version 2")
}

func (v *v2) version() int { return 2 }

func (v *v2) parents() error {
	if v.inside {
		server := filepath.Join(v.base, serverName)
		if err := os.Mkdir(server, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := write(server, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return fmt.Errorf("move the server to a group of its own: %w", err)
		}
		v.inside = false
	}
	dir := v.base
	for _, name := range []string{parentName, v.owner, ""} {
		if err := v.pass(dir); err != nil {
			return err
		}
		if name == "" {
			break
		}
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// pass lets the children of a group have the controllers that it has itself.
func (v *v2) pass(dir string) error {
	has, err := read(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	passed, err := read(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	for c := range strings.FieldsSeq(wanted) {
		if !slices.Contains(strings.Fields(has), c) || slices.Contains(strings.Fields(passed), c) {
			continue
		}
		if err := write(dir, "cgroup.subtree_control", "+"+c); err != nil {
			return fmt.Errorf("pass %s on to groups below %s: %w", c, dir, err)
		}
	}
	return nil
}

func (v *v2) dirs(name string) []string { return []string{v.dir(name)} }

func (v *v2) dir(name string) string { return filepath.Join(v.base, parentName, v.owner, name) }

func (v *v2) limit(name string, l Limits) error {
	dir := v.dir(name)
	if l.MemoryBytes > 0 {
		if err := write(dir, "memory.max", strconv.FormatInt(l.MemoryBytes, 10)); err != nil {
			return fmt.Errorf("limit memory: %w", err)
		}
		// Without swap of its own, memory is all there is; kernels without swap do
		// not have the file.
		if err := write(dir, "memory.swap.max", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("limit swap: %w", err)
		}
	}
	if l.KillTogether {
		if err := write(dir, "memory.oom.group", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("end processes together: %w", err)
		}
	}
	if l.Processes > 0 {
		if err := write(dir, "pids.max", strconv.Itoa(l.Processes)); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	if l.MilliCPUs > 0 {
		quota, period := bandwidth(l.MilliCPUs)
		if err := write(dir, "cpu.max", fmt.Sprintf("%d %d", quota, period)); err != nil {
			return fmt.Errorf("limit processor: %w", err)
		}
	}
	return nil
}

// start lets the kernel make the process in the group.
func (v *v2) start(name string, cmd *exec.Cmd) error {
	dir, err := os.Open(v.dir(name))
	if err != nil {
		return fmt.Errorf("join control group: %w", err)
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return cmd.Start()
}

func (v *v2) stat(name string) (Stat, error) {
	var r reader
	dir := v.dir(name)
	s := Stat{
		MemoryBytes:      r.number(dir, "memory.current"),
		MemoryPeakBytes:  r.number(dir, "memory.peak"), // since Linux 5.19
		MemoryLimitBytes: r.number(dir, "memory.max"),
		MemoryKills:      r.field(dir, "memory.events", "oom_kill"),
		Processes:        int(r.number(dir, "pids.current")),
		ProcessDenied:    r.field(dir, "pids.events", "max"),
		CPU:              r.microseconds(dir, "cpu.stat", "usage_usec"),
		CPUThrottled:     r.microseconds(dir, "cpu.stat", "throttled_usec"),
	}
	s.MemoryPeakBytes = max(s.MemoryPeakBytes, s.MemoryBytes)
	return s, r.err
}
