package local

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Saver is a Launcher that can save the processes of a cell and start a cell with saved
// ones: its Launch honours Spec.Resume.
type Saver interface {
	Launcher
	// Build names all that a restore of the cell's processes must have the same of,
	// without touching them. The error wraps sandbox.ErrUnsupported when they cannot
	// be saved, and says why.
	Build(ctx context.Context, c *Cell) (string, error)
	// Save stops the processes and writes them into the empty directory dir. It may
	// finish although its context has ended.
	Save(ctx context.Context, c *Cell, dir string) error
	// Continue lets the processes go on for which Save was called, by this server or
	// by one that has died, whatever became of it.
	Continue(ctx context.Context, c *Cell) error
	// Usable reports whether the snapshot that spec resumes from works here. If not
	// the error wraps sandbox.ErrUnsupported and names what differs.
	Usable(ctx context.Context, spec sandbox.Spec) error
}

// savable is a box under a launcher that is a Saver.
type savable struct{ *box }

var _ sandbox.Snapshotter = savable{}

// Snapshot saves the processes and ends the sandbox.
func (b savable) Snapshot(ctx context.Context, dir string) (sandbox.Snapshot, error) {
	s, err := b.machine.snapshot(ctx, b.box, dir)
	if err != nil {
		return sandbox.Snapshot{}, fmt.Errorf("snapshot of sandbox %s: %w", b.cell.name(), err)
	}
	return s, nil
}

// kept is what a snapshot says about the keeper that is in it. Its token is in the memory
// that was saved, so the next sandbox has to know it.
type kept struct {
	Token string `json:"token"`
	Epoch int64  `json:"epoch"` // that it was started with
	// Kernel is the id by which the kernel that was saved knows the sandbox.
	Kernel string `json:"kernel"`
}

// snapshot saves the processes of a box.
func (m *Machine) snapshot(ctx context.Context, b *box, dir string) (sandbox.Snapshot, error) {
	var none sandbox.Snapshot
	c := b.cell // its own copy: the record on disk changes, the handle does not
	ctx, s, leave, err := m.enter(ctx, &c)
	if err != nil {
		return none, err
	}
	defer leave()
	if err := c.load(); err != nil {
		return none, err
	}
	if s.box != b || c.Record.Token != b.cell.Record.Token { // it was destroyed
		return none, sandbox.ErrGone
	}
	if err := checkEmpty(dir); err != nil {
		return none, err
	}
	build, err := m.saver.Build(ctx, &c)
	if err != nil {
		return none, err
	}
	b.saving.Lock()
	defer b.saving.Unlock()
	if !c.Record.Process.Alive() { // the watcher may not have said so yet
		b.finish(sandbox.EndExited, "its first process has ended")
	}
	if err := b.Err(); err != nil {
		return none, err
	}
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	c.Record.Saving = true
	if err := c.save(); err != nil {
		return none, err
	}
	// A connection to the host does not survive a save, and if the processes go on
	// after one that failed, a kernel may not tell them. They see the end of this one
	// before they stand still, and cannot make another.
	b.door.Rest()
	size, err := m.take(ctx, &c, dir)
	if err == nil {
		b.finish(sandbox.EndSnapshot, "its processes were saved")
		data, err := json.Marshal(kept{Token: c.Record.Token, Epoch: c.Record.KeeperEpoch, Kernel: c.KernelID()})
		return sandbox.Snapshot{Driver: m.name, Build: build, Bytes: size, Data: data}, err
	}
	discard(dir)
	ended := m.proceed(ctx, &c)
	if ended == nil {
		if ended = b.door.Wake(c.Run()); ended != nil { // nobody could reach it any more
			ended = errors.Join(ended, m.saver.Kill(context.WithoutCancel(ctx), &c))
		}
	}
	if ended != nil {
		b.finish(sandbox.EndExited, "a snapshot failed and "+ended.Error())
		err = errors.Join(err, ended)
	}
	return none, err
}

// take saves the processes of a cell and ends them; it returns the size of the files.
func (m *Machine) take(ctx context.Context, c *Cell, dir string) (int64, error) {
	if err := m.saver.Save(ctx, c, dir); err != nil {
		return 0, err
	}
	size, err := sizeOf(dir)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime) // there is no way back
	defer cancel()
	return size, m.saver.Kill(ctx, c)
}

// proceed lets a cell go on whose snapshot was broken off. When that is not possible the
// cell is ended, and the error says why it had to be; its files stay.
func (m *Machine) proceed(ctx context.Context, c *Cell) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	err := m.saver.Continue(ctx, c)
	if err != nil {
		err = fmt.Errorf("its processes could not go on: %w", err)
		if kill := m.saver.Kill(ctx, c); kill != nil {
			return errors.Join(err, kill)
		}
	}
	c.Record.Saving = false
	if save := c.save(); err == nil && save != nil {
		return save
	}
	return err
}

