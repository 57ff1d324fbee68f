package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freezeLimit is how long a freeze lasts when nobody undoes it.
	freezeLimit = 60 * time.Second
	// settleLimit is how long a freeze waits for processes to stand still. In a
	// gVisor sandbox it takes milliseconds to look at one, and there may be
	// thousands.
	settleLimit = 45 * time.Second
)

// freezer stops and continues processes. Starts hold gate for reading while
// they fork, so that none slips through a freeze.
type freezer struct {
	gate sync.RWMutex

	mu      sync.Mutex
	thawed  chan struct{} // not nil while frozen; closed by the thaw
	stopped []int         // pids that this freeze stopped, parents first
	timer   *time.Timer   // undoes a forgotten freeze
}

// enter waits until nothing is frozen and keeps it so until leave is called.
func (f *freezer) enter(ctx context.Context) (leave func(), err error) {
	for {
		f.gate.RLock()
		f.mu.Lock()
		thawed := f.thawed
		f.mu.Unlock()
		if thawed == nil {
			return f.gate.RUnlock, nil
		}
		f.gate.RUnlock()
		select {
		case <-thawed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (f *freezer) frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.thawed != nil
}

// freeze stops every process that find lists and returns how many it stopped
// once all stand still. Freezing what is frozen starts the minute anew and
// stops what has come to life. On an error everything goes on.
func (f *freezer) freeze(ctx context.Context, find func() ([]task, error)) (int, error) {
	f.gate.Lock() // forks under way end first
	f.mu.Lock()
	if f.thawed == nil {
		f.thawed = make(chan struct{})
		f.timer = time.AfterFunc(freezeLimit, f.thaw)
	} else {
		f.timer.Reset(freezeLimit)
	}
	f.mu.Unlock()
	f.gate.Unlock()

	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, errors.New("processes did not stop in time"))
	defer cancel()
	if err := f.settle(ctx, find); err != nil {
		f.thaw()
		return 0, fmt.Errorf("freeze: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.stopped), nil
}

// settle sends stops until a whole scan finds nothing that runs. Parents are
// stopped before their children, each generation standing still before the
// next is touched, so that no shell sees its job stop.
func (f *freezer) settle(ctx context.Context, find func() ([]task, error)) error {
	for {
		all, err := find()
		if err != nil {
			return err
		}
		moving := false
		for _, generation := range generations(all) {
			pids := f.stopAll(generation)
			if len(pids) == 0 {
				continue
			}
			moving = true
			if err := still(ctx, pids); err != nil {
				return err
			}
		}
		if !moving {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// stopAll stops what is not stopped and returns those pids.
func (f *freezer) stopAll(tasks []task) []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed == nil {
		return nil // thawed meanwhile; nothing may be stopped any more
	}
	var pids []int
	for _, t := range tasks {
		if t.stopped() || t.dead() {
			continue
		}
		if unix.Kill(t.pid, unix.SIGSTOP) != nil {
			continue // it has ended
		}
		pids = append(pids, t.pid)
		if !slices.Contains(f.stopped, t.pid) {
			f.stopped = append(f.stopped, t.pid)
		}
	}
	return pids
}

// still waits until each process is stopped or gone.
func still(ctx context.Context, pids []int) error {
	for _, pid := range pids {
		for {
			t, ok := readTask(pid)
			if !ok || t.stopped() || t.dead() {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("process %d in state %c: %w", pid, t.state, context.Cause(ctx))
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// generations sorts tasks by their depth below the first ancestor in the list.
func generations(all []task) [][]task {
	parents := make(map[int]int, len(all))
	for _, t := range all {
		parents[t.pid] = t.parent
	}
	var out [][]task
	for _, t := range all {
		depth := 0
		for p := t.parent; depth < len(all); depth++ { // /proc was read while it changed: there may be a loop
			up, ok := parents[p]
			if !ok {
				break
			}
			p = up
		}
		for len(out) <= depth {
			out = append(out, nil)
		}
		out[depth] = append(out[depth], t)
	}
	return out
}

// thaw continues what the freeze stopped, children first. It does nothing
// when nothing is frozen.
func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed == nil {
		return
	}
	for _, pid := range slices.Backward(f.stopped) {
		_ = unix.Kill(pid, unix.SIGCONT) // it may have been killed meanwhile
	}
	f.stopped = nil
	f.timer.Stop()
	close(f.thawed)
	f.thawed = nil
}

// stop thaws for good.
func (f *freezer) stop() { f.thaw() }

// freezable lists what a freeze stops: as PID 1 everything else, as the parent of
// orphans all below the keeper, otherwise the trees of its own processes.
func (k *Keeper) freezable(self int) func() ([]task, error) {
	return func() ([]task, error) {
		if k.cfg.Programs != nil {
			return nil, nil // programs are part of this process
		}
		all, err := tasks()
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		if self == 1 {
			return slices.DeleteFunc(all, func(t task) bool { return t.pid == 1 }), nil
		}
		if k.cfg.Init {
			return below(all, self), nil
		}
		seen := make(map[int]task)
		for _, p := range k.list() {
			if c, _ := p.body(); c != nil {
				for _, t := range c.tree(all, self) {
					seen[t.pid] = t
				}
			}
		}
		own := make([]task, 0, len(seen))
		for _, t := range seen {
			own = append(own, t)
		}
		return own, nil
	}
}
