// Package quota bounds what the files below a directory take of a disk.
//
// # Words
//
// A space is a directory with a bound. A [Method] is how it is kept: by a file system
// of its own in a sparse file, by the project quotas of the file system, or, where
// neither is allowed, by measuring again and again, which its owner does with
// [Measure].
//
// # Invariants
//
//   - What a space needs beside its directory is named after the directory and found
//     without a record: the image is DIR.img, its mount is at DIR, and a project's
//     number is an attribute of DIR.
//   - One image is never attached to two loop devices: that would be two kernels'
//     views of one file system.
//   - The loop device of an image is given back by the kernel itself when the last
//     mount is gone, even if nobody is left to do it.
//
// # Concurrency
//
// Methods may be called at the same time for different spaces.
//
// # Failure
//
// A space that could not be made can be removed, and a removal can be tried again.
package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Method is how a space is bounded.
type Method string

// The methods, best first.
const (
	// Image is a file system in a file: a write beyond it fails with ENOSPC, whoever
	// writes.
	Image Method = "image"
	// Project is a project quota: a write beyond it fails with EDQUOT or ENOSPC. On
	// some file systems it does not hold the host's root back.
	Project Method = "project"
	// Watch is measuring: whoever is over has already written.
	Watch Method = "watch"
)

// MinBytes is the smallest space that can be made with every method.
const MinBytes = 4 << 20

// trialBytes is what Open writes to a space to see it counted.
const trialBytes = 64 << 10

// trialPrefix begins the names of the directories in which Open tries what works.
const trialPrefix = "trial-"

// Disks makes spaces below one directory.
type Disks struct {
	root    string
	method  Method
	missing string
}

// Open finds out which method works below the directory root by making a space in it
// and removing it.
func Open(ctx context.Context, root string) *Disks {
	var whyNot []error
	for _, m := range []Method{Image, Project} {
		d := &Disks{root: root, method: m}
		if err := d.try(ctx, root); err != nil {
			whyNot = append(whyNot, err)
			continue
		}
		return d
	}
	return &Disks{root: root, method: Watch, missing: fmt.Sprintf(
		"For a disk limit that a write can meet, run the server as root with loop devices and mkfs.ext4, or with project quotas (prjquota) on its data directory (%v).",
		strings.ReplaceAll(errors.Join(whyNot...).Error(), "\n", "; "))}
}

func (d *Disks) try(ctx context.Context, root string) (err error) {
	tmp, err := os.MkdirTemp(root, trialPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeTrial(ctx, tmp)) }()
	space := spaceOf(tmp)
	_, err = d.Make(ctx, space, MinBytes)
	if err == nil {
		err = os.WriteFile(filepath.Join(space, "file"), make([]byte, trialBytes), 0o600)
	}
	if err == nil && d.method == Project { // a quota that counts nothing holds nobody
		var u Use
		if u, err = Used(space, Project); err == nil && u.Bytes < trialBytes {
			err = errors.New("the project quota does not count")
		}
	}
	return err
}

// spaceOf is the space in a directory in which something is tried.
func spaceOf(trial string) string { return filepath.Join(trial, "space") }

func removeTrial(ctx context.Context, trial string) error {
	if err := Remove(ctx, spaceOf(trial)); err != nil {
		return err // what is mounted there must not be emptied
	}
	return os.RemoveAll(trial)
}

// Sweep removes what an Open that was killed has left below the directory, which nobody
// else may be opening.
func (d *Disks) Sweep(ctx context.Context) error {
	entries, err := os.ReadDir(d.root)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), trialPrefix) {
			err = errors.Join(err, removeTrial(ctx, filepath.Join(d.root, e.Name())))
		}
	}
	return err
}

// Method is how spaces are bounded here.
func (d *Disks) Method() Method { return d.method }

// Missing is what an operator can do for a better method, as a sentence, or "".
func (d *Disks) Missing() string { return d.missing }

// Make makes the directory dir with a bound in bytes, which includes what the file
// system needs for itself.
func (d *Disks) Make(ctx context.Context, dir string, limit int64) (Method, error) {
	if limit < MinBytes {
		return "", fmt.Errorf("make disk space: %d bytes are less than %d", limit, MinBytes)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make disk space: %w", err)
	}
	var err error
	switch d.method {
	case Project:
		err = setProject(dir, limit)
	case Image:
		err = makeImage(ctx, dir, limit)
	case Watch:
	}
	if err != nil {
		return "", fmt.Errorf("make disk space: %w", err)
	}
	return d.method, nil
}

// Ensure makes a space usable again after a restart of the server or the machine.
func Ensure(dir string, m Method) error {
	if m != Image {
		return nil
	}
	if err := mountImage(dir); err != nil {
		return fmt.Errorf("open disk space: %w", err)
	}
	return nil
}

// Remove undoes Make, whichever method it used. Of its own accord it removes files only
// with the method Image; those of the others stay in dir.
func Remove(_ context.Context, dir string) error {
	if err := removeImage(dir); err != nil {
		return fmt.Errorf("remove disk space: %w", err)
	}
	if err := clearProject(dir); err != nil {
		return fmt.Errorf("remove disk space: %w", err)
	}
	return nil
}

// Use is what a space takes.
type Use struct {
	Bytes int64
	Full  bool // hardly anything can be written any more
}

// nearlyNothing is how much may be left of a space that is full: the kernel keeps some
// for its tables. In a small space it is a share.
const (
	nearlyNothing      = 1 << 20
	nearlyNothingShare = 32
)

// isFull reports whether free bytes of all are hardly any.
func isFull(free, all int64) bool { return free < min(nearlyNothing, all/nearlyNothingShare) }

// Used tells what a space takes of its bound, without looking at its files. With the
// method Watch it cannot be told; see [Measure].
func Used(dir string, m Method) (Use, error) {
	switch m {
	case Image:
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			return Use{}, fmt.Errorf("measure disk space: %w", err)
		}
		return Use{
			Bytes: int64(fs.Blocks-fs.Bfree) * fs.Bsize,
			Full:  isFull(int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize) || fs.Ffree == 0,
		}, nil
	case Project:
		return projectUse(dir)
	}
	return Use{}, nil
}
