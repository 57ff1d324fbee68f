package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/profiles/seccomp"
)

// forbidden are system calls that the lists of some engines allow to everybody and that
// go around what other walls look at.
var forbidden = []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd"}

// filterName is the file in the driver's directory with the list for Podman.
const filterName = "seccomp.json"

// filter is the list of system calls for sandboxes on the host's kernel, in the form that
// engines take. It is the list of today's engines, which those of some years ago have not.
func filter() (string, error) {
	p := seccomp.DefaultProfile()
	for _, s := range p.Syscalls {
		s.Names = slices.DeleteFunc(s.Names, func(name string) bool { return slices.Contains(forbidden, name) })
	}
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(s *seccomp.Syscall) bool { return len(s.Names) == 0 })
	b, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("write list of system calls: %w", err)
	}
	return string(b), nil
}

// writeWhole writes a file so that its name never has half of it.
func writeWhole(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(content)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
