package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/cgroup"
	"github.com/sojourn-dev/sojourn/sandbox/internal/quota"
)

// Kernel is a [Launcher] whose sandboxes have a kernel of their own. The host's
// processes are then not the sandbox's, and when the host kills one for memory the
// whole sandbox is over.
type Kernel interface {
	// Processes tells how many processes and threads run in the sandbox and how
	// many it was refused.
	Processes(ctx context.Context, c *Cell) (running int, denied int64, err error)
}

// A sandbox with a kernel of its own and a limit may have this many processes and threads on the
// host, for each of its own and beside: enough not to starve that kernel, and a bound
// for the host in case it is broken.
const (
	kernelProcesses    = 1024
	processesOfProcess = 4
)

// boundCells finds out how cells can be kept within their limits here.
func (m *Machine) boundCells(dir string) {
	m.groups = new(cgroup.Tree)
	if _, ok := m.launcher.(Meter); ok {
		return
	}
	ctx, cancel := context.WithTimeout(m.life, cleanTime)
	defer cancel()
	m.groups = cgroup.Open(cgroup.Config{Owner: ownerOf(m.root)})
	m.disks = quota.Open(ctx, dir)
	m.caps.Limits = m.support(m.caps.Limits)
}

// ownerOf names the parent of the groups of all cells below a directory.
func ownerOf(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:8])
}

// support adds to what a driver bounds by itself what the machine can bound for it.
func (m *Machine) support(own sandbox.LimitSupport) sandbox.LimitSupport {
	groups := m.groups.Support()
	all := own
	all.Memory = all.Memory || groups.Memory
	all.CPU = all.CPU || groups.CPU
	all.Processes = all.Processes || groups.Processes && !m.hasKernel()
	all.Disk = true
	var how []string
	if groups.Version > 0 {
		how = append(how, fmt.Sprintf("Control groups of version %d.", groups.Version))
	}
	switch m.disks.Method() {
	case quota.Image:
		how = append(how, "A file system of its own for the files of each sandbox.")
	case quota.Project:
		how = append(how, "Project quotas for the files of each sandbox.")
	case quota.Watch:
		how = append(how, "Files are measured every few seconds, and a sandbox with too many ends.")
	}
	for _, s := range []string{own.How, groups.Missing, m.disks.Missing()} {
		if s != "" {
			how = append(how, s)
		}
	}
	all.How = strings.Join(how, " ")
	return all
}

func (m *Machine) hasKernel() bool {
	_, ok := m.launcher.(Kernel)
	return ok
}

// furnish makes the directories of a cell, within its disk limit.
func (m *Machine) furnish(ctx context.Context, c *Cell, l sandbox.Limits, r Record) error {
	r.Limits = l
	if err := c.begin(r); err != nil {
		return err
	}
	if l.DiskBytes > 0 && m.disks != nil {
		if l.DiskBytes < quota.MinBytes {
			return fmt.Errorf("%w: a disk limit of %d bytes is less than %d", sandbox.ErrInvalidSpec, l.DiskBytes, quota.MinBytes)
		}
		method, err := m.disks.Make(ctx, c.disk(), l.DiskBytes)
		if err != nil {
			return err
		}
		c.Record.Disk = method
		if err := c.save(); err != nil {
			return err
		}
	}
	return c.furnish()
}

// bound makes the group that keeps the cell within its limits, before anything runs in it.
func (m *Machine) bound(c *Cell) error {
	support := m.groups.Support()
	if support.Version == 0 {
		return nil // Check has refused what would need it
	}
	l := c.Record.Limits
	group, err := m.groups.Make(c.ID, groupLimits(l, support.Processes, m.hasKernel()))
	if err != nil {
		return err
	}
	c.group = group
	return nil
}

// groupLimits are the limits of the group of a cell with limits l.
func groupLimits(l sandbox.Limits, processes, kernel bool) cgroup.Limits {
	g := cgroup.Limits{MemoryBytes: l.MemoryBytes, MilliCPUs: l.MilliCPUs, KillTogether: kernel}
	switch {
	case !processes: // the driver bounds them by itself
	case kernel && l.Processes > 0:
		g.Processes = kernelProcesses + processesOfProcess*l.Processes
	default:
		g.Processes = l.Processes
	}
	return g
}

// rebind finds what keeps a cell within its limits after a restart.
func (m *Machine) rebind(c *Cell) error {
	if c.Record.Disk != "" {
		if err := quota.Ensure(c.disk(), c.Record.Disk); err != nil {
			return err
		}
	}
	if g := m.groups.Group(c.ID); g.Exists() {
		c.group = g
	}
	return nil
}

// unbind removes what kept a cell within its limits, and whatever still runs in it.
func (m *Machine) unbind(ctx context.Context, c *Cell) error {
	if m.disks == nil {
		return nil
	}
	return errors.Join(m.groups.Group(c.ID).Remove(ctx), quota.Remove(ctx, c.disk()))
}

