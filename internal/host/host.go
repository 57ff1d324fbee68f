package host

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// State is how a check ended.
type State string

// The states.
const (
	Works   State = "works"
	Limited State = "limited" // it works, and less well than it could
	Fails   State = "fails"
	Off     State = "off" // it is possible, and nobody asked for it
	Untried State = "untried"
)

// Check is one thing that was looked at.
type Check struct {
	Name  string `json:"name"` // stable; words joined by hyphens
	State State  `json:"state"`
	Says  string `json:"says"`          // one sentence or a few
	Fix   string `json:"fix,omitempty"` // one sentence: what an operator can do
}

// Machine is what there is to look at.
type Machine struct {
	// Files is the root directory of the machine.
	Files fs.FS
	// Open tries to open a device for reading and writing; it is an absolute path.
	Open func(device string) error
	// Find returns where a program is that the server would start.
	Find func(program string) (string, error)
	// Space tells how many bytes are free for this user where an absolute path is,
	// or will be once it is made.
	Space func(path string) (int64, error)
	UID   int
	// OpenFiles is how many files this process may have open at most.
	OpenFiles uint64
}

// Here is this machine.
func Here() Machine {
	m := Machine{Files: os.DirFS("/"), Open: openDevice, Find: exec.LookPath, Space: space, UID: os.Geteuid()}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		m.OpenFiles = r.Max
	}
	return m
}

func openDevice(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func space(p string) (int64, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(p, &s)
		if err == nil {
			return int64(s.Bavail) * s.Bsize, nil
		}
		if up := path.Dir(p); err == unix.ENOENT && up != p {
			p = up
			continue
		}
		return 0, &fs.PathError{Op: "statfs", Path: p, Err: err}
	}
}

// maxFile bounds what is read of a file: kernel tables are short.
const maxFile = 1 << 20

// read returns the content of a file by its absolute path, without space around it.
func (m Machine) read(p string) (string, error) {
	f, err := m.Files.Open(strings.TrimPrefix(p, "/"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return strings.TrimSpace(string(b)), err
}

func (m Machine) exists(p string) bool {
	_, err := fs.Stat(m.Files, strings.TrimPrefix(p, "/"))
	return err == nil
}

// Bytes is a number of bytes for people.
func Bytes(n int64) string {
	const units = "KMGTPE"
	v, unit := float64(n), -1
	for v >= 1024 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	switch {
	case unit < 0:
		return fmt.Sprintf("%d bytes", n)
	case v < 10:
		return fmt.Sprintf("%.1f %ciB", v, units[unit])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[unit])
}
