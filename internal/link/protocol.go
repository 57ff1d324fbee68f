package link

import (
	"encoding/json"
	"math"
	"time"
)

// The methods of the public exec-server protocol that both sides speak.
const (
	MethodInitialize       = "initialize"
	MethodInitialized      = "initialized"
	MethodEnvironmentInfo  = "environment/info"
	MethodProcessStart     = "process/start"
	MethodProcessRead      = "process/read"
	MethodProcessWrite     = "process/write"
	MethodProcessSignal    = "process/signal"
	MethodProcessTerminate = "process/terminate"
	MethodReadFile         = "fs/readFile"
	MethodWriteFile        = "fs/writeFile"
	MethodCreateDirectory  = "fs/createDirectory"
	MethodGetMetadata      = "fs/getMetadata"
	MethodReadDirectory    = "fs/readDirectory"
	MethodRemove           = "fs/remove"
	MethodCopy             = "fs/copy"
	MethodCanonicalize     = "fs/canonicalize"
)

// Our own methods. A stock exec-server answers them with "method not found".
const (
	MethodAck          = "sojourn/process/ack"
	MethodProcessList  = "sojourn/process/list"
	MethodCloseStdin   = "sojourn/process/closeStdin"
	MethodResize       = "sojourn/process/resize"
	MethodProcessDrop  = "sojourn/process/remove"
	MethodSignalTarget = "sojourn/process/signal"
	MethodFreeze       = "sojourn/freeze"
	MethodThaw         = "sojourn/thaw"
	MethodSync         = "sojourn/sync"
	MethodStats        = "sojourn/stats"
	MethodShutdown     = "sojourn/shutdown"
	MethodRun          = "sojourn/process/run"
)

// Revision numbers our extensions as this code knows them. Each side tells its
// own at initialize, and both keep to the lower one.
//
//	0 (or none)  no more than the methods of the first keepers
//	1            process/run; ackSeq and gatherUs in reads; process/remove
//	             also as a notification; payloads: of answers with output or
//	             a file, and of process/write and fs/writeFile
const Revision = 1

// Notifications from the serving side. Each carries the processId and, where
// it has one, the per-process sequence number.
const (
	NotifyOutput = "process/output"
	NotifyExited = "process/exited"
	NotifyClosed = "process/closed"
)

// The streams of a process's output.
const (
	Stdout = "stdout"
	Stderr = "stderr"
	PTY    = "pty"
)

// What the keeper does with output that nobody has read yet.
const (
	RetainRing = "ring" // keep the newest; what is dropped is reported (the default)
	RetainAck  = "ack"  // keep all until acknowledged; a full spool stops the process's pipe
	// RetainFollow is a ring that waits for its reader: while one reads, what it
	// has not seen is not dropped and a full spool stops the process. Ten seconds
	// without a read make it a ring.
	RetainFollow = "follow"
)

// Targets of a signal.
const (
	TargetProcess = "process" // the main process alone
	TargetGroup   = "group"   // its process group (the default)
	TargetTree    = "tree"    // group, session, descendants and whoever holds its output pipes
	TargetAll     = "all"     // everything in the sandbox but the keeper; only where it is PID 1
)

// The words process/write answers with.
const (
	WriteAccepted       = "accepted"
	WriteUnknownProcess = "unknownProcess"
	WriteStdinClosed    = "stdinClosed"
	WriteStarting       = "starting"
	WriteGap            = "gap" // only to a write with an offset
)

// InitializeParams opens a connection. Sojourn is absent when a foreign
// client connects.
type InitializeParams struct {
	ClientName      string             `json:"clientName"`
	ResumeSessionID string             `json:"resumeSessionId,omitempty"`
	Sojourn         *InitializeSojourn `json:"sojourn,omitempty"`
}

// InitializeSojourn is our part of initialize. Epoch is the lease's fencing
// number; Notify asks for process notifications (a foreign client always gets
// them, ours reads instead unless it asks).
type InitializeSojourn struct {
	Epoch    int64 `json:"epoch"`
	Notify   bool  `json:"notify,omitempty"`
	Revision int   `json:"revision,omitempty"`
}

