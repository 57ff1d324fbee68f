package keeper

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// syncDirs are what a sandbox keeps beyond its life.
var syncDirs = []string{"/workspace", "/home/agent"}

// sync writes out the file systems under the working directory and under what
// a sandbox keeps, each once.
func (k *Keeper) sync() error {
	if k.cfg.Programs != nil {
		return nil // their files are the host's
	}
	done := make(map[uint64]bool)
	for _, dir := range append([]string{k.info.Cwd}, syncDirs...) {
		err := syncDir(k.mapPath(dir), done)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
	}
	return nil
}

func syncDir(dir string, done map[uint64]bool) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	id, err := idOf(fd)
	if err != nil || done[id.dev] {
		return err
	}
	done[id.dev] = true
	return unix.Syncfs(fd)
}
