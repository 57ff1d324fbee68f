package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

const (
	// graceTime is how long an image is kept after its last use whatever else is said:
	// a sandbox that is being made is not recorded yet.
	graceTime = 10 * time.Minute
	// staleTime is how long another server's word that it uses an image is believed.
	staleTime = 30 * 24 * time.Hour
)

// Info describes an image that is there.
type Info struct {
	Digest    string
	Reference string // as it was first asked for
	Platform  string
	Bytes     int64
	Entries   int64
	MadeAt    time.Time
	UsedAt    time.Time
	InUse     bool // a sandbox, or the configuration, keeps it
}

// List returns the images that are there, those that were used last first.
func (s *Store) List(context.Context) ([]Info, error) {
	used, err := s.cfg.InUse()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	pinned := s.pinnedDigests()
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var list []Info
	for _, e := range entries {
		digest, ok := s.digestOfEntry(e.Name())
		if !ok {
			continue
		}
		r, err := s.readRecord(digest)
		if err != nil {
			continue // it is being removed, or is damaged: Ensure will see
		}
		info, err := os.Stat(filepath.Join(s.entryDir(digest), recordName))
		if err != nil {
			continue
		}
		list = append(list, Info{
			Digest: digest, Reference: r.Reference, Platform: r.Platform, Bytes: r.Tree.Bytes, Entries: r.Tree.Entries,
			MadeAt: r.MadeAt, UsedAt: info.ModTime(), InUse: used[digest] || pinned[digest] || s.othersUse(s.entryDir(digest)),
		})
	}
	slices.SortFunc(list, func(a, b Info) int { return b.UsedAt.Compare(a.UsedAt) })
	return list, nil
}

// markUsed notes that this server uses an image, now.
func (s *Store) markUsed(digest string) error {
	now := time.Now()
	dir := s.entryDir(digest)
	if err := os.Chtimes(filepath.Join(dir, recordName), now, now); err != nil {
		return fmt.Errorf("mark image as used: %w", err)
	}
	mark := filepath.Join(dir, usersName, s.cfg.Owner)
	if os.Chtimes(mark, now, now) == nil {
		return nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return fmt.Errorf("mark image as used: %w", err)
	}
	return nil
}

// pinnedDigests are what the pinned references mean, as far as that is known.
func (s *Store) pinnedDigests() map[string]bool {
	pinned := make(map[string]bool)
	for _, text := range s.cfg.Pinned {
		if full, ok := s.cfg.Names[text]; ok {
			text = full
		}
		if r, err := parse(text, s.cfg.Insecure); err == nil {
			pinned[s.meaningOf(r).Digest] = true
		}
		pinned[text] = true // a digest
	}
	return pinned
}

// Collect removes images that were used longest ago until the others fit, and what dead
// servers left behind. Images stay that a sandbox was made with, that the configuration
// keeps, or that were used just now.
func (s *Store) Collect(ctx context.Context) error { return s.collect(ctx, time.Now()) }

func (s *Store) collect(ctx context.Context, now time.Time) error {
	errs := []error{sweep(s.cfg.Dir)}
	used, err := s.cfg.InUse()
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("collect images: %w", err))...)
	}
	errs = append(errs, s.removeDamaged(used))
	list, err := s.List(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	total := int64(0)
	for _, i := range list {
		total += i.Bytes
		s.renewMark(i, used[i.Digest], now)
	}
	for _, i := range slices.Backward(list) {
		if s.cfg.CacheBytes < 0 || total <= s.cfg.CacheBytes || ctx.Err() != nil {
			break
		}
		if i.InUse || now.Sub(i.UsedAt) < graceTime {
			continue
		}
		removed, err := s.evict(i.Digest, now)
		errs = append(errs, err)
		if removed {
			total -= i.Bytes
			s.cfg.Log.Info("an image was removed to make room", "image", i.Reference, "digest", i.Digest, "bytes", i.Bytes)
		}
	}
	return errors.Join(errs...)
}

// renewMark keeps this server's word about an image true.
func (s *Store) renewMark(i Info, used bool, now time.Time) {
	mark := filepath.Join(s.entryDir(i.Digest), usersName, s.cfg.Owner)
	if used {
		_ = os.Chtimes(mark, now, now) // it was made with the first use
	} else if now.Sub(i.UsedAt) >= graceTime {
		_ = os.Remove(mark) // a mark too many keeps an image for a while, no more
	}
}

// evict removes an image, unless somebody has come to use it meanwhile.
func (s *Store) evict(digest string, now time.Time) (removed bool, err error) {
	f, ok := tryLock(s.lockPath(digest))
	if !ok {
		return false, nil
	}
	defer f.Close()
	info, err := os.Stat(filepath.Join(s.entryDir(digest), recordName))
	if err != nil || now.Sub(info.ModTime()) < graceTime {
		return false, ignoreMissing(err)
	}
	s.setChecked(digest, false)
	// In a draft it is nobody's image, and whoever comes next removes it if this server
	// dies over it.
	d, err := newDraft(s.cfg.Dir)
	if err != nil {
		return false, err
	}
	err = os.Rename(s.entryDir(digest), filepath.Join(d.dir, "entry"))
	return err == nil, errors.Join(err, d.remove())
}

// putAside takes a damaged image out of the way. Sandboxes that run on it keep it until
// they are gone.
func (s *Store) putAside(digest string) error {
	s.setChecked(digest, false)
	hexDigest := strings.TrimPrefix(digest, digestPrefix)
	dir, err := os.MkdirTemp(s.cfg.Dir, damagedName+hexDigest+"-")
	if err != nil {
		return err
	}
	return ignoreMissing(os.Rename(s.entryDir(digest), filepath.Join(dir, "entry")))
}

// removeDamaged removes what was put aside and is not used any more.
func (s *Store) removeDamaged(used map[string]bool) error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), damagedName)
		digest, _, _ := strings.Cut(rest, "-")
		if !ok || used[digestPrefix+digest] || !validDigest(digestPrefix+digest) {
			continue
		}
		f, ok := tryLock(s.lockPath(digestPrefix + digest))
		if !ok {
			continue
		}
		dir := filepath.Join(s.cfg.Dir, e.Name())
		if !s.othersUse(filepath.Join(dir, "entry")) {
			errs = append(errs, local.RemoveTree(dir))
		}
		f.Close()
	}
	return errors.Join(errs...)
}

// othersUse reports whether another server says that it uses the image in a directory.
func (s *Store) othersUse(entry string) bool {
	marks, err := os.ReadDir(filepath.Join(entry, usersName))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // who cannot tell keeps it
	}
	for _, m := range marks {
		info, err := m.Info()
		if err == nil && m.Name() != s.cfg.Owner && time.Since(info.ModTime()) < staleTime {
			return true
		}
	}
	return false
}
