package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// counters are how often a sandbox came to its limits, and how near. Not every engine
// tells, so they are read from the control group that the engine has put its first process
// into.
type counters struct {
	memoryKills     int64
	memoryPeakBytes int64
	processDenied   int64
	cpuThrottled    time.Duration
}

// groupsName is the file in a cell's private directory that says which control groups its
// first process is in: what they have counted is wanted when that process is gone.
const groupsName = "groups"

// rememberGroups notes the control groups of a process.
func rememberGroups(c *local.Cell, pid int) error {
	b, err := os.ReadFile(filepath.Join(procDir(pid), "cgroup"))
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Private(), groupsName), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note control groups: %w", err)
	}
	return nil
}

// readCounters reads those of a cell; what cannot be read is zero. An engine removes the
// groups soon after the sandbox has ended.
func readCounters(cell *local.Cell) counters {
	groups, _ := os.ReadFile(filepath.Join(cell.Private(), groupsName))
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var c counters
	for _, dir := range groupDirs(string(groups), string(mounts), "memory") {
		c.memoryKills = max(c.memoryKills, readCounter(dir, "oom_kill", "memory.events", "memory.oom_control"))
		c.memoryPeakBytes = max(c.memoryPeakBytes, readCounter(dir, "", "memory.peak", "memory.max_usage_in_bytes"))
	}
	for _, dir := range groupDirs(string(groups), string(mounts), "pids") {
		c.processDenied = max(c.processDenied, readCounter(dir, "max", "pids.events"))
	}
	for _, dir := range groupDirs(string(groups), string(mounts), "cpu") {
		c.cpuThrottled = max(c.cpuThrottled, time.Duration(readCounter(dir, "throttled_time", "cpu.stat")),
			time.Duration(readCounter(dir, "throttled_usec", "cpu.stat"))*time.Microsecond)
	}
	return c
}

// groupDirs returns where the control group of a process may be mounted: of a controller
// of version 1, and of version 2. groups is /proc/PID/cgroup, mounts a mountinfo.
func groupDirs(groups, mounts, controller string) []string {
	var dirs []string
	for line := range strings.Lines(groups) {
		// ID:CONTROLLERS:PATH, without controllers in version 2.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || f[1] != "" && !slices.Contains(strings.Split(f[1], ","), controller) {
			continue
		}
		if at, root := groupMount(mounts, f[1] == "", controller); at != "" {
			dirs = append(dirs, filepath.Join(at, strings.TrimPrefix(filepath.Clean("/"+f[2]), strings.TrimSuffix(root, "/"))))
		}
	}
	return dirs
}

// groupMount returns where a hierarchy is mounted, and which part of it.
func groupMount(mounts string, second bool, controller string) (at, root string) {
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, fs := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(fs) < 3 {
			continue
		}
		if second && fs[0] == "cgroup2" || !second && fs[0] == "cgroup" && slices.Contains(strings.Split(fs[2], ","), controller) {
			return unescape(f[4]), unescape(f[3])
		}
	}
	return "", ""
}

// readCounter returns the number after a key in the first of the files that is there. A
// file with one number has no key.
func readCounter(dir, key string, files ...string) int64 {
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			k, v, found := strings.Cut(strings.TrimSpace(line), " ")
			if !found {
				k, v = "", k
			}
			if k == key {
				n, _ := strconv.ParseInt(v, 10, 64) // the kernel's own
				return n
			}
		}
	}
	return 0
}
