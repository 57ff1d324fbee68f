package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn/internal/checkpoint"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// orphanAge is how old an object of the blob store must be before it may be
// taken for one that no capture will ever seal.
const orphanAge = 24 * time.Hour

// removeOrphans deletes what captures have left that were never sealed. Any
// error ends it before the first deletion: a partial list condemns nothing.
func (e *Engine) removeOrphans(ctx context.Context) error {
	var orphans []checkpoint.Object
	known := func(o checkpoint.Object) (known bool, err error) {
		err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
			if o.Pack != "" {
				known, err = tx.KnowsPack(string(o.Pack))
			} else {
				known, err = tx.KnowsRoot(string(o.Root))
			}
			return err
		})
		return known, err
	}
	for o, err := range e.cfg.Checkpoints.Orphans(ctx, e.Now().Add(-orphanAge), known) {
		if err != nil {
			return fmt.Errorf("list orphans of the blob store: %w", err)
		}
		orphans = append(orphans, o)
	}
	for _, o := range orphans {
		err := error(nil)
		if o.Pack != "" {
			err = e.cfg.Checkpoints.DeletePack(ctx, o.Pack)
		} else {
			err = e.cfg.Checkpoints.DeleteRoot(ctx, o.Root)
		}
		if err != nil {
			return err
		}
		e.log.Info("removed an object that no checkpoint refers to", "pack", o.Pack, "root", o.Root, "bytes", o.Bytes)
	}
	return nil
}
