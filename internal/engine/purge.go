package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/internal/work"
)

// purgeBatch is how many rows of a kind one transaction deletes: others wait for it.
const purgeBatch = 500

// purge deletes what a deleted session has left, once its sandbox is gone: rows, kept
// output, saved processes. The objects of its checkpoints go with the next removal of
// orphans, as others may share them.
func (e *Engine) purge(ctx context.Context, claim work.Claim) (work.Next, error) {
	id := sojourn.SessionID(claim.ID)
	facts, err := e.facts(ctx, id)
	if sojourn.CodeOf(err) == sojourn.CodeNotFound {
		return work.Done(), nil
	}
	if err != nil {
		return work.Next{}, err
	}
	if l := facts.Lease; l != nil && !l.State.Terminal() || len(facts.Running()) > 0 || e.benched(id) {
		return work.Again(e.Now().Add(time.Second)), nil
	}
	if h := facts.Head; h != nil && h.Processes != nil && e.cfg.Processes != nil {
		if err := e.cfg.Processes.Delete(ctx, h.Processes.Object); err != nil {
			return work.Next{}, err
		}
	}
	if e.cfg.Outputs != nil {
		if err := e.cfg.Outputs.RemoveSession(string(id)); err != nil {
			return work.Next{}, fmt.Errorf("remove the output of a deleted session: %w", err)
		}
	}
	for more := true; more; {
		err := claim.Commit(ctx, e.cfg.Store, func(tx *store.Tx) (err error) {
			more, err = tx.Purge(id, purgeBatch)
			return err
		})
		if err != nil {
			return work.Next{}, err
		}
	}
	return work.Done(), nil
}
