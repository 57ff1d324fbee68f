package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// reconcileTime bounds how long Open may be busy with what an earlier server left.
const reconcileTime = 60 * time.Second

// Reconciler is a Launcher that keeps something of its cells outside their directories:
// control groups, mounts, interfaces.
type Reconciler interface {
	// Reconcile removes what belongs to a cell of this machine that is not among
	// live, which has the ids of all that exist in any form. It leaves alone what
	// another server on this host has. Open calls it once, before anything is made.
	Reconcile(ctx context.Context, live map[string]bool) error
}

// Leftovers is what an earlier server left on this host and Open could not remove; nil
// when there is nothing.
func (m *Machine) Leftovers() error { return m.left }

// reconcile removes what no cell owns: sandboxes that were made ahead for an earlier
// server, processes whose cell is gone, and what the launcher knows of.
func (m *Machine) reconcile(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reconcileTime, fmt.Errorf("it took more than %v", reconcileTime))
	defer cancel()
	errs := []error{m.endWarm(ctx), m.killStrays(ctx), m.removeGroups(ctx)}
	if m.disks != nil {
		errs = append(errs, m.disks.Sweep(ctx))
	}
	if r, ok := m.launcher.(Reconciler); ok {
		live, err := m.live()
		if err == nil { // without the list everything would count as left behind
			err = r.Reconcile(ctx, live)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what an earlier server left: %w", err)
	}
	return nil
}

// live returns the ids of all cells that exist in any form.
func (m *Machine) live() (map[string]bool, error) {
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	ids := make(map[string]bool)
	for _, e := range entries {
		if c := m.cellNamed(e.Name()); c != nil {
			ids[c.ID] = true
		}
	}
	return ids, nil
}

// cellNamed returns the cell that has, or had, a directory of this name below the root;
// nil if it is the name of no cell.
func (m *Machine) cellNamed(name string) *Cell {
	if id, ok := parseWarm(name); ok {
		return warmCell(m.root, id)
	}
	if session, epoch, ok := parseName(name); ok {
		return newCell(m.root, session, epoch)
	}
	return nil
}

// killStrays ends processes that were started for a cell whose directory is gone. Such
// a process has the path of that directory and the cell's id among its arguments, which
// no other program has by chance.
func (m *Machine) killStrays(ctx context.Context) error {
	found, err := ProcessesNaming(m.root + "/")
	if err != nil {
		return err
	}
	var errs []error
	seen := make(map[string]bool)
	for _, p := range found {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if err != nil {
			continue // it has ended
		}
		for _, name := range namesBelow(m.root, line) {
			c := m.cellNamed(name)
			if c == nil || seen[c.ID] || exists(filepath.Join(m.root, name)) || !bytes.Contains(line, []byte(c.ID)) {
				continue
			}
			seen[c.ID] = true
			if err := KillNaming(ctx, c.ID); err != nil {
				errs = append(errs, fmt.Errorf("processes of sandbox %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// namesBelow returns the names directly below the directory root that occur in a text,
// such as the arguments of a process.
func namesBelow(root string, text []byte) []string {
	var names []string
	for {
		_, after, found := bytes.Cut(text, []byte(root+"/"))
		if !found {
			return names
		}
		name := after
		if i := bytes.IndexAny(name, "/\x00 ,"); i >= 0 {
			name = name[:i]
		}
		names = append(names, string(name))
		text = after
	}
}
