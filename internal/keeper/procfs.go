package keeper

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// task is a process as /proc shows it. Its state is stopped or dead only when
// that is true of every thread.
type task struct {
	pid, parent, group, session int
	state                       byte   // 'R', 'S', 'D', 'T', 't', 'Z', 'X', …
	since                       uint64 // when it began, in ticks: with pid, who it is; 0 when not shown
}

// stopped reports whether the task does not run and will not until continued.
func (t task) stopped() bool { return t.state == 'T' || t.state == 't' }

// dead reports whether the task has ended and only waits to be reaped.
func (t task) dead() bool { return t.state == 'Z' || t.state == 'X' || t.state == 'x' }

// tasks lists every process that /proc shows. Processes that end meanwhile
// are left out.
func tasks() ([]task, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []task
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if t, ok := readTask(pid); ok {
			all = append(all, t)
		}
	}
	return all, nil
}

func readTask(pid int) (task, bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return task{}, false
	}
	t, ok := parseStat(pid, stat)
	if ok && (t.stopped() || t.dead()) && threadRuns(dir+"/task") {
		t.state = 'R' // the main thread alone has stopped, or ended
	}
	return t, ok
}

// threadRuns reports whether a process has a thread that is neither stopped
// nor dead.
func threadRuns(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false // the process is gone
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, name := range names {
		stat, err := os.ReadFile(dir + "/" + name + "/stat")
		if err != nil {
			continue
		}
		if t, ok := parseStat(0, stat); ok && !t.stopped() && !t.dead() {
			return true
		}
	}
	return false
}

// parseStat reads /proc/PID/stat. The program's name stands in parentheses and
// may itself hold anything, so the fields are counted from the last one.
func parseStat(pid int, stat []byte) (task, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return task{}, false
	}
	f := bytes.Fields(stat[i+1:])
	if len(f) < 4 || len(f[0]) != 1 {
		return task{}, false
	}
	t := task{pid: pid, state: f[0][0]}
	for j, into := range []*int{&t.parent, &t.group, &t.session} {
		n, err := strconv.Atoi(string(f[j+1]))
		if err != nil {
			return task{}, false
		}
		*into = n
	}
	const began = 19 // counted from the state
	if len(f) > began {
		since, err := strconv.ParseUint(string(f[began]), 10, 64)
		if err != nil {
			return task{}, false
		}
		t.since = since
	}
	return t, true
}

// fileID names an open file, across processes.
type fileID struct{ dev, ino uint64 }

func idOf(fd int) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileID{}, err
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}

// holds reports whether the process has one of the files as stdin, stdout or
// stderr.
func holds(pid int, files map[fileID]bool) bool {
	for fd := range 3 {
		var st unix.Stat_t
		if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/fd/"+strconv.Itoa(fd), &st); err != nil {
			continue
		}
		if files[fileID{uint64(st.Dev), st.Ino}] {
			return true
		}
	}
	return false
}

// below picks from all the living descendants of the process pid.
func below(all []task, pid int) []task {
	in := map[int]bool{pid: true}
	for grown := true; grown; {
		grown = false
		for _, t := range all {
			if !in[t.pid] && in[t.parent] {
				in[t.pid], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(t task) bool { return !in[t.pid] || t.pid == pid || t.dead() })
}
