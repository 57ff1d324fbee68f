package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// lockPause is how long to wait before a lock that somebody has is tried again. Waiting
// in the kernel could not be broken off.
const lockPause = 50 * time.Millisecond

// lock takes the lock on a file, which is made if it must: unix.LOCK_SH or LOCK_EX. Locks
// end with their holder, however it dies. The caller closes the file to unlock.
func lock(ctx context.Context, path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var pause *time.Ticker
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", filepath.Base(path), err)
		}
		if pause == nil {
			pause = time.NewTicker(lockPause)
			defer pause.Stop()
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for image: %w", context.Cause(ctx))
		}
	}
}

// tryLock takes a lock if nobody else has it.
func tryLock(path string) (*os.File, bool) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return nil, false
	}
	return f, true
}

// newPrefix starts the names of directories in which something is being made. Each is
// locked by its maker.
const newPrefix = "new-"

// draft is a directory in which something is being made.
type draft struct {
	dir  string
	lock *os.File
}

// newDraft makes a draft below dir.
func newDraft(dir string) (*draft, error) {
	for {
		path, err := os.MkdirTemp(dir, newPrefix)
		if err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // taken for abandoned before it was locked
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if _, statErr := os.Stat(path); err == nil && statErr == nil {
			return &draft{path, f}, nil
		}
		f.Close()
	}
}

// remove removes what is left of the draft, and unlocks it.
func (d *draft) remove() error {
	defer d.lock.Close()
	return local.RemoveTree(d.dir)
}

// sweep removes the drafts below dir whose makers have died.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), newPrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.Open(path)
		if err != nil {
			continue // somebody else has removed it
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, local.RemoveTree(path))
		}
		f.Close()
	}
	return errors.Join(errs...)
}
