package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sums describe a tree, so that a change of it is noticed.
type sums struct {
	Entries int64 `json:"entries"` // all that is below the root
	Bytes   int64 `json:"bytes"`   // of files, each once however many names it has
	// Stat is over names, kinds, permissions, owners, sizes and times of files:
	// looking at it costs no reading.
	Stat string `json:"stat"`
	// Content is over the same and the content of files; "" when it was not read.
	Content string `json:"content,omitempty"`
}

// sumTree goes through the tree at root. What is in skip is left out: mount points, which
// are added when they are needed. Nothing may change the tree meanwhile.
func sumTree(ctx context.Context, root string, skip map[string]bool, content bool) (sums, error) {
	w := walker{stat: sha256.New(), content: sha256.New(), files: make(map[uint64]string)}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if rel == "." || skip[rel] {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return w.add(path, rel, info, content)
	})
	if err != nil {
		return sums{}, fmt.Errorf("look through %s: %w", filepath.Base(filepath.Dir(root)), err)
	}
	w.sums.Stat = hex.EncodeToString(w.stat.Sum(nil))
	if content {
		w.sums.Content = hex.EncodeToString(w.content.Sum(nil))
	}
	return w.sums, nil
}

type walker struct {
	sums          sums
	stat, content hash.Hash
	files         map[uint64]string // content sums of files with several names, by inode
}

func (w *walker) add(path, rel string, info fs.FileInfo, content bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("no attributes of %q", rel)
	}
	w.sums.Entries++
	line := fmt.Sprintf("%q %o %d %d", rel, st.Mode, st.Uid, st.Gid)
	var sum string
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(path); err != nil {
			return err
		}
		line += fmt.Sprintf(" %q", target)
	case unix.S_IFREG:
		line += fmt.Sprintf(" %d %d", st.Size, st.Mtim.Sec)
		sum = w.files[st.Ino]
		if sum == "" {
			w.sums.Bytes += st.Size
			if content {
				if sum, err = sumFile(path); err != nil {
					return err
				}
			}
			if st.Nlink > 1 {
				w.files[st.Ino] = max(sum, "-")
			}
		}
	}
	fmt.Fprintln(w.stat, line)
	fmt.Fprintln(w.content, line, sum)
	return nil
}

func sumFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOATIME, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, block)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
