package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// Paths that are the same inside every sandbox.
const (
	// WorkspacePath is the directory that the agent works in: a read-write view
	// of [Dirs.Workspace].
	WorkspacePath = "/workspace"
	// HomePath is the home directory of the agent: a read-write view of
	// [Dirs.Home].
	HomePath = "/home/agent"
	// KeeperPath is our own executable, read-only.
	KeeperPath = "/.sojourn/sojourn"
	// SocketDir is the directory with the socket that the keeper dials.
	SocketDir = "/run/sojourn"
	// SocketName is the name of that socket in [SocketDir].
	SocketName = "keeper.sock"
	// EgressSocketName is the name in [SocketDir] of the socket that leads out of
	// the sandbox, while the server serves one. It is an HTTP proxy.
	EgressSocketName = "egress.sock"
	// EgressAddress is where the keeper listens inside the sandbox and passes
	// connections on to that socket.
	EgressAddress = "127.0.0.1:3128"
	// TokenVariable is the environment variable in which the keeper gets the
	// token that it must send first on each connection.
	TokenVariable = "SOJOURN_KEEPER_TOKEN"
)

var (
	// ErrGone reports that a sandbox does not run any more and never will again.
	ErrGone = errors.New("sandbox is gone")
	// ErrUnsupported reports that a driver cannot do what a spec asks for.
	ErrUnsupported = errors.New("not supported by this sandbox driver")
	// ErrInvalidSpec reports a spec that no driver can carry out.
	ErrInvalidSpec = errors.New("invalid sandbox spec")
)

// Isolation is the kind of wall around a sandbox.
type Isolation string

// The kinds of isolation, strongest first.
const (
	// IsolationMicroVM is a machine of its own under a hypervisor.
	IsolationMicroVM Isolation = "microvm"
	// IsolationGVisor is a kernel of its own in user space.
	IsolationGVisor Isolation = "gvisor"
	// IsolationNamespace is the host's kernel with namespaces, a system call
	// filter and no capabilities.
	IsolationNamespace Isolation = "namespace"
	// IsolationContainer is the host's kernel, walled off by a container engine.
	IsolationContainer Isolation = "container"
	// IsolationProcess is the host's kernel and processes, with files and TCP
	// walled off by Landlock: development.
	IsolationProcess Isolation = "process"
	// IsolationNone is no wall at all: tests and development.
	IsolationNone Isolation = "none"
)

// Network says which interfaces a sandbox has. The zero value is a loopback and
// nothing else: the only way out is then the socket named [EgressSocketName].
type Network string

// The network modes.
const (
	// NetworkNone is a loopback interface and nothing else.
	NetworkNone Network = ""
	// NetworkNAT adds an interface whose traffic the host translates and filters:
	// public addresses only. It needs root.
	NetworkNAT Network = "nat"
)

// Limits bounds what a sandbox may use. Zero means no limit.
type Limits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	Processes   int   `json:"processes,omitempty"` // with their threads, and the keeper's
	MilliCPUs   int   `json:"milliCPUs,omitempty"` // 1000 is one core
	// DiskBytes is what workspace and home take of the host's disk together, with
	// what their file system needs. What can be written elsewhere is kept in memory,
	// counts as memory, and is together no more than that once again.
	DiskBytes int64 `json:"diskBytes,omitempty"`
	OpenFiles int   `json:"openFiles,omitempty"` // of each process
}

// Mount is an extra read-only view of a host file or directory.
type Mount struct {
	Source string `json:"source"` // absolute path on the host
	Target string `json:"target"` // absolute path in the sandbox
}

// Spec describes a sandbox to make.
type Spec struct {
	Session string // 1 to 64 of A-Z a-z 0-9 _ -
	Epoch   int64  // not negative
	// Image is the root file system: a reference that the driver's [Images]
	// understands. "" is the driver's own root, which needs no image.
	Image   string
	Layers  []Mount
	Limits  Limits
	Network Network
	// Resume, if set, starts the sandbox with the processes of a [Snapshot]
	// instead of a fresh keeper. The caller fills workspace and home as they were
	// then before it dials: see [Resumer].
	Resume *Resume
}

// Image is a root file system on this host.
type Image struct {
	Reference string   `json:"reference"` // as it was asked for
	Digest    string   `json:"digest"`    // "sha256:…" of the manifest or archive; never changes its content
	Dir       string   `json:"dir"`       // the unpacked tree, read-only and shared; has our mount points
	Env       []string `json:"env,omitempty"`
}

// Images is where local drivers get root file systems from.
type Images interface {
	// Ensure makes the image be there, unpacked and verified, and keeps it while
	// a sandbox uses it. It is quick when it is there already.
	Ensure(ctx context.Context, reference string) (Image, error)
}