// Prepare makes the directories of a cell whose processes come from a snapshot, in place
// of what an earlier attempt left.
func (m *Machine) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Dirs, error) {
	none := sandbox.Dirs{}
	if err := spec.Validate(); err != nil {
		return none, err
	}
	if spec.Resume == nil {
		return none, fmt.Errorf("%w: nothing to resume from", sandbox.ErrInvalidSpec)
	}
	if err := m.caps.Check(spec); err != nil {
		return none, err
	}
	k, err := m.usable(ctx, spec)
	if err != nil {
		return none, err
	}
	c := newCell(m.root, spec.Session, spec.Epoch)
	ctx, s, leave, err := m.enter(ctx, c)
	if err != nil {
		return none, err
	}
	defer leave()
	switch _, err := m.adopt(ctx, c, s); {
	case err == nil:
		return none, fmt.Errorf("%w: sandbox %s runs already", sandbox.ErrInvalidSpec, c.name())
	case !errors.Is(err, errUnfinished):
		return none, err
	}
	if err := m.clear(ctx, c); err != nil {
		return none, err
	}
	err = m.furnish(ctx, c, spec.Limits, Record{Token: k.Token, KeeperEpoch: k.Epoch, Kernel: k.Kernel, Prepared: true})
	if err != nil {
		return none, m.undo(ctx, c, fmt.Errorf("prepare sandbox %s: %w", c.name(), err))
	}
	return c.dirs(), nil
}

// usable reports whether a snapshot works here, and returns the keeper that is in it.
func (m *Machine) usable(ctx context.Context, spec sandbox.Spec) (kept, error) {
	var k kept
	snap := spec.Resume.Snapshot
	if m.saver == nil || snap.Driver != m.name {
		return k, fmt.Errorf("snapshot of driver %.40q: %w", snap.Driver, sandbox.ErrUnsupported)
	}
	if err := json.Unmarshal(snap.Data, &k); err != nil {
		return k, fmt.Errorf("%w: the snapshot's data cannot be read", sandbox.ErrInvalidSpec)
	}
	if b, err := hex.DecodeString(k.Token); err != nil || len(b) != tokenBytes {
		return k, fmt.Errorf("%w: the snapshot's data have no token", sandbox.ErrInvalidSpec)
	}
	if b, err := hex.DecodeString(k.Kernel); err != nil || len(b) != idBytes {
		return k, fmt.Errorf("%w: the snapshot's data have no id", sandbox.ErrInvalidSpec)
	}
	if k.Epoch < 0 || k.Epoch > spec.Epoch { // its keeper would refuse the new one
		return k, fmt.Errorf("%w: the snapshot is of epoch %d, which is not before %d", sandbox.ErrInvalidSpec, k.Epoch, spec.Epoch)
	}
	if !filepath.IsAbs(spec.Resume.Dir) {
		return k, fmt.Errorf("%w: snapshot directory %.200q is not absolute", sandbox.ErrInvalidSpec, spec.Resume.Dir)
	}
	return k, m.saver.Usable(ctx, spec)
}

// awaits reports whether a cell is prepared for the snapshot of spec, which still works
// here.
func (m *Machine) awaits(ctx context.Context, c *Cell, spec sandbox.Spec) error {
	k, err := m.usable(ctx, spec)
	if err != nil {
		return err
	}
	if c.Record.Prepared && c.Record.Limits != spec.Limits {
		return fmt.Errorf("%w: sandbox %s is prepared for other limits", sandbox.ErrInvalidSpec, c.name())
	}
	if !c.Record.Prepared || c.Record.Token != k.Token {
		return fmt.Errorf("%w: sandbox %s is not prepared for this snapshot", sandbox.ErrInvalidSpec, c.name())
	}
	return m.rebind(c) // the machine may have been off since
}

// checkEmpty reports whether dir is a directory with nothing in it.
func checkEmpty(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("directory %.200q is not absolute", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("directory %.200q is not empty", dir)
	}
	return nil
}

// discard empties and removes the files of a snapshot that failed. Emptied they take no
// space even if a process keeps them open. What cannot be removed is the caller's, whose
// directory it is.
func discard(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		_ = os.Truncate(path, 0)
		_ = os.Remove(path)
	}
}

// sizeOf adds up the files in a directory.
func sizeOf(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		total += info.Size()
	}
	return total, nil
}