// InitializeResult answers initialize. Sojourn is absent when the server is
// foreign.
type InitializeResult struct {
	SessionID string            `json:"sessionId"`
	Sojourn   *ServerExtensions `json:"sojourn,omitempty"`
}

// ServerExtensions says that the server knows our methods.
type ServerExtensions struct {
	Epoch    int64 `json:"epoch"` // the newest it has seen
	Revision int   `json:"revision,omitempty"`
}

// Info describes the place where processes run.
type Info struct {
	Shell Shell  `json:"shell"`
	Cwd   string `json:"cwd,omitempty"` // absolute, or a file URI from a stock exec-server
	// Places says where directories of the sandbox really lie, when processes see
	// them there and not at the paths of the protocol.
	Places map[string]string `json:"places,omitempty"`
	// Path is PATH of the server's own environment, which in a sandbox is that of its
	// image; "" from a stock exec-server.
	Path string `json:"path,omitempty"`
}

// Shell is the login shell found there.
type Shell struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// ProcessStartParams is process/start on the wire.
type ProcessStartParams struct {
	ProcessID string               `json:"processId"`
	Argv      []string             `json:"argv"`
	Cwd       string               `json:"cwd"`
	Env       map[string]string    `json:"env"`
	TTY       bool                 `json:"tty"`
	PipeStdin bool                 `json:"pipeStdin"`
	Arg0      *string              `json:"arg0"`
	EnvPolicy *EnvPolicy           `json:"envPolicy,omitempty"`
	Sojourn   *ProcessStartSojourn `json:"sojourn,omitempty"`
}

// EnvPolicy says what a process inherits from the server's own environment
// before Env is laid over it. Without one it inherits nothing. Patterns have *
// and ?, and no case.
type EnvPolicy struct {
	Inherit               string            `json:"inherit"` // "all", "core" or "none"
	IgnoreDefaultExcludes bool              `json:"ignoreDefaultExcludes"`
	Exclude               []string          `json:"exclude"`
	Set                   map[string]string `json:"set"`
	IncludeOnly           []string          `json:"includeOnly"`
}

// ProcessStartSojourn is our part of process/start: how output is kept, how
// large the terminal is, and how long the process may run (0: for ever).
type ProcessStartSojourn struct {
	Retain     string `json:"retain,omitempty"`
	SpoolBytes int64  `json:"spoolBytes,omitempty"`
	Rows       uint16 `json:"rows,omitempty"`
	Cols       uint16 `json:"cols,omitempty"`
	TimeoutMs  int64  `json:"timeoutMs,omitempty"`
	GraceMs    int64  `json:"graceMs,omitempty"`

	// User asks for another identity; nothing grants that yet.
	User json.RawMessage `json:"user,omitempty"`
}

// ProcessReadParams is process/read on the wire. A nil AfterSeq reads from
// the oldest chunk held.
type ProcessReadParams struct {
	ProcessID string              `json:"processId"`
	AfterSeq  *int64              `json:"afterSeq"`
	MaxBytes  *int                `json:"maxBytes"`
	WaitMs    *int64              `json:"waitMs"`
	Sojourn   *ProcessReadOptions `json:"sojourn,omitempty"`
}

// ProcessReadOptions is our part of a read: what it releases before it reads, and
// how long it waits for more once there is something.
type ProcessReadOptions struct {
	AckSeq   int64 `json:"ackSeq,omitempty"`
	GatherUs int64 `json:"gatherUs,omitempty"`
}

// ProcessRunParams starts a process and reads it.
type ProcessRunParams struct {
	Start ProcessStartParams `json:"start"`
	Read  ProcessReadParams  `json:"read"` // its processId is ignored
}

// OutputChunk is one piece of output on the wire. Offset counts the bytes of
// all streams that came before it, so a gap is measurable.
type OutputChunk struct {
	Seq    int64  `json:"seq"`
	Stream string `json:"stream"`
	Chunk  []byte `json:"chunk"`
	Size   int    `json:"size,omitempty"` // in place of the bytes, when they are in the payload
	Offset int64  `json:"offset,omitempty"`
}