// MountPointer is an [Images] that can add mount points for layers to an image which
// is there. Without it they must be in the image already.
type MountPointer interface {
	AddMountPoints(ctx context.Context, image Image, layers []Mount) error
}

// Snapshot describes the saved processes of a sandbox. It can be stored, and it
// holds secrets of the sandbox.
type Snapshot struct {
	Driver string `json:"driver"`
	// Build names everything that a restore must have the same of: the
	// executable, the kind of processor, the image.
	Build string `json:"build"`
	Bytes int64  `json:"bytes"` // of the files in the directory
	// Data is the driver's own.
	Data json.RawMessage `json:"data,omitempty"`
}

// Resume names what a sandbox starts from.
type Resume struct {
	Dir      string // with the files that Snapshot wrote; read only
	Snapshot Snapshot
}

// Snapshotter is a [Sandbox] whose processes can be saved. Whether they can is
// said by [Capabilities.ProcessSnapshot].
type Snapshotter interface {
	// Snapshot saves the processes into the empty host directory dir and ends the
	// sandbox, with the reason EndSnapshot. Its files stay in [Dirs] until Destroy.
	// When it fails the sandbox either runs on as it was or has ended: Done says
	// which.
	Snapshot(ctx context.Context, dir string) (Snapshot, error)
}

// Resumer is a [Driver] that makes a sandbox from a snapshot in two steps, because
// files must be in place before processes go on.
type Resumer interface {
	// Prepare makes the directories of spec's sandbox and nothing else, so that
	// the caller can restore files into them. Create with the same session and
	// epoch and with Resume set goes on from there; Remove undoes it. It returns
	// ErrUnsupported, with the reason, when the snapshot cannot be used here.
	Prepare(ctx context.Context, spec Spec) (Dirs, error)
}

// Warmer is a [Driver] that can keep sandboxes ready which belong to no session
// yet. A Create whose spec asks for the same takes one of them.
type Warmer interface {
	// Warm makes there be n ready sandboxes for specs like spec, whose Session,
	// Epoch and Resume are ignored: it makes one after another, or ends those that
	// are too many. It returns when they are ready or one could not be made. Taken
	// ones are not replaced by themselves. Those of an earlier server are not used.
	Warm(ctx context.Context, spec Spec, n int) error
	// Ready is how many ready sandboxes there are for specs like spec. It is quick.
	Ready(spec Spec) int
}

// Cleaner is a [Driver] that removes what an earlier server left on the host when it
// opens its directory.
type Cleaner interface {
	// Leftovers says what it could not remove; nil when there is nothing.
	Leftovers() error
}

// Uninstaller is a [Driver] that has something on the host outside of its directory
// which is not a sandbox's: rules of a firewall, images in an engine.
type Uninstaller interface {
	// Uninstall removes it, for a directory that is about to be removed and has no
	// sandboxes. The driver can only be closed then.
	Uninstall(ctx context.Context) error
}

// Usage is what a sandbox has used. What a driver cannot tell is zero.
type Usage struct {
	MemoryBytes     int64         `json:"memoryBytes"`
	MemoryPeakBytes int64         `json:"memoryPeakBytes"`
	CPU             time.Duration `json:"cpu"`          // since it started
	CPUThrottled    time.Duration `json:"cpuThrottled"` // that processes were kept from running at the limit
	Processes       int           `json:"processes"`
	DiskBytes       int64         `json:"diskBytes"`
	// How often a limit was reached since the sandbox started. They only grow.
	MemoryKills   int64 `json:"memoryKills"`
	ProcessDenied int64 `json:"processDenied"`
	DiskDenied    int64 `json:"diskDenied"`
}

// Meter is a [Sandbox] that tells its usage. All local drivers' are. Beside an error
// the usage has what could be told all the same: of a sandbox that does not answer, what
// the host has counted.
type Meter interface {
	Usage(ctx context.Context) (Usage, error)
}

// EndReason says why a sandbox ended.
type EndReason string

// The reasons.
const (
	EndExited      EndReason = "exited"        // its first process ended
	EndOutOfMemory EndReason = "out_of_memory" // it was killed at its memory limit
	EndDiskFull    EndReason = "disk_full"     // it was ended at its disk limit
	EndSnapshot    EndReason = "snapshot"      // its processes were saved
	EndKilled      EndReason = "killed"        // Kill ended its processes
	EndDestroyed   EndReason = "destroyed"
)

// EndError is why a sandbox ended. It wraps ErrGone.
type EndError struct {
	Reason EndReason
	Detail string
}

// Error returns the reason and the detail.
func (e *EndError) Error() string {
	return ErrGone.Error() + " (" + string(e.Reason) + "): " + e.Detail
}

// Unwrap returns ErrGone.
func (e *EndError) Unwrap() error { return ErrGone }

