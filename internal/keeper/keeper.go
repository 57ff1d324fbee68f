package keeper

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	maxProcesses = 1024
	// maxSpoolBytes bounds what all spools together may come to hold.
	maxSpoolBytes = 1 << 30
	// maxOneSpool bounds what a caller may ask for.
	maxOneSpool      = 256 << 20
	defaultAckBytes  = 8 << 20
	defaultRingBytes = 1 << 20
)

// Config says what a keeper is. The zero value runs real processes, is not
// PID 1 and accepts any epoch.
type Config struct {
	// Epoch is the oldest epoch accepted.
	Epoch int64
	// Programs run inside the keeper's process, by argv[0]. When not nil,
	// nothing else can be run.
	Programs map[string]Program
	// MapPath turns a path of the sandbox into one of the host; nil means
	// they are the same. Links are then resolved as the sandbox sees them.
	MapPath func(string) string
	// Places are directories of the sandbox that lie elsewhere on a host whose
	// files it shares. They make a MapPath, and are also looked for in the
	// arguments and the environment of processes, which see the host's paths.
	Places Places
	// Env is given to every process whose environment does not name it, as
	// "name=value". Places are not looked for in it.
	Env []string
	// Init makes the keeper wait for every child, as PID 1 must and who takes in
	// orphans.
	Init bool
	// Processes is how many processes and threads there may be in the sandbox, the
	// keeper's among them; 0 is no limit.
	Processes int
	// Log gets what has no caller to tell; nil means nowhere.
	Log *slog.Logger
}

// Keeper owns processes and serves connections to them.
type Keeper struct {
	cfg       Config
	log       *slog.Logger
	reap      *reaper // nil when only programs run
	freezer   freezer
	slots     slots  // of calls that may wait for a disk
	score     string // of programs when memory runs out; "" for that of the keeper
	startedAt time.Time
	sessionID string
	info      link.Info

	ctx    context.Context // ends with Close: the context of programs
	cancel context.CancelFunc
	wg     sync.WaitGroup

	over    context.Context // ends when a shutdown has ended all processes
	endOver context.CancelFunc

	mu       sync.Mutex
	epoch    int64
	procs    map[string]*process
	conns    map[*conn]struct{}
	stopping bool
}

// New returns a keeper with no processes.
func New(cfg Config) *Keeper {
	catchIgnored()
	if len(cfg.Places) > 0 {
		cfg.MapPath = cfg.Places.Map
	}
	k := &Keeper{
		cfg: cfg, log: cfg.Log, startedAt: time.Now(), sessionID: rand.Text(), info: describe(cfg),
		epoch: cfg.Epoch, slots: make(slots, diskSlots(cfg.Processes)),
		procs: make(map[string]*process), conns: make(map[*conn]struct{}),
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	k.over, k.endOver = context.WithCancel(context.Background())
	if cfg.Programs == nil {
		k.reap, k.score = newReaper(cfg.Init), exposedScore()
	}
	return k
}

// borrowed reports whether the keeper lives in the process of somebody else, whose
// environment is then not that of a sandbox.
func (c Config) borrowed() bool {
	return c.Programs != nil || c.MapPath != nil && len(c.Places) == 0
}

// describe finds the shell and the working directory.
func describe(cfg Config) link.Info {
	if cfg.Programs != nil {
		return link.Info{Shell: link.Shell{Name: "sh", Path: "/bin/sh"}, Cwd: "/workspace"}
	}
	info := link.Info{Shell: link.Shell{Name: "sh", Path: "/bin/sh"}, Cwd: "/", Places: cfg.Places.table()}
	if !cfg.borrowed() {
		info.Path = os.Getenv("PATH")
	}
	if wd, err := os.Getwd(); err == nil {
		info.Cwd = cfg.Places.inside(wd)
	}
	for _, path := range []string{os.Getenv("SHELL"), "/bin/bash", "/usr/bin/bash"} {
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 && !st.IsDir() {
			info.Shell = link.Shell{Name: filepath.Base(path), Path: path}
			break
		}
	}
	return info
}

// mapPath says where a path of the sandbox lies on the host.
func (k *Keeper) mapPath(p string) string {
	if k.cfg.MapPath == nil {
		return p
	}
	return k.cfg.MapPath(p)
}

// Over is closed when a client has shut the keeper down and every process has
// ended.
func (k *Keeper) Over() <-chan struct{} { return k.over.Done() }

// Close kills every process, ends every connection and waits for all of it.
// It may be called twice.
func (k *Keeper) Close() error {
	k.mu.Lock()
	first := k.ctx.Err() == nil
	k.stopping = true
	k.cancel()
	conns := k.connsLocked()
	k.mu.Unlock()
	if !first {
		k.wg.Wait()
		return nil
	}
	k.freezer.stop()
	for _, c := range conns {
		c.close()
	}
	for _, c := range conns {
		<-c.done // no call starts anything after this
	}
	procs := k.list()
	for _, p := range procs {
		if err := p.terminate(0, os.Getpid(), &k.wg); err != nil {
			k.log.Warn("kill process", "process", p.id, "err", err)
		}
	}
	for _, p := range procs {
		<-p.swept
		p.spool.remove()
	}
	k.wg.Wait()
	k.endOver()
	if k.reap != nil {
		k.reap.close()
	}
	return nil
}

func (k *Keeper) listLocked() []*process {
	list := make([]*process, 0, len(k.procs))
	for _, p := range k.procs {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *process) int {
		return cmp.Or(a.startedAt.Compare(b.startedAt), cmp.Compare(a.id, b.id))
	})
	return list
}

