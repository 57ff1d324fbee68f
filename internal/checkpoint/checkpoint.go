package checkpoint

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Errors a caller can act on. All are wrapped with the object or path.
var (
	// ErrCorrupt means that stored bytes are not what was written.
	ErrCorrupt = errors.New("checkpoint is corrupt")
	// ErrMissing means that an object is not in the bucket.
	ErrMissing = errors.New("object is missing")
	// ErrExists means that an object of that name exists with other content.
	ErrExists = errors.New("object exists with other content")
	// ErrNoSpace means that the bucket or the target file system is full.
	ErrNoSpace = errors.New("out of space")
	// ErrNotEmpty means that a restore target holds files already.
	ErrNotEmpty = errors.New("target is not empty")
	// ErrLimit means that a bound of the format was reached.
	ErrLimit = errors.New("limit reached")
)

// RootID is the SHA-256 of a root object as 64 hex digits. It names one
// checkpoint.
type RootID string

// PackID names a pack: 26 characters, unique for ever.
type PackID string

// Ref is what a caller stores to find a checkpoint again.
type Ref struct {
	ID    RootID
	Bytes int64 // length of the root object
}

// Digest is a SHA-256.
type Digest [32]byte

// String returns the digest as 64 hex digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Tree names one of the trees of a checkpoint.
type Tree string

// The trees.
const (
	Workspace    Tree = "workspace"
	Conversation Tree = "conversation"
)

// Reason says why a tree was not captured or is not exact. Empty means it is.
type Reason string

// The reasons.
const (
	ReasonNotRequested Reason = "not_requested" // the spec named no directory
	ReasonTooLarge     Reason = "too_large"     // more data than the cap
	ReasonTorn         Reason = "torn"          // a file changed while it was read, three times
	ReasonChanged      Reason = "changed"       // entries vanished, were replaced or written during the capture
	ReasonUnreadable   Reason = "unreadable"    // an entry could not be read; Detail names it
	ReasonLimit        Reason = "limit"         // deeper or longer names than the format carries
)

// Spec says what to capture.
type Spec struct {
	Workspace string   // host directory of the workspace; "" = no such tree
	Home      string   // host directory of the conversation; "" = no such tree
	State     []string // globs below Home; ** crosses directories; a directory that matches is taken whole

	Agent  json.RawMessage // kept in the root as it is; at most 1 MiB
	Parent *Ref            // pages and chunks are shared with it; nil = none
	Cache  *Cache          // nil = read every file

	WorkspaceMaxBytes    int64 // cap on data bytes, holes not counted; 0 = none
	ConversationMaxBytes int64

	// AllowTorn keeps trees with torn files, marked as not exact. Otherwise
	// such a tree is left out with ReasonTorn.
	AllowTorn bool
}

// Capture is a finished capture. It becomes a checkpoint when the caller
// records Ref together with Packs.
type Capture struct {
	Ref          Ref
	Packs        []PackRef // every pack the root refers to, parent's included
	Workspace    TreeInfo
	Conversation TreeInfo
	Notes        []Note // the first 100 of each capture
	Counts       map[NoteKind]int64
	Stored       int64 // bytes written to the bucket
	ReadFiles    int64 // files whose bytes were read rather than believed unchanged
}

// PackRef is a pack that a root refers to.
type PackRef struct {
	ID    PackID
	Bytes int64
	New   bool // written by this capture
}

// TreeInfo is the outcome for one tree.
type TreeInfo struct {
	Captured bool
	Exact    bool   // captured, and nothing moved meanwhile
	Reason   Reason // why not Captured, or why not Exact
	Detail   string // the entry or limit behind Reason, quoted
	Digest   string // hex; equal for equal trees
	Entries  int64
	Bytes    int64 // sum of the sizes of regular files
	Data     int64 // the same without holes
}

// NoteKind classifies what a capture left out or noticed.
type NoteKind string

// The kinds of notes.
const (
	NoteSocket   NoteKind = "socket"
	NoteFifo     NoteKind = "fifo"
	NoteDevice   NoteKind = "device"
	NoteVanished NoteKind = "vanished" // gone between the listing and the reading
	NoteReplaced NoteKind = "replaced" // another file under the same name
	NoteChanged  NoteKind = "changed"  // written since the capture began
	NoteTorn     NoteKind = "torn"     // changed while it was read
	NoteOwner    NoteKind = "owner"    // restore: owner not given back (not privileged)
	NoteXattr    NoteKind = "xattr"    // restore: attribute refused by the target file system
)

// Note is one entry that was left out or noticed.
type Note struct {
	Kind NoteKind
	Tree Tree
	Path string // bytes as they are on disk
}

// Target says where to restore.
type Target struct {
	Workspace string // existing directory; "" = do not restore this tree
	Home      string // the same for the conversation
	Empty     bool   // remove what the directories hold; otherwise that is ErrNotEmpty
	Cache     *Cache // if not nil, learns the restored files so that the next capture need not read them
}

// Report is what a restore did.
type Report struct {
	Workspace    TreeInfo
	Conversation TreeInfo
	Agent        json.RawMessage
	Notes        []Note
	Counts       map[NoteKind]int64
	Fetched      int64 // bytes read from the bucket
}

// Time is a file time. It reaches further than time.Time's nanoseconds do.
type Time struct {
	Sec  int64
	Nsec uint32
}

// Time converts t.
func (t Time) Time() time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

// EntryType is the kind of a tree entry.
type EntryType byte

// The entry types.
const (
	TypeDir      EntryType = 1
	TypeFile     EntryType = 2
	TypeSymlink  EntryType = 3
	TypeHardlink EntryType = 4 // another name of an entry that comes earlier
)

// Entry is one entry of a captured tree.
type Entry struct {
	Path   string // relative, components joined by "/"; "" is the root of a workspace
	Type   EntryType
	Mode   uint32 // permission bits with setuid, setgid and sticky
	UID    uint32
	GID    uint32
	MTime  Time
	Size   int64
	Target string // of a symlink; for a hard link the path of the earlier entry
	Xattrs []Xattr
	Torn   bool // the bytes are not from one moment

	chunks []chunk     // of a file, in order; nil if they are in pages of their own
	lists  []chunkList // pages with the chunks of a long file, in order
}

// Xattr is an extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// corruptf returns an error that wraps ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrCorrupt)
}