// ProcessReadResult answers process/read on the wire.
type ProcessReadResult struct {
	Chunks   []OutputChunk       `json:"chunks"`
	NextSeq  int64               `json:"nextSeq"`
	Exited   bool                `json:"exited"`
	ExitCode *int                `json:"exitCode"`
	Closed   bool                `json:"closed"`
	Failure  *string             `json:"failure"`
	Denied   bool                `json:"sandboxDenied"`
	Sojourn  *ProcessReadSojourn `json:"sojourn,omitempty"`
}

// ProcessReadSojourn is our part of a read.
type ProcessReadSojourn struct {
	Signal       string `json:"signal,omitempty"`
	FailureKind  string `json:"failureKind,omitempty"`
	FirstSeq     int64  `json:"firstSeq"`
	DroppedBytes int64  `json:"droppedBytes,omitempty"`
	ProcessEnding
}

// ProcessEnding is an [Ending] on the wire, its times in microseconds.
type ProcessEnding struct {
	TimedOut    bool  `json:"timedOut,omitempty"`
	RunTimeUs   int64 `json:"runTimeUs,omitempty"`
	CPUTimeUs   int64 `json:"cpuTimeUs,omitempty"`
	MaxRSSBytes int64 `json:"maxRssBytes,omitempty"`
}

// ending refuses to believe in times that run backward.
func (e *ProcessEnding) ending() Ending {
	return Ending{
		TimedOut: e.TimedOut, RunTime: micros(e.RunTimeUs), CPUTime: micros(e.CPUTimeUs), MaxRSSBytes: max(e.MaxRSSBytes, 0),
	}
}

func micros(us int64) time.Duration {
	return time.Duration(min(max(us, 0), int64(math.MaxInt64/time.Microsecond))) * time.Microsecond
}

// ProcessWriteParams is process/write on the wire.
type ProcessWriteParams struct {
	ProcessID string `json:"processId"`
	Chunk     []byte `json:"chunk"`
	WriteID   string `json:"writeId"`

	Sojourn *ProcessWriteOptions `json:"sojourn,omitempty"`
}

// ProcessWriteOptions are what a keeper of ours knows beside.
type ProcessWriteOptions struct {
	// Offset is where the chunk lies in all that is written with an offset. Such
	// a write needs no id: what was taken of it before is left out.
	Offset int64 `json:"offset"`
}

// ProcessWriteResult answers process/write with one of the Write words.
type ProcessWriteResult struct {
	Status string `json:"status"`
	// Taken is, after a gap, how much was taken of what is written with an offset.
	Taken int64 `json:"taken,omitempty"`
}

// ProcessParams names a process and nothing else.
type ProcessParams struct {
	ProcessID string `json:"processId"`
}

// AckParams releases the chunks up to and including Seq.
type AckParams struct {
	ProcessID string `json:"processId"`
	Seq       int64  `json:"seq"`
}

// ResizeParams sets the size of a process's terminal, in cells.
type ResizeParams struct {
	ProcessID string `json:"processId"`
	Rows      uint16 `json:"rows"`
	Cols      uint16 `json:"cols"`
}

// SignalParams sends Signal ("SIGTERM") to a target; see the Target words.
type SignalParams struct {
	ProcessID string `json:"processId"`
	Signal    string `json:"signal"`
	Group     string `json:"group,omitempty"`
}

// TerminateParams ends a process: TERM, a grace, KILL.
type TerminateParams struct {
	ProcessID string            `json:"processId"`
	Sojourn   *TerminateSojourn `json:"sojourn,omitempty"`
}

// TerminateSojourn is our part of process/terminate. Zero grace kills at once.
type TerminateSojourn struct {
	GraceMs int64 `json:"graceMs"`
}

// TerminateResult says whether the process was still running.
type TerminateResult struct {
	Running bool `json:"running"`
}

