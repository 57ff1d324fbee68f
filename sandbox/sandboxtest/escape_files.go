package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// ownLayer is why what looks like the host's can be written.
var ownLayer = map[sandbox.Isolation]string{
	sandbox.IsolationGVisor:    "it writes a layer of its own",
	sandbox.IsolationContainer: "it writes a layer of its own",
}

// escapeFiles are ways to files of the host.
var escapeFiles = []attempt{
	{name: "FileOfHost", try: func(s stage) error { return reads(s.Secret) }},
	{name: "FileOfHostThroughProcRoot", try: func(s stage) error { return reads("/proc/1/root" + s.Secret) }, bare: bareDepends},
	{name: "FileOfHostThroughOwnRoot", try: func(s stage) error { return reads("/proc/self/root/../../.." + s.Secret) }},
	{name: "FileOfHostThroughProcCwd", try: func(s stage) error { return reads("/proc/1/cwd/../../../../.." + s.Secret) }, bare: bareDepends},
	{name: "FileOfHostAboveWorkspace", try: func(s stage) error {
		return reads(s.Workspace + strings.Repeat("/..", 40) + s.Secret)
	}},
	{name: "FileOfHostThroughSymlink", try: func(s stage) error {
		link := filepath.Join(s.Workspace, "escape-link")
		_ = os.Remove(link)
		if err := os.Symlink(s.Secret, link); err != nil {
			return err
		}
		return reads(link)
	}},
	{name: "FileOfHostThroughHardLink", try: func(s stage) error {
		link := filepath.Join(s.Workspace, "escape-hard")
		_ = os.Remove(link)
		if err := os.Link(s.Secret, link); err != nil {
			return err
		}
		return reads(link)
	}, bare: bareDepends},
	{name: "FileOfHostByHandle", try: byHandle, bare: bareDepends},
	{name: "PasswordsOfHost", try: func(stage) error { return holds("/etc/shadow", "root:") }, bare: bareRoot},
	{name: "FileOfOtherSandbox", try: func(s stage) error { return reads(s.Other) }},
	{name: "DirectoryOfServer", try: func(s stage) error {
		_, err := os.ReadDir(s.Data)
		return err
	}},
	{name: "OurExecutable", try: func(s stage) error { return opens(s.Keeper, unix.O_WRONLY) }, bare: bareDepends},
	{name: "PlaceOfOurExecutable", try: func(s stage) error {
		name := s.Keeper + ".new"
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return err
		}
		return os.Remove(name)
	}, open: ownLayer},
	{name: "InheritedDescriptors", try: inherited, bare: bareDepends},
	{name: "ProgramsOfHost", try: func(stage) error {
		const name = "/usr/bin/sandboxtest-escape"
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return err
		}
		return os.Remove(name)
	}, bare: bareRoot, open: ownLayer},
	{name: "CrontabOfHost", try: func(stage) error {
		const name = "/etc/sandboxtest-escape"
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return err
		}
		return os.Remove(name)
	}, bare: bareRoot, open: ownLayer},
}

// reads reports whether a file with a secret of the host can be read.
func reads(path string) error { return holds(path, secretText) }

func holds(path, text string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return err
	}
	if !strings.Contains(string(b), text) {
		return fmt.Errorf("%s is another file of %d bytes", path, len(b))
	}
	return nil
}

// opens reports whether something can be opened, and closes it.
func opens(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return unix.Close(fd)
}

// anyOf tries several things and gets through if one does.
func anyOf(tries ...func() error) error {
	var stopped []error
	for _, try := range tries {
		err := try()
		if err == nil {
			return nil
		}
		stopped = append(stopped, err)
	}
	return errors.Join(stopped...)
}

// byHandle opens the root directory of the file system that the workspace is on by its
// inode number, around all paths.
func byHandle(s stage) error {
	dir, err := unix.Open(s.Workspace, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	// Inode 2 is the root of ext file systems, 128 of XFS.
	for _, inode := range []byte{2, 128} {
		var fd int
		fd, err = unix.OpenByHandleAt(dir, unix.NewFileHandle(1, []byte{inode, 0, 0, 0, 0, 0, 0, 0}), unix.O_RDONLY|unix.O_CLOEXEC)
		if err == nil {
			return unix.Close(fd)
		}
	}
	return fmt.Errorf("open by handle: %w", err)
}

// inherited looks for files that this program was given beside the standard three.
func inherited(stage) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || len(e.Name()) == 1 && e.Name() <= "2" {
			continue
		}
		// What is not a file is the Go runtime's own poller.
		if strings.HasPrefix(target, "/") && !strings.HasPrefix(target, "/proc/") && !strings.HasPrefix(target, "/sys/fs/cgroup") {
			return nil
		}
	}
	return errors.New("nothing was inherited")
}
