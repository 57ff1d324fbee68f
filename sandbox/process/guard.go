package process

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Guard starts the confined process, waits until it or the server wants the sandbox to end,
// and ends all of it. main calls it for the argument "process-guard". It returns the exit
// code.
//
// The guard stays outside the walls, where nothing inside can signal it. As the parent of
// all orphans it sees whatever process the keeper or others leave behind.
func Guard(args []string) int {
	if len(args) != 1 {
		return 2
	}
	said := os.NewFile(3, "said")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return say(said, err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)

	cmd := exec.Command("/proc/self/exe", confineCommand, args[0])
	cmd.Args[0] = os.Args[0]
	cmd.Stdin = os.Stdin
	cmd.Env = []string{markVariable + "=" + args[0]}
	cmd.ExtraFiles = []*os.File{said}
	if err := cmd.Start(); err != nil {
		return say(said, err)
	}
	said.Close()
	os.Stdin.Close()
	for reap(cmd.Process.Pid) {
		select {
		case <-ended:
			continue
		case <-stop:
		}
		break
	}
	endChildren()
	return 0
}

// say tells the server what failed.
func say(said *os.File, err error) int {
	_, _ = said.WriteString(err.Error()) // that the server may be gone does not matter
	return 1
}

// reap waits for all children that have ended, and reports whether main is not among them.
func reap(main int) bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case pid == main:
			return false
		case errors.Is(err, unix.EINTR):
		case err != nil, pid == 0:
			return !errors.Is(err, unix.ECHILD)
		}
	}
}

// endChildren kills all descendants and returns when there are none. Each round stops the
// living before it kills them, so that nothing is forked behind its back for long, and what
// loses its parent becomes a child of this process.
func endChildren() {
	self := os.Getpid()
	for {
		living := descendants(self)
		for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, pid := range living {
				_ = unix.Kill(pid, sig) // it may have ended
			}
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return
			}
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		time.Sleep(time.Millisecond) // dying takes a moment
	}
}

// descendants lists the processes below one, in no order.
func descendants(root int) []int {
	parents := make(map[int]int)
	for _, pid := range processes() {
		if parent, ok := parentOf(pid); ok {
			parents[pid] = parent
		}
	}
	var found []int
	for pid := range parents {
		at, ok := pid, true
		for steps := 0; ok && at != root && steps <= len(parents); steps++ { // /proc was read while it changed
			at, ok = parents[at]
		}
		if ok && at == root && pid != root {
			found = append(found, pid)
		}
	}
	return found
}

// processes lists the ids of all processes that can be seen.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf returns field 4 of /proc/PID/stat. The name, field 2, is in parentheses and can
// hold anything.
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return parent, err == nil
}
