package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pollWithoutPIDFD is how often a process is looked at on kernels older than 5.10,
// which cannot report the end of a process that is not a child.
const pollWithoutPIDFD = 250 * time.Millisecond

// Process identifies a process of this machine for as long as the machine is up,
// even when its id is used again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks from boot to the start of the process
	Boot  string `json:"boot"`  // the kernel's boot id
}

// FindProcess returns the identity of the process that has the id now. The error is
// fs.ErrNotExist when there is none, or when it is dead and waits to be reaped.
func FindProcess(pid int) (Process, error) {
	start, err := startTime(pid)
	if err != nil {
		return Process{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Process{}, fmt.Errorf("read boot id: %w", err)
	}
	return Process{PID: pid, Start: start, Boot: string(bytes.TrimSpace(boot))}, nil
}

// Alive reports whether the process still runs. When that cannot be told, as by a server
// that has no descriptors left, it counts as running: nobody may take a sandbox for ended
// because of that.
func (p Process) Alive() bool {
	alive, err := p.look()
	return alive || err != nil
}

// look reports whether the process runs. An error means that it cannot be told.
func (p Process) look() (alive bool, _ error) {
	now, err := FindProcess(p.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return now == p, err
}

// Kill sends SIGKILL to the process; it is no error when it has ended.
func (p Process) Kill() error {
	if p.PID <= 0 { // which would mean a group
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ENOSYS) {
		if alive, err := p.look(); !alive {
			return err
		}
		return ignoreESRCH(unix.Kill(p.PID, unix.SIGKILL))
	}
	if err != nil {
		return ignoreESRCH(err)
	}
	defer unix.Close(fd)
	if alive, err := p.look(); !alive { // the descriptor may be of a later process with the same id
		return err
	}
	return ignoreESRCH(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
}

// Wait returns nil when the process has ended, or the cause of the end of ctx. It
// reaps the process if it happens to be a child of this one.
func (p Process) Wait(ctx context.Context) error {
	_, err := p.wait(ctx)
	return err
}

// wait is Wait, and reports whether the process was killed, as far as one can know: of
// a process that is not a child it is assumed.
func (p Process) wait(ctx context.Context) (killed bool, _ error) {
	if p.PID <= 0 {
		return false, nil
	}
	err := p.waitPIDFD(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		err = p.waitPolling(ctx)
	}
	if err != nil {
		return false, err
	}
	var status unix.WaitStatus
	pid, err := unix.Wait4(p.PID, &status, unix.WNOHANG, nil)
	if err != nil || pid != p.PID { // somebody else's child, or reaped already
		return true, nil
	}
	return status.Signal() == unix.SIGKILL, nil
}

func (p Process) waitPIDFD(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.PID, errors.ErrUnsupported)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !p.Alive() {
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch process %d: %w", p.PID, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	// The runtime's poller waits until the descriptor is readable, which it is
	// from the moment the process ends.
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	})
	if ctx.Err() != nil && p.Alive() {
		return context.Cause(ctx)
	}
	if err != nil && p.Alive() {
		return fmt.Errorf("watch process %d: %w", p.PID, errors.ErrUnsupported)
	}
	return nil
}

func (p Process) waitPolling(ctx context.Context) error {
	tick := time.NewTicker(pollWithoutPIDFD)
	defer tick.Stop()
	for p.Alive() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// ProcessesNaming returns the processes that have an argument which contains id. An
// unprivileged caller sees its own processes only.
func ProcessesNaming(id string) ([]Process, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Process
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", d.Name(), "cmdline"))
		if err == nil && !bytes.Contains(line, []byte(id)) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		var p Process
		if err == nil {
			p, err = FindProcess(pid)
		}
		switch {
		case err == nil:
			found = append(found, p)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH): // which mean that it has ended
			return nil, fmt.Errorf("list processes: %w", err)
		}
	}
	return found, nil
}

// KillNaming ends all processes that have an argument which contains id, and those
// that they start meanwhile, and returns when none is left. Those that this process may
// not signal are somebody else's, who looks at the sandbox or wants it to stay.
func KillNaming(ctx context.Context, id string) error {
	foreign := make(map[Process]bool)
	for {
		left, err := ProcessesNaming(id)
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(p Process) bool { return foreign[p] })
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			err := p.Kill()
			if errors.Is(err, unix.EPERM) {
				foreign[p] = true
			} else if err != nil {
				return fmt.Errorf("kill process %d: %w", p.PID, err)
			}
		}
		for _, p := range left {
			if foreign[p] {
				continue
			}
			if err := p.Wait(ctx); err != nil {
				return fmt.Errorf("wait for process %d to end: %w", p.PID, err)
			}
		}
	}
}

// startTime returns field 22 of /proc/PID/stat. A zombie does not exist; one of whose
// threads still run does. The first process of a namespace is such a one after SIGKILL,
// while the last of its threads ends all others of the namespace.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, fmt.Errorf("find process %d: %w", pid, err)
	}
	// The name, field 2, is in parentheses and can hold anything, also parentheses.
	_, rest, _ := cutLast(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("find process %d: its stat is %.200q", pid, b)
	}
	if state, threads := fields[0], fields[17]; state == "X" || state == "Z" && (threads == "0" || threads == "1") {
		return 0, fmt.Errorf("find process %d: it is dead: %w", pid, fs.ErrNotExist)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("find process %d: %w", pid, err)
	}
	return start, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func ignoreESRCH(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
