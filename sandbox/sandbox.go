package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
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
	// IsolationGVisor is a kernel of its own in user space.
	IsolationGVisor Isolation = "gvisor"
	// IsolationNamespace is the host's kernel with namespaces, a system call
	// filter and no capabilities.
	IsolationNamespace Isolation = "namespace"
	// IsolationNone is no wall at all: tests and development.
	IsolationNone Isolation = "none"
)

// Network says what a sandbox can reach. The zero value is nothing but itself.
type Network string

// The network modes.
const (
	// NetworkNone is a loopback interface and nothing else.
	NetworkNone Network = ""
)

// Limits bounds what a sandbox may use. Zero means no limit.
type Limits struct {
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	Processes   int   `json:"processes,omitempty"` // with their threads, and the keeper's
	MilliCPUs   int   `json:"milliCPUs,omitempty"` // 1000 is one core
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
	Layers  []Mount
	Limits  Limits
	Network Network
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
}

// LimitSupport says which limits a driver enforces on this machine.
type LimitSupport struct {
	Memory    bool `json:"memory"`
	Processes bool `json:"processes"`
	CPU       bool `json:"cpu"`
}

// Capabilities says what a driver can do on this machine.
type Capabilities struct {
	Isolation       Isolation    `json:"isolation"`
	Exec            bool         `json:"exec"`
	PTY             bool         `json:"pty"`
	ProcessSnapshot bool         `json:"processSnapshot"` // memory of processes can be saved and restored
	Limits          LimitSupport `json:"limits"`
	Networks        []Network    `json:"networks"`
	Unprivileged    bool         `json:"unprivileged"` // the driver runs without root
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

	// Destroy ends the sandbox and removes all of it. It may be called twice and
	// at the same time.
	Destroy(ctx context.Context) error
}
