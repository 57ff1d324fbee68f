package namespace

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/filter"
)

// Init is process 1 of a sandbox before it is the keeper: it builds the sandbox and
// replaces itself. main calls it for the argument "namespace-init", before anything
// else. It returns an exit code, and only when something failed; the server has been
// told what.
func Init([]string) int {
	// Capabilities, filters and the exec at the end belong to this thread.
	runtime.LockOSThread()
	unix.CloseOnExec(executableFD)
	unix.CloseOnExec(planFD)
	p, trees, err := receive(planFD)
	var root string
	if err == nil {
		root, err = build(p, trees)
	}
	if err == nil {
		err = become(p, root)
	}
	say(err.Error())
	return 1
}

// say tells the server something; that it may be gone does not matter.
func say(what string) { _, _ = unix.Write(planFD, []byte(what)) }

// build makes the sandbox's world: files, devices, network and name. It says how its
// root can be changed.
func build(p plan, trees []int) (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("make mounts private: %w", err)
	}
	if !p.Received {
		for _, t := range p.Trees {
			f, err := openTree(t)
			if err != nil {
				return "", err
			}
			trees = append(trees, int(f.Fd()))
			defer runtime.KeepAlive(f)
		}
	}
	root, err := buildRoot(p, trees)
	if err != nil {
		return "", err
	}
	if err := raiseLoopback(); err != nil {
		return "", err
	}
	if err := unix.Sethostname([]byte("sojourn")); err != nil {
		return "", fmt.Errorf("set host name: %w", err)
	}
	return root, nil
}

// become gives up what the sandbox must not have and turns into the keeper.
func become(p plan, root string) error {
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter root directory: %w", err)
	}
	unix.Umask(0o022)
	if err := limitResources(p); err != nil {
		return err
	}
	// Nothing that was inherited or opened on the way stays open.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := restrictFiles(root != rootReadOnly); err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := filter.Allow(); err != nil {
		return err
	}
	say(ready + root + "\n")
	return fmt.Errorf("start keeper: %w", syscall.Exec(p.Args[0], p.Args, p.Env))
}

// raiseLoopback starts the only network interface that there is.
func raiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	return nil
}

const (
	// openFiles is how many files a process in a sandbox may have open, if the
	// server's own limit allows.
	openFiles = 65_536
	// oomScore makes the kernel end sandboxes before the server and the host's own
	// services when memory runs out.
	oomScore = "500"
)

func limitResources(p plan) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0); err != nil {
		return fmt.Errorf("offer memory first: %w", err)
	}
	if n := uint64(p.Processes); n > 0 {
		// The kernel counts those of the sandbox's own user namespace.
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("limit open files: %w", err)
	}
	files.Max = min(files.Max, p.OpenFiles)
	files.Cur = files.Max
	// The runtime keeps a note of the soft limit to restore at exec, which
	// syscall.Setrlimit updates and the unix package's does not always.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files.Cur, Max: files.Max}); err != nil {
		return fmt.Errorf("limit open files: %w", err)
	}
	if n := p.FileBytes; n > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit size of files: %w", err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit core files: %w", err)
	}
	return nil
}