// Process is one row of sojourn/process/list.
type Process struct {
	ProcessID      string   `json:"processId"`
	Argv           []string `json:"argv"`
	PID            int      `json:"pid,omitempty"`
	TTY            bool     `json:"tty,omitempty"`
	Retain         string   `json:"retain"`
	StartedAtMs    int64    `json:"startedAtMs"`
	FirstSeq       int64    `json:"firstSeq"`
	NextSeq        int64    `json:"nextSeq"`
	HeldBytes      int64    `json:"heldBytes"`
	DroppedBytes   int64    `json:"droppedBytes,omitempty"`
	DiscardedBytes int64    `json:"discardedBytes,omitempty"` // written by leftovers after closed
	Exited         bool     `json:"exited"`
	ExitCode       *int     `json:"exitCode"`
	Signal         string   `json:"signal,omitempty"`
	Failure        string   `json:"failure,omitempty"`
	FailureKind    string   `json:"failureKind,omitempty"`
	Closed         bool     `json:"closed"`
	ProcessEnding
}

// Ending is what is known of the process once it has exited.
func (p *Process) Ending() Ending { return p.ending() }

// ProcessListResult answers sojourn/process/list.
type ProcessListResult struct {
	Processes []Process `json:"processes"`
}

// FreezeResult counts the processes that a freeze stopped.
type FreezeResult struct {
	Stopped int `json:"stopped"`
}

// Stats is the keeper's account of itself and of what it sees.
type Stats struct {
	Epoch      int64 `json:"epoch"`
	UptimeMs   int64 `json:"uptimeMs"`
	Processes  int   `json:"processes"`  // known to the keeper, finished ones included
	Running    int   `json:"running"`    // of those, not exited
	SpoolBytes int64 `json:"spoolBytes"` // held in all spools
	Tasks      int   `json:"tasks"`      // processes the kernel shows, where the keeper is PID 1
	Frozen     bool  `json:"frozen"`
}

// ShutdownParams ends every process and then the keeper.
type ShutdownParams struct {
	GraceMs int64 `json:"graceMs"`
}

// PathParams names a file by absolute path or file URI.
type PathParams struct {
	Path string `json:"path"`
}

// ReadFileResult answers fs/readFile.
type ReadFileResult struct {
	Data []byte `json:"dataBase64"`
}

// WriteFileParams is fs/writeFile on the wire.
type WriteFileParams struct {
	Path string `json:"path"`
	Data []byte `json:"dataBase64"`
}

// CreateDirectoryParams is fs/createDirectory on the wire.
type CreateDirectoryParams struct {
	Path      string `json:"path"`
	Recursive *bool  `json:"recursive,omitempty"`
}

// Metadata answers fs/getMetadata. Kind flags follow links, IsSymlink does not.
type Metadata struct {
	IsDirectory  bool  `json:"isDirectory"`
	IsFile       bool  `json:"isFile"`
	IsSymlink    bool  `json:"isSymlink"`
	Size         int64 `json:"size"`
	CreatedAtMs  int64 `json:"createdAtMs"`
	ModifiedAtMs int64 `json:"modifiedAtMs"`
}

// DirEntry is one name in a directory.
type DirEntry struct {
	Name        string `json:"fileName"`
	NameBytes   []byte `json:"fileNameBase64,omitempty"` // set by the keeper when Name is not valid UTF-8
	IsDirectory bool   `json:"isDirectory"`
	IsFile      bool   `json:"isFile"`
}

// ReadDirectoryResult answers fs/readDirectory.
type ReadDirectoryResult struct {
	Entries []DirEntry `json:"entries"`
}

// RemoveParams is fs/remove on the wire.
type RemoveParams struct {
	Path      string `json:"path"`
	Recursive *bool  `json:"recursive,omitempty"`
	Force     *bool  `json:"force,omitempty"`
}

// CopyParams is fs/copy on the wire.
type CopyParams struct {
	SourcePath      string `json:"sourcePath"`
	DestinationPath string `json:"destinationPath"`
	Recursive       bool   `json:"recursive"`
}

// CanonicalizeResult answers fs/canonicalize.
type CanonicalizeResult struct {
	Path string `json:"path"`
}