// removeGroups removes the groups of cells that are not there any more. A cell's directory
// is there before its group and after it, so a group without one is nobody's.
func (m *Machine) removeGroups(ctx context.Context) error {
	names, err := m.groups.List()
	if err != nil || len(names) == 0 {
		return err
	}
	live, err := m.live()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if !live[n] {
			errs = append(errs, m.groups.Group(n).Remove(ctx))
		}
	}
	return errors.Join(errs...)
}

// Start starts a command whose process is born within the cell's limits.
func (c *Cell) Start(cmd *exec.Cmd) error { return c.group.Start(cmd) }

// disk is the directory of a cell whose files are bounded; see [Cell.Workspace].
func (c *Cell) disk() string { return filepath.Join(c.Dir, "disk") }

// measure tells what the sandbox has used, also after its end.
func (b *box) measure(ctx context.Context) (sandbox.Usage, error) {
	s, err := b.cell.group.Stat()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return sandbox.Usage{}, err
	}
	u := sandbox.Usage{
		MemoryBytes: s.MemoryBytes, MemoryPeakBytes: s.MemoryPeakBytes, MemoryKills: s.MemoryKills,
		CPU: s.CPU, CPUThrottled: s.CPUThrottled,
		Processes: s.Processes, ProcessDenied: s.ProcessDenied,
	}
	if k, ok := b.machine.launcher.(Kernel); ok && b.Err() == nil {
		u.Processes, u.ProcessDenied, err = k.Processes(ctx, &b.cell)
		if err != nil && b.Err() == nil {
			return u, err
		}
	}
	return u, b.usedDisk(ctx, &u)
}

// usedDisk adds what the files take. How often the disk was full is how often it was
// seen full after it was not.
func (b *box) usedDisk(ctx context.Context, u *sandbox.Usage) error {
	c := &b.cell
	var used quota.Use
	var err error
	switch c.Record.Disk {
	case "":
	case quota.Watch:
		used.Bytes, err = quota.Measure(ctx, c.disk(), 2*c.Record.Limits.DiskBytes)
		used.Full = used.Bytes > c.Record.Limits.DiskBytes
		if errors.Is(err, quota.ErrTooDeep) {
			err = nil // the watch ends it
		}
	default:
		used, err = quota.Used(c.disk(), c.Record.Disk)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if used.Full && !b.full {
		b.denied++
	}
	b.full = used.Full
	u.DiskBytes, u.DiskDenied = used.Bytes, b.denied
	return nil
}

// The time between two measurements of a disk: short, but never so short that measuring
// takes more than a twentieth of it.
const (
	watchEvery = 2 * time.Second
	watchShare = 20
)

// watchDisk ends the sandbox when its files take more than they may. It returns when the
// sandbox has ended or the machine is closed.
func (b *box) watchDisk() {
	limit := b.cell.Record.Limits.DiskBytes
	for pause := watchEvery; ; {
		select {
		case <-b.done:
			return
		case <-b.machine.life.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		used, err := quota.Measure(b.machine.life, b.cell.disk(), limit)
		switch {
		case b.machine.life.Err() != nil || b.Err() != nil:
			return
		case errors.Is(err, quota.ErrTooDeep): // or files could be hidden there
			b.overfill("its directories are nested too deep to be measured")
		case err == nil && used > limit:
			b.overfill("its files take more than its disk limit of " + Size(limit))
		}
		pause = max(watchEvery, watchShare*time.Since(began))
	}
}

// overfill ends a sandbox with too many files. When that fails it is tried again after
// the next measurement.
func (b *box) overfill(detail string) {
	ctx, cancel := context.WithTimeout(b.machine.life, cleanTime)
	defer cancel()
	_ = b.expel(ctx, sandbox.EndDiskFull, detail)
}

// verdict says why the first process has ended.
func (b *box) verdict(killed bool) (sandbox.EndReason, string) {
	b.mu.Lock()
	intent := b.intent
	b.mu.Unlock()
	if intent != nil {
		return intent.Reason, intent.Detail
	}
	// The host kills a kernel as a whole; elsewhere the kill may long be past, and
	// only counts if the first process was killed too.
	s, err := b.cell.group.Stat()
	if err == nil && s.MemoryKills > 0 && (killed || b.machine.hasKernel()) {
		return sandbox.EndOutOfMemory, "it was killed at its memory limit of " + Size(s.MemoryLimitBytes)
	}
	return b.machine.endOf(&b.cell)
}

// Size is a limit in bytes for people. None is that of the host.
func Size(bytes int64) string {
	switch {
	case bytes == 0:
		return "the host" // the group has none of its own
	case bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d bytes", bytes)
}