// ReasonOf returns why a sandbox ended, from its Err; "" when that does not say.
func ReasonOf(err error) EndReason {
	if e, ok := errors.AsType[*EndError](err); ok {
		return e.Reason
	}
	return ""
}

// Handle is what a driver needs to find a sandbox again. It can be stored, and it
// holds secrets of the sandbox.
type Handle struct {
	Driver  string          `json:"driver"`
	Session string          `json:"session"`
	Epoch   int64           `json:"epoch"`
	Data    json.RawMessage `json:"data,omitempty"` // the driver's own; may be empty in handles from List
}

// Dirs are the host directories behind the fixed paths of a sandbox. What is in
// them was written by the sandbox and must be handled as hostile.
type Dirs struct {
	Workspace string
	Home      string
	// Sockets is the directory behind [SocketDir]. The server makes sockets in it;
	// the sandbox can only connect to them.
	Sockets string
}

// LimitSupport says which limits a driver enforces on this machine.
type LimitSupport struct {
	Memory    bool `json:"memory"`
	Processes bool `json:"processes"`
	CPU       bool `json:"cpu"`
	Disk      bool `json:"disk"`
	OpenFiles bool `json:"openFiles"`
	// How is one sentence: by which means, and what is missing for the rest.
	How string `json:"how,omitempty"`
}

// Capabilities says what a driver can do on this machine.
type Capabilities struct {
	Isolation       Isolation    `json:"isolation"`
	Exec            bool         `json:"exec"`
	PTY             bool         `json:"pty"`
	ProcessSnapshot bool         `json:"processSnapshot"` // memory of processes can be saved and restored
	Limits          LimitSupport `json:"limits"`
	Networks        []Network    `json:"networks"`
	Images          bool         `json:"images"` // Spec.Image is understood
	// HostPaths says that programs see the host's paths: the fixed ones are those
	// of the keeper's protocol only.
	HostPaths    bool `json:"hostPaths,omitempty"`
	Unprivileged bool `json:"unprivileged"` // the driver runs without root
}

// Report is the outcome of trying a driver on this machine by running a process
// in a sandbox.
type Report struct {
	Driver       string    `json:"driver"`
	Available    bool      `json:"available"`
	Reason       string    `json:"reason"`        // one sentence: what works, or what does not
	Fix          string    `json:"fix,omitempty"` // one sentence: what an operator can do about it
	Isolation    Isolation `json:"isolation"`
	Unprivileged bool      `json:"unprivileged"` // it was tried without root
}

// Driver makes sandboxes of one kind in one directory.
type Driver interface {
	// Name is the name of the driver in handles: "gvisor", "namespace", "fake".
	Name() string
	Capabilities() Capabilities

	// Create makes the sandbox of spec's session and epoch, or returns the one
	// that exists. It returns when the sandbox process runs; the keeper may still
	// be starting. When it fails nothing is left of the sandbox.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Recover takes a running sandbox over from an earlier driver on the same
	// directory. The error is ErrGone when it does not run any more.
	Recover(ctx context.Context, h Handle) (Sandbox, error)

	// List returns all sandboxes of the directory that exist in any form: also
	// those that were never finished and those whose processes have died.
	List(ctx context.Context) ([]Handle, error)

	// Remains returns the directories of a sandbox that has ended, or runs, and was
	// not removed yet, so that its files can be read. The error is ErrGone when
	// they are not there.
	Remains(ctx context.Context, h Handle) (Dirs, error)

	// Remove destroys what is left of a sandbox in whatever state it is. It is
	// no error when nothing is left.
	Remove(ctx context.Context, h Handle) error

	// Close lets go of all sandboxes without ending them and waits for the
	// driver's goroutines. It may be called twice.
	Close() error
}

// Sandbox is one running sandbox.
type Sandbox interface {
	Handle() Handle

	// Dial returns a verified connection to the keeper; it waits for the keeper
	// to call. There is one connection at a time: Dial closes the one that an
	// earlier Dial returned. The error wraps ErrGone when the sandbox has ended.
	Dial(ctx context.Context) (io.ReadWriteCloser, error)

	Dirs() Dirs

	// Done is closed when the sandbox has ended, for whatever reason.
	Done() <-chan struct{}

	// Err is nil until Done is closed. Then it says why the sandbox ended and
	// wraps ErrGone.
	Err() error

	// Kill ends all processes of the sandbox at once, whatever state they are in and
	// without a word to the keeper, which may not answer any more. Its files stay,
	// as [Driver.Remains] has them, until Destroy. After nil Done is closed, with the
	// reason EndKilled unless the sandbox had ended before. An error means that
	// processes may still run, as one does that the host's kernel holds: Kill can be
	// tried again. It may be called twice and at the same time.
	Kill(ctx context.Context) error

	// Destroy ends the sandbox and removes all of it. It may be called twice and
	// at the same time.
	Destroy(ctx context.Context) error
}
