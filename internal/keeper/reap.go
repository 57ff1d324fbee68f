package keeper

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

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
	waits map[int]chan<- ending

	wg   sync.WaitGroup
	stop chan struct{}
}

func newReaper(all bool) *reaper {
	r := &reaper{all: all, waits: make(map[int]chan<- ending), stop: make(chan struct{})}
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

// ending is what the kernel says of a child that has ended.
type ending struct {
	status unix.WaitStatus
	usage  unix.Rusage
	at     time.Time // when it was waited for
}

// fork runs start, which forks, and returns the pid and a channel that will
// get the child's ending. It is closed instead when that is lost.
func (r *reaper) fork(start func() (int, error)) (int, <-chan ending, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := start()
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan ending, 1)
	r.waits[pid] = ended
	if !r.all {
		r.wg.Go(func() { r.waitOne(pid) })
	}
	return pid, ended, nil
}

// mains are the main processes that run.
func (r *reaper) mains() map[int]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids := make(map[int]bool, len(r.waits))
	for pid := range r.waits {
		pids[pid] = true
	}
	return pids
}

// take ends the wait for a child.
func (r *reaper) take(pid int) chan<- ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := r.waits[pid]
	delete(r.waits, pid)
	return ended
}

func (r *reaper) waitOne(pid int) {
	var e ending
	for {
		_, err := unix.Wait4(pid, &e.status, 0, &e.usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		e.at = time.Now()
		ended := r.take(pid)
		if err != nil { // somebody else waited for our child; the status is lost
			close(ended)
			return
		}
		ended <- e
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
		var e ending
		pid, err := unix.Wait4(-1, &e.status, syscall.WNOHANG, &e.usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		e.at = time.Now()
		if ended := r.take(pid); ended != nil {
			ended <- e // has room: one ending for each child
		}
	}
}
