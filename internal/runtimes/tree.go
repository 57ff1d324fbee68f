package runtimes

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"strconv"
)

// The bounds of a layer: several times the largest agent there is.
const (
	maxTreeBytes = 4 << 30
	maxTreeFiles = 300_000
)

// tree is what a walk over a layer finds.
type tree struct {
	digest string // hex
	bytes  int64
	files  int // with links and directories
}

// settle gives everything in the tree below root the permissions of a layer: readable
// to all, writable to the owner, executable if it was. What is neither file, directory
// nor link is refused.
func settle(root string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	return fs.WalkDir(dir.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir(), info.Mode().IsRegular() && info.Mode()&0o111 != 0:
			return dir.Chmod(name, 0o755)
		case info.Mode().IsRegular():
			return dir.Chmod(name, 0o644)
		}
		return fmt.Errorf("%q is neither file, directory nor link", name)
	})
}

// errTooLarge reports a tree beyond the bounds.
var errTooLarge = fmt.Errorf("a runtime has at most %d bytes in %d files", int64(maxTreeBytes), maxTreeFiles)

// measure digests the tree below root. Two trees have one digest if and only if a
// program that only reads them cannot tell them apart, times and owners aside.
func measure(root string) (tree, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return tree{}, err
	}
	defer dir.Close()
	var t tree
	sum := sha256.New()
	err = fs.WalkDir(dir.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if t.files++; t.files > maxTreeFiles {
			return errTooLarge
		}
		return t.add(sum, dir, name, d)
	})
	if err != nil {
		return tree{}, fmt.Errorf("read the tree: %w", err)
	}
	t.digest = hex.EncodeToString(sum.Sum(nil))
	return t, nil
}

// add puts one entry into the digest. WalkDir goes in the order of names, and every
// part is delimited.
func (t *tree) add(sum hash.Hash, dir *os.Root, name string, d fs.DirEntry) error {
	put := func(parts ...string) {
		for _, p := range parts {
			_, _ = io.WriteString(sum, strconv.Itoa(len(p))+":"+p) // a hash takes all
		}
	}
	switch {
	case d.IsDir():
		put("d", name)
		return nil
	case d.Type() == fs.ModeSymlink:
		to, err := dir.Readlink(name)
		put("l", name, to)
		return err
	case !d.Type().IsRegular():
		return errors.New("neither file, directory nor link: " + strconv.Quote(name))
	}
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if t.bytes += info.Size(); t.bytes > maxTreeBytes {
		return errTooLarge
	}
	content := sha256.New()
	n, err := io.Copy(content, io.LimitReader(f, info.Size()+1))
	switch {
	case err != nil:
		return err
	case n != info.Size():
		return fmt.Errorf("%q changed while it was read", name)
	}
	put("f", name, strconv.FormatBool(info.Mode()&0o111 != 0), string(content.Sum(nil)))
	return nil
}
