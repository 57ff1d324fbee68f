package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	checkpointColumns = `id, session, run, epoch, parent, state, format, root, root_bytes,
	conversation, conversation_reason, workspace, workspace_reason, base,
	agent_conversation, agent, tree_digest, entries, bytes, stored, processes, capturing_at, sealed_at`

	// A sealed checkpoint never changes: the upsert passes it over.
	upsertCheckpoint = `INSERT INTO checkpoints (` + checkpointColumns + `)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
	ON CONFLICT (id) DO UPDATE SET state = excluded.state, format = excluded.format, root = excluded.root,
	root_bytes = excluded.root_bytes, conversation = excluded.conversation,
	conversation_reason = excluded.conversation_reason, workspace = excluded.workspace,
	workspace_reason = excluded.workspace_reason, base = excluded.base,
	agent_conversation = excluded.agent_conversation, agent = excluded.agent,
	tree_digest = excluded.tree_digest, entries = excluded.entries, bytes = excluded.bytes,
	stored = excluded.stored, processes = excluded.processes, sealed_at = excluded.sealed_at
	WHERE checkpoints.state = 'capturing'`

	selectCheckpoint  = `SELECT ` + checkpointColumns + ` FROM checkpoints WHERE id = $1`
	selectCheckpoints = `SELECT ` + checkpointColumns + ` FROM checkpoints WHERE session = $1 ORDER BY capturing_at, id`

	selectCapturing = `SELECT ` + checkpointColumns + ` FROM checkpoints
	WHERE session = $1 AND state = 'capturing' ORDER BY capturing_at, id`

	// What a next use could resume: the processes of the heads.
	selectProcessObjects = `SELECT c.processes FROM sessions s JOIN checkpoints c ON c.id = s.head
	WHERE s.archived_at = 0 AND s.deleted_at = 0 AND c.processes <> ''`

	knowsPack = `SELECT COUNT(*) FROM (SELECT 1 FROM checkpoint_packs WHERE pack = $1 LIMIT 1) AS found`
	knowsRoot = `SELECT COUNT(*) FROM (SELECT 1 FROM checkpoints WHERE root = $1 LIMIT 1) AS found`

	// What a session without an agent has no more use for: the newest checkpoints are
	// kept, for who is reading from them, and what was never sealed is not.
	agedCheckpoints = `SELECT id FROM checkpoints WHERE session = $1 AND (state = 'abandoned' OR state = 'sealed'
	AND id NOT IN (SELECT head FROM sessions WHERE id = $1) AND id NOT IN (
		SELECT id FROM checkpoints WHERE session = $1 AND state = 'sealed' ORDER BY capturing_at DESC, id DESC LIMIT $2))`
	deleteAgedPacks       = `DELETE FROM checkpoint_packs WHERE checkpoint IN (` + agedCheckpoints + `)`
	deleteAgedCheckpoints = `DELETE FROM checkpoints WHERE id IN (` + agedCheckpoints + `)`

	selectPacks = `SELECT pack FROM checkpoint_packs WHERE checkpoint = $1 ORDER BY ordinal`
	deletePacks = `DELETE FROM checkpoint_packs WHERE checkpoint = $1`
	insertPack  = `INSERT INTO checkpoint_packs (checkpoint, ordinal, pack) VALUES ($1, $2, $3)`
)

func scanCheckpoint(row scanner) (c sojourn.Checkpoint, err error) {
	var capturing, sealed int64
	var processes string
	err = row.Scan(&c.ID, &c.Session, &c.Run, &c.Epoch, &c.Parent, &c.State, &c.Format, &c.Root, &c.RootBytes,
		&c.Conversation, &c.ConversationReason, &c.Workspace, &c.WorkspaceReason, &c.Base,
		&c.AgentConversation, &c.Agent, &c.TreeDigest, &c.Entries, &c.Bytes, &c.Stored, &processes, &capturing, &sealed)
	if err != nil {
		return c, err
	}
	c.CapturingAt, c.SealedAt = instant(capturing), instant(sealed)
	return c, decode(processes, &c.Processes)
}

