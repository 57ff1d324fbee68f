package fake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// saved is a keeper whose sandbox was saved, with all of its processes. They are
// not stopped: nobody can reach them until they go on in another sandbox.
type saved struct {
	keeper *keeper.Keeper
	place  *place
	dirs   []string // the hosts' paths that its programs know
}

// snapshotFile is what a snapshot's directory holds: a name for what is really in
// the memory of this process.
const snapshotFile = "name"

var (
	_ sandbox.Snapshotter = (*box)(nil)
	_ sandbox.Resumer     = (*Driver)(nil)
)

// Snapshot ends the sandbox and keeps its processes; see sandbox.Snapshotter.
func (b *box) Snapshot(_ context.Context, dir string) (sandbox.Snapshot, error) {
	if err := b.driver.Faults().SnapshotErr; err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("save sandbox %s: %w", b.key.session, err)
	}
	if err := b.Err(); err != nil {
		return sandbox.Snapshot{}, err
	}
	name := rand.Text()
	if err := os.WriteFile(filepath.Join(dir, snapshotFile), []byte(name), 0o600); err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("save sandbox %s: %w", b.key.session, err)
	}
	data, err := json.Marshal(name)
	if err != nil {
		panic(err) // a string
	}
	d := b.driver
	d.mu.Lock()
	d.saved[name] = saved{b.keeper, b.place, append(b.aliases, b.dir)}
	d.mu.Unlock()
	b.end(sandbox.EndSnapshot, "its processes were saved", false)
	return sandbox.Snapshot{Driver: Name, Build: "fake", Bytes: int64(len(name)), Data: data}, nil
}

// Prepare makes the directories of a sandbox that is going to be resumed; see
// sandbox.Resumer.
func (d *Driver) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Dirs, error) {
	if err := spec.Validate(); err != nil {
		return sandbox.Dirs{}, err
	}
	if d.Faults().ResumeHangs {
		<-ctx.Done()
		return sandbox.Dirs{}, fmt.Errorf("resume sandbox %s: %w", spec.Session, context.Cause(ctx))
	}
	if err := d.Faults().ResumeErr; err != nil {
		return sandbox.Dirs{}, fmt.Errorf("resume sandbox %s: %w", spec.Session, err)
	}
	b := d.newBox(key{spec.Session, spec.Epoch}, spec)
	b.half = true
	if err := b.makeDirs(); err != nil {
		return sandbox.Dirs{}, fmt.Errorf("resume sandbox %s: %w", spec.Session, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boxes[b.key] = b
	return b.Dirs(), nil
}

// resume makes the keeper of a snapshot that of b.
func (d *Driver) resume(b *box, r sandbox.Resume) error {
	name, err := os.ReadFile(filepath.Join(r.Dir, snapshotFile))
	if err != nil {
		return err
	}
	d.mu.Lock()
	s, ok := d.saved[string(name)]
	delete(d.saved, string(name)) // there is one of it
	d.mu.Unlock()
	if !ok {
		return errors.New("the processes are gone")
	}
	// Programs in this process know host paths, which real processes do not.
	for _, old := range s.dirs {
		if err := errors.Join(os.RemoveAll(old), os.Symlink(b.dir, old)); err != nil {
			return err
		}
	}
	b.aliases = s.dirs
	b.run(s.keeper, s.place)
	return nil
}
