package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/filter"
)

// openFiles is how many files a process in a sandbox may have open, if the server's own
// limit allows and the spec does not say.
const openFiles = 65_536

// oomScore makes the kernel end sandboxes before the server and the host's own services
// when memory runs out.
const oomScore = "500"

// maxCapability is a bound of the numbers of capabilities; the kernel answers EINVAL from
// its own on.
const maxCapability = 63

// Confine restricts this process as the plan on its standard input says, and becomes the
// keeper. main calls it for the argument "process-confine". It returns an exit code, and
// only when something failed; the server has been told what.
func Confine([]string) int {
	// Capabilities, filters and the exec at the end belong to this thread.
	runtime.LockOSThread()
	said := os.NewFile(3, "said")
	unix.CloseOnExec(3)
	p, err := receive(os.Stdin)
	if err == nil {
		err = become(p, said)
	}
	return say(said, err)
}

func receive(from io.Reader) (plan, error) {
	b, err := io.ReadAll(io.LimitReader(from, maxPlan+1))
	if err != nil {
		return plan{}, fmt.Errorf("receive plan: %w", err)
	}
	if len(b) == 0 {
		return plan{}, errors.New("receive plan: the server is gone")
	}
	var p plan
	if err := json.Unmarshal(b, &p); err != nil {
		return plan{}, fmt.Errorf("receive plan: %w", err)
	}
	if len(p.Args) == 0 {
		return plan{}, errors.New("receive plan: it names no program")
	}
	return p, nil
}

// become gives up what the sandbox must not have and turns into the keeper.
func become(p plan, said *os.File) error {
	if err := unix.Chdir(p.Dir); err != nil {
		return fmt.Errorf("enter workspace: %w", err)
	}
	unix.Umask(0o022)
	if err := limitResources(p); err != nil {
		return err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open null device: %w", err)
	}
	for fd := range 3 { // Dup3 leaves the copies open across the exec
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("replace standard files: %w", err)
		}
	}
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := restrictFiles(p); err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := filter.Deny(); err != nil {
		return err
	}
	_, _ = said.WriteString(ready) // that the server may be gone does not matter
	return fmt.Errorf("start keeper: %w", syscall.Exec(p.Args[0], p.Args, p.Env))
}

// What every sandbox may read of the host: programs, libraries and the settings that they
// need, none of which are private. /proc tells about processes; what is in them the kernel
// refuses to those outside their walls.
var (
	readDirs = []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc",
		"/etc/alternatives", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates",
		"/etc/crypto-policies", "/etc/ld.so.conf.d", "/etc/terminfo", "/etc/fonts", "/etc/perl", "/etc/python3",
		"/etc/python3.11", "/etc/python3.12", "/etc/python3.13", "/etc/java-17-openjdk", "/etc/java-21-openjdk", "/etc/java-25-openjdk",
	}
	readFiles = []string{
		"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf",
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/debian_version",
		"/etc/alpine-release", "/etc/redhat-release", "/etc/services", "/etc/protocols", "/etc/mime.types", "/etc/magic",
		"/etc/profile", "/etc/bash.bashrc", "/etc/inputrc", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/pki/tls/cert.pem",
		"/etc/pki/tls/openssl.cnf", "/etc/mtab",
	}
	devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"}
)

// restrictFiles says to the kernel what can be read and written, that no port can be opened
// or connected to, and that no signal leaves.
func restrictFiles(p plan) error {
	config := landlock.V9
	var layers []landlock.Rule
	for _, path := range p.Read {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("restrict files: %w", err)
		}
		if info.IsDir() {
			layers = append(layers, landlock.RODirs(path))
		} else {
			layers = append(layers, landlock.ROFiles(path))
		}
	}
	rules := append(layers,
		landlock.RODirs(readDirs...).IgnoreIfMissing(),
		landlock.ROFiles(readFiles...).IgnoreIfMissing(),
		landlock.RWFiles(devices...).WithIoctlDev().IgnoreIfMissing(),
		landlock.RWDirs("/dev/pts").WithIoctlDev().IgnoreIfMissing(),
		landlock.RWDirs(p.Write...).WithRefer(),
		landlock.RODirs(p.Sockets).WithResolveUnix(),
	)
	if err := config.BestEffort().Restrict(rules...); err != nil {
		return fmt.Errorf("restrict files: %w", err)
	}
	return nil
}

func limitResources(p plan) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0); err != nil {
		return fmt.Errorf("offer memory first: %w", err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("limit open files: %w", err)
	}
	limit := uint64(openFiles)
	if p.OpenFiles > 0 {
		limit = uint64(p.OpenFiles)
	}
	limit = min(files.Max, limit)
	// The runtime keeps a note of the soft limit to restore at exec, which
	// syscall.Setrlimit updates and the unix package's does not always.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
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

// dropCapabilities gives up all, for ever. Without root there are none to give up, and only
// the last step is possible.
func dropCapabilities() error {
	for c := uintptr(0); c <= maxCapability; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	// Root would get all that is not bounded back with the next program.
	const noRoot = 1<<0 | 1<<1 // SECBIT_NOROOT and its lock
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot, 0, 0, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("take root its meaning: %w", err)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
