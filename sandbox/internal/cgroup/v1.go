package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// v1 is control groups of version 1: a hierarchy for each controller, or for some
// together. Groups are made at the top of what is mounted, whatever group the server
// is in: that may be a different one after a restart, and one that ends with it.
type v1 struct {
	owner string
	by    map[string]string // the mount of each controller that is there
	bases []string          // the mounts, each once
}

// newV1 returns nil when no controller is mounted in version 1.
func newV1(mounts []mount, owner string) *v1 {
	v := &v1{owner: owner, by: make(map[string]string)}
	for _, m := range mounts {
		for _, c := range []string{"memory", "pids", "cpu", "cpuacct"} {
			if !slices.Contains(m.controllers, c) || v.by[c] != "" {
				continue
			}
			v.by[c] = m.dir
			if !slices.Contains(v.bases, m.dir) {
				v.bases = append(v.bases, m.dir)
			}
		}
	}
	if len(v.bases) == 0 {
		return nil
	}
	return v
}

func (v *v1) version() int { return 1 }

func (v *v1) parents() error {
	for _, d := range v.dirs("") {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (v *v1) dirs(name string) []string {
	var ds []string
	for _, b := range v.bases {
		ds = append(ds, filepath.Join(b, parentName, v.owner, name))
	}
	return ds
}

// dir is the directory of a group for a controller, or "" when the controller is not
// there.
func (v *v1) dir(controller, name string) string {
	if v.by[controller] == "" {
		return ""
	}
	return filepath.Join(v.by[controller], parentName, v.owner, name)
}

func (v *v1) limit(name string, l Limits) error {
	if l.MemoryBytes > 0 {
		bytes := strconv.FormatInt(l.MemoryBytes, 10)
		if err := write(v.dir("memory", name), "memory.limit_in_bytes", bytes); err != nil {
			return fmt.Errorf("limit memory: %w", err)
		}
		// Memory and swap together; kernels without the file do not count swap.
		err := write(v.dir("memory", name), "memory.memsw.limit_in_bytes", bytes)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("limit swap: %w", err)
		}
	}
	if l.Processes > 0 {
		if err := write(v.dir("pids", name), "pids.max", strconv.Itoa(l.Processes)); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	if l.MilliCPUs > 0 {
		quota, period := bandwidth(l.MilliCPUs)
		if err := write(v.dir("cpu", name), "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
			return fmt.Errorf("limit processor: %w", err)
		}
		if err := write(v.dir("cpu", name), "cpu.cfs_quota_us", strconv.Itoa(quota)); err != nil {
			return fmt.Errorf("limit processor: %w", err)
		}
	}
	return nil
}

// The period over which the kernel counts processor time, and its smallest quota, in
// microseconds.
const (
	usualPeriod   = 100_000
	longestPeriod = 1_000_000
	smallestQuota = 1_000
)

// bandwidth is the time a group may run in each period, in microseconds.
func bandwidth(milliCPUs int) (quota, period int) {
	period = usualPeriod
	if milliCPUs*period/1000 < smallestQuota {
		period = longestPeriod
	}
	return milliCPUs * (period / 1000), period
}

// start starts the command from a thread that has joined the group, because a process
// is born in the groups of the thread that makes it.
func (v *v1) start(name string, cmd *exec.Cmd) error {
	return onSpareThread(func() error {
		tid := strconv.Itoa(unix.Gettid())
		for _, d := range v.dirs(name) {
			if err := write(d, "tasks", tid); err != nil {
				return fmt.Errorf("join control group: %w", err)
			}
		}
		return cmd.Start()
	})
}

// onSpareThread runs do on a thread that ends afterwards and takes all that do changed
// about it with it.
func onSpareThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // until the goroutine ends, which ends the thread
		if unix.Gettid() != os.Getpid() {
			done <- do()
			return
		}
		// The first thread of a process cannot end. While it is held here another
		// one gets the work.
		done <- onSpareThread(do)
		runtime.UnlockOSThread()
	}()
	return <-done
}

func (v *v1) stat(name string) (Stat, error) {
	var r reader
	memory, cpu, pids := v.dir("memory", name), v.dir("cpu", name), v.dir("pids", name)
	s := Stat{
		MemoryBytes:      r.number(memory, "memory.usage_in_bytes"),
		MemoryPeakBytes:  r.number(memory, "memory.max_usage_in_bytes"),
		MemoryLimitBytes: r.number(memory, "memory.limit_in_bytes"),
		MemoryKills:      r.field(memory, "memory.oom_control", "oom_kill"),
		Processes:        int(r.number(pids, "pids.current")),
		ProcessDenied:    r.field(pids, "pids.events", "max"),
		CPU:              r.nanoseconds(v.dir("cpuacct", name), "cpuacct.usage", ""),
		CPUThrottled:     r.nanoseconds(cpu, "cpu.stat", "throttled_time"),
	}
	s.MemoryPeakBytes = max(s.MemoryPeakBytes, s.MemoryBytes)
	return s, r.err
}