func (k *Keeper) connsLocked() []*conn {
	list := make([]*conn, 0, len(k.conns))
	for c := range k.conns {
		list = append(list, c)
	}
	return list
}

// list returns the processes in order of start.
func (k *Keeper) list() []*process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.listLocked()
}

// find returns a process by name.
func (k *Keeper) find(id string) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.procs[id]; p != nil {
		return p, nil
	}
	return nil, &link.Error{Code: link.CodeUnknownProcess, Message: fmt.Sprintf("unknown process %q", id)}
}

// enter makes room for a process and gives it its name.
func (k *Keeper) enter(p *process) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopping {
		return &link.Error{Code: link.CodeLimit, Message: "the keeper is shutting down"}
	}
	if k.procs[p.id] != nil {
		return &link.Error{Code: link.CodeProcessExists, Message: fmt.Sprintf("process %q exists", p.id)}
	}
	if len(k.procs) >= maxProcesses && !k.evictLocked() {
		return &link.Error{Code: link.CodeLimit, Message: fmt.Sprintf("%d processes are known already", maxProcesses)}
	}
	reserved := p.spool.limit
	for _, q := range k.procs {
		reserved += q.reserved()
	}
	if reserved > maxSpoolBytes {
		return &link.Error{Code: link.CodeLimit, Message: fmt.Sprintf("spools may hold %d bytes in all", int64(maxSpoolBytes))}
	}
	k.procs[p.id] = p
	return nil
}

// reserved is the memory that the process's output may come to take.
func (p *process) reserved() int64 {
	select {
	case <-p.over:
		return p.spool.weight()
	default:
		return p.spool.limit
	}
}

// evictLocked forgets the process with a ring that ended longest ago, so that
// a client which never removes any can go on.
func (k *Keeper) evictLocked() bool {
	for _, p := range k.listLocked() {
		if p.spool.ack {
			continue
		}
		select {
		case <-p.over:
			k.dropLocked(p)
			return true
		default:
		}
	}
	return false
}

// remove forgets a process, killing what still runs of it.
func (k *Keeper) remove(p *process) error {
	if p.running() {
		if err := p.terminate(0, os.Getpid(), &k.wg); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked(p)
	return nil
}

// dropLocked takes a process that has ended, or is killed, out of the list. What it
// left behind may have been given a grace, which ends with the keeper at the latest.
func (k *Keeper) dropLocked(p *process) {
	delete(k.procs, p.id)
	p.spool.remove()
	swept := p.sweeping()
	if swept == nil {
		return
	}
	k.wg.Go(func() {
		select {
		case <-swept:
			return
		case <-k.ctx.Done():
		}
		if err := p.terminate(0, os.Getpid(), &k.wg); err != nil {
			k.log.Warn("kill what a process has left", "process", p.id, "err", err)
		}
	})
}

// shutdown terminates every process and says when all are gone.
func (k *Keeper) shutdown(grace time.Duration) {
	k.mu.Lock()
	again := k.stopping
	k.stopping = true
	procs := k.listLocked()
	k.mu.Unlock()
	if again {
		return
	}
	k.freezer.thaw()
	for _, p := range procs {
		if err := p.terminate(grace, os.Getpid(), &k.wg); err != nil {
			k.log.Warn("terminate process", "process", p.id, "err", err)
		}
	}
	k.wg.Go(func() {
		defer k.endOver()
		for _, p := range procs {
			select {
			case <-p.over:
			case <-p.swept:
			case <-k.ctx.Done():
				return
			}
		}
	})
}

// stats is the keeper's account of itself.
func (k *Keeper) stats() link.Stats {
	s := link.Stats{UptimeMs: time.Since(k.startedAt).Milliseconds(), Frozen: k.freezer.frozen()}
	k.mu.Lock()
	s.Epoch = k.epoch
	k.mu.Unlock()
	for _, p := range k.list() {
		s.Processes++
		if p.running() {
			s.Running++
		}
		s.SpoolBytes += p.spool.weight()
	}
	if os.Getpid() == 1 {
		if all, err := tasks(); err == nil {
			s.Tasks = len(all)
		}
	}
	return s
}