func (t *Tx) putCheckpoint(c sojourn.Checkpoint) error {
	processes, err := encoded(c.Processes, c.Processes == nil)
	if err != nil {
		return err
	}
	n, err := t.exec("write checkpoint", upsertCheckpoint,
		c.ID, c.Session, c.Run, c.Epoch, c.Parent, c.State, c.Format, c.Root, c.RootBytes,
		c.Conversation, c.ConversationReason, c.Workspace, c.WorkspaceReason, c.Base,
		c.AgentConversation, c.Agent, c.TreeDigest, c.Entries, c.Bytes, c.Stored, processes,
		micros(c.CapturingAt), micros(c.SealedAt))
	if err != nil {
		return err
	}
	if n == 0 {
		return t.fail("write checkpoint "+string(c.ID)+", which is no longer capturing", ErrConstraint)
	}
	if _, err := t.exec("delete packs", deletePacks, c.ID); err != nil {
		return err
	}
	for i, pack := range c.Packs {
		if _, err := t.exec("insert pack", insertPack, c.ID, int64(i), pack); err != nil {
			return err
		}
	}
	return nil
}

// Checkpoint returns a checkpoint.
func (t *Tx) Checkpoint(id sojourn.CheckpointID) (sojourn.Checkpoint, error) {
	c, err := one(t, "checkpoint", scanCheckpoint, selectCheckpoint, id)
	if err != nil {
		return c, err
	}
	c.Packs, err = t.packs(id)
	return c, err
}

// Checkpoints returns all checkpoints of a session, oldest first.
func (t *Tx) Checkpoints(session sojourn.SessionID) ([]sojourn.Checkpoint, error) {
	all, err := collect(t, "checkpoints", scanCheckpoint, selectCheckpoints, session)
	for i := range all {
		if all[i].Packs, err = t.packs(all[i].ID); err != nil {
			return nil, err
		}
	}
	return all, err
}

// CapturingCheckpoints returns the checkpoints of a session that are neither
// sealed nor abandoned, oldest first, without their packs.
func (t *Tx) CapturingCheckpoints(session sojourn.SessionID) ([]sojourn.Checkpoint, error) {
	return collect(t, "checkpoints", scanCheckpoint, selectCapturing, session)
}

// PruneCheckpoints deletes the checkpoints of a session that are neither its head, nor
// among its newest sealed ones, nor being captured. Their objects become orphans.
func (t *Tx) PruneCheckpoints(session sojourn.SessionID, newest int) error {
	for _, query := range [...]string{deleteAgedPacks, deleteAgedCheckpoints} {
		if _, err := t.exec("delete old checkpoints", query, session, newest); err != nil {
			return err
		}
	}
	return nil
}

// KnowsPack reports whether a checkpoint refers to the pack.
func (t *Tx) KnowsPack(id string) (bool, error) { return t.knows("pack", knowsPack, id) }

// KnowsRoot reports whether a checkpoint has that root.
func (t *Tx) KnowsRoot(id string) (bool, error) { return t.knows("root", knowsRoot, id) }

func (t *Tx) knows(what, query, id string) (bool, error) {
	n, err := one(t, what, func(row scanner) (n int64, err error) {
		return n, row.Scan(&n)
	}, query, id)
	return n > 0, err
}

func (t *Tx) packs(id sojourn.CheckpointID) ([]string, error) {
	return collect(t, "packs", func(row scanner) (p string, err error) {
		return p, row.Scan(&p)
	}, selectPacks, id)
}

// ProcessObjects returns the blob store's keys of all saved processes that a
// session could still go on with.
func (t *Tx) ProcessObjects() ([]string, error) {
	states, err := collect(t, "saved processes", func(row scanner) (p sojourn.ProcessState, err error) {
		var text string
		if err := row.Scan(&text); err != nil {
			return p, err
		}
		return p, decode(text, &p)
	}, selectProcessObjects)
	keys := make([]string, 0, len(states))
	for _, p := range states {
		keys = append(keys, p.Object)
	}
	return keys, err
}
