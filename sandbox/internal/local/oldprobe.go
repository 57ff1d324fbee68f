package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	probePrefix = "probe-"
	// probeLock is the file in a probe's directory that is locked for as long as the
	// probe runs.
	probeLock = "lock"
	// probeAge is how old a probe's directory without that file must be before it
	// counts as left behind: its prober may be about to make it.
	probeAge = time.Minute
)

// beginProbe makes a directory for a probe below dir. The caller closes the file when the
// directory is removed.
func beginProbe(dir string) (path string, lock *os.File, err error) {
	path, err = os.MkdirTemp(dir, probePrefix)
	if err != nil {
		return "", nil, err
	}
	lock, err = os.OpenFile(filepath.Join(path, probeLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		if lock != nil {
			lock.Close()
		}
		return "", nil, errors.Join(err, RemoveTree(path))
	}
	return path, lock, nil
}

// removeOldProbes ends and removes what probes left below dir whose process has died.
func removeOldProbes(ctx context.Context, dir string, open func(dir string) (sandbox.Driver, error)) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), probePrefix) {
			continue
		}
		if err := removeOldProbe(ctx, filepath.Join(dir, e.Name()), open); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func removeOldProbe(ctx context.Context, path string, open func(dir string) (sandbox.Driver, error)) (err error) {
	lock, err := os.OpenFile(filepath.Join(path, probeLock), os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		info, err := os.Stat(path)
		if err != nil || time.Since(info.ModTime()) < probeAge {
			return nil // it has just gone, or just come
		}
		return RemoveTree(path) // nothing is started before there is a lock
	case err != nil:
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil // it runs
	} else if err != nil {
		return err
	}
	d, err := open(path)
	if err != nil {
		return err
	}
	hs, err := d.List(ctx)
	for _, h := range hs {
		err = errors.Join(err, d.Remove(ctx, h))
	}
	if err == nil {
		err = uninstall(ctx, d)
	}
	if err = errors.Join(err, d.Close()); err != nil {
		return err // its directory says what is left
	}
	return RemoveTree(path)
}
