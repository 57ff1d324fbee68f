package keeper

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper is the one place that waits for child processes. As PID 1 it waits
// for everything, since orphans become its children; otherwise only for the
// processes that it forked itself.
type reaper struct {
	all bool

	// mu is held while forking and while a status is matched, so that a child
	// that ends at once is not taken for an orphan.
	mu    sync.Mutex
	waits map[int]chan<- unix.WaitStatus

	wg   sync.WaitGroup
	stop chan struct{}
}

func newReaper(all bool) *reaper {
	r := &reaper{all: all, waits: make(map[int]chan<- unix.WaitStatus), stop: make(chan struct{})}
	if all {
		sigs := make(chan os.Signal, 1)
		signal.Notify(sigs, unix.SIGCHLD)
		r.wg.Go(func() {
			defer signal.Stop(sigs)
			r.loop(sigs)
		})
	}
	return r
}

// close ends the loop. Waits for single children end with the children.
func (r *reaper) close() {
	close(r.stop)
	r.wg.Wait()
}

// fork runs start, which forks, and returns the pid and a channel that will
// get the child's status.
func (r *reaper) fork(start func() (int, error)) (int, <-chan unix.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := start()
	if err != nil {
		return 0, nil, err
	}
	status := make(chan unix.WaitStatus, 1)
	if r.all {
		r.waits[pid] = status
	} else {
		r.wg.Go(func() { waitOne(pid, status) })
	}
	return pid, status, nil
}

func waitOne(pid int, status chan<- unix.WaitStatus) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil { // somebody else waited for our child; the status is lost
			close(status)
			return
		}
		status <- ws
		return
	}
}

// loop reaps whenever the kernel says that a child has ended. Signals
// coalesce, so each one empties the queue.
func (r *reaper) loop(sigs <-chan os.Signal) {
	for {
		r.drain()
		select {
		case <-sigs:
		case <-r.stop:
			return
		}
	}
}

func (r *reaper) drain() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.mu.Lock()
		status := r.waits[pid]
		delete(r.waits, pid)
		r.mu.Unlock()
		if status != nil {
			status <- ws // has room: one status for each child
		}
	}
}
