package sojourn

// Ids are opaque text, unique in the installation, made outside the domain.
type (
	// SessionID names a session.
	SessionID string
	// TurnID names a turn.
	TurnID string
	// RunID names a run.
	RunID string
	// InteractionID names a question that a run asked.
	InteractionID string
	// ExecID names an exec.
	ExecID string
	// CheckpointID names a checkpoint record, not its bytes.
	CheckpointID string
	// KeyID names an API key, never its secret.
	KeyID string
	// ProjectID names the compartment that owns sessions and keys.
	ProjectID string
)

// DefaultProject owns everything in an installation that was never divided.
const DefaultProject ProjectID = "default"

// Contract names the HTTP contract that created a session. The other contracts
// answer 404 for it.
type Contract string

// The contracts.
const (
	ContractAgents Contract = "agents"
	ContractExec   Contract = "exec"
	ContractCloud  Contract = "cloud"
)
