package sojourn

import (
	"slices"
	"time"
)

// CheckpointState is a state of a [Checkpoint].
type CheckpointState string

// The checkpoint states.
const (
	CheckpointCapturing CheckpointState = "capturing" // bytes may be in the blob store; never used
	CheckpointSealed    CheckpointState = "sealed"    // complete and proven; its record never changes
	CheckpointAbandoned CheckpointState = "abandoned" // will never be sealed
)

// checkpointMoves is the whole Checkpoint machine.
var checkpointMoves = map[CheckpointState][]CheckpointState{
	CheckpointCapturing: {CheckpointSealed, CheckpointAbandoned},
	CheckpointSealed:    nil,
	CheckpointAbandoned: nil,
}

// CanMove reports whether a checkpoint in state s may enter state to.
func (s CheckpointState) CanMove(to CheckpointState) bool {
	return slices.Contains(checkpointMoves[s], to)
}

// Fidelity is how faithful a carried part is.
type Fidelity string

// The fidelities. Conversation: live, exact, result_only or none. Workspace:
// live, portable_tree or none.
const (
	FidelityLive         Fidelity = "live"
	FidelityExact        Fidelity = "exact"
	FidelityResultOnly   Fidelity = "result_only"
	FidelityPortableTree Fidelity = "portable_tree"
	FidelityNone         Fidelity = "none"
)

// The checkpoint formats. A v1 checkpoint is readable but never restored.
const (
	FormatV1 = "workspace.v1"
	FormatV2 = "workspace.v2"
)

// ProcessState is where the saved processes of a sandbox are. They are only good
// for the driver that saved them, and with the tree of the same checkpoint.
type ProcessState struct {
	Epoch    int64  `json:"epoch"`    // under which the processes were started
	Object   string `json:"object"`   // key in the blob store
	Snapshot []byte `json:"snapshot"` // what the driver restores them from
	Harness  []byte `json:"harness"`  // what the harness knew of the agent among them
	Bytes    int64  `json:"bytes"`    // unpacked
	Stored   int64  `json:"stored"`   // in the blob store
}

// Checkpoint is a sealed capture of conversation and tree, after a run or when
// a lease was drained.
type Checkpoint struct {
	ID      CheckpointID
	Session SessionID
	Run     RunID // the boundary; "" when nothing ran before it
	Epoch   int64 // the lease whose sandbox was captured
	Parent  CheckpointID
	State   CheckpointState
	Format  string

	Root      string // digest of the root object; every byte is verified from it
	RootBytes int64
	Packs     []string // every pack that the root refers to

	Conversation       Fidelity // exact, result_only or none
	ConversationReason string   // why not exact
	Workspace          Fidelity // portable_tree or none
	WorkspaceReason    string   // why not portable_tree
	Base               string   // the repository commit that the tree builds on; "" for none

	// AgentConversation is the agent's own id of the captured conversation.
	AgentConversation string
	// Agent names the agent program and version that wrote it.
	Agent string

	TreeDigest string
	Entries    int64
	Bytes      int64 // data bytes of both trees
	Stored     int64 // bytes added to the blob store

	// Processes are the saved processes of the same boundary; nil for none.
	Processes *ProcessState

	CapturingAt time.Time
	SealedAt    time.Time
}

// Restorable reports whether a fresh sandbox can continue from the checkpoint
// in a session whose repository base is base.
func (c Checkpoint) Restorable(base string) bool {
	return c.State == CheckpointSealed && c.Whole(base)
}

// Whole reports whether the checkpoint is restorable as soon as it is sealed.
func (c Checkpoint) Whole(base string) bool {
	return c.Conversation == FidelityExact && c.treeRestorable(base)
}

func (c Checkpoint) treeRestorable(base string) bool {
	return c.Workspace == FidelityPortableTree && c.Format == FormatV2 && c.Base == base
}
