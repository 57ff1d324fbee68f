package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

var errClosed = errors.New("the image store is closed")

// Store is the images of a directory. It is a sandbox.Images.
type Store struct {
	cfg        Config
	platform   v1.Platform
	owners     bool // files have the owners that archives name
	boot       string
	registries *registries

	life context.Context // ends with Close
	end  context.CancelCauseFunc
	work sync.WaitGroup // grows under mu and only while not closed

	mu      sync.Mutex
	closed  bool
	flights map[string]*flight       // by reference
	checked map[string]bool          // digests that were compared with their records
	dirs    map[string]sandbox.Image // trees that are used as they are, by path
}

var (
	_ sandbox.Images       = (*Store)(nil)
	_ sandbox.MountPointer = (*Store)(nil)
)

// Open returns the store of a directory and removes what dead servers left half made in
// it. The caller closes it.
func Open(cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	platform, err := parsePlatform(cfg.Platform)
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	s := &Store{
		cfg: cfg, platform: platform, owners: os.Geteuid() == 0, boot: strings.TrimSpace(string(boot)),
		registries: &registries{
			mirrors: cfg.Mirrors, insecure: cfg.Insecure, log: cfg.Log,
			known: cfg.registries(), transport: boundedTransport{cfg.Transport}, strange: boundedTransport{cfg.Strange},
			keys: keys{cfg.Credentials, cfg.DockerConfig, cfg.Log},
		},
		flights: make(map[string]*flight), checked: make(map[string]bool), dirs: make(map[string]sandbox.Image),
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	return s, nil
}

// prepare makes the directories and removes what is left over.
func (s *Store) prepare() error {
	for _, d := range []string{"", refsName, locksName, layersName} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, d), 0o700); err != nil {
			return err
		}
	}
	// Files of images may be set-user-id files of root: nobody else may reach them.
	if err := os.Chmod(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(s.cfg.Dir)
	if err != nil {
		return err
	}
	s.cfg.Dir = dir
	return sweep(dir)
}

// Close breaks off what is being made and waits until it has ended. Images stay.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(errClosed)
	s.work.Wait()
	return nil
}

// Ensure makes an image be there and returns it. Its error wraps ErrNotAllowed when the
// configuration does not allow the reference, and ErrCorrupt, ErrTooLarge or ErrPlatform
// when there is something wrong with the image.
func (s *Store) Ensure(ctx context.Context, text string) (sandbox.Image, error) {
	r, err := s.lookUp(text)
	if err != nil {
		return sandbox.Image{}, err
	}
	image, err := s.ensure(ctx, r)
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("image %.200q: %w", text, err)
	}
	image.Reference = text
	return image, nil
}

// Check reports whether the configuration allows a reference or a name, without
// getting anything.
func (s *Store) Check(text string) error {
	_, err := s.lookUp(text)
	return err
}

// lookUp returns what is meant by a reference or a name, if it is allowed.
func (s *Store) lookUp(text string) (reference, error) {
	if full, ok := s.cfg.Names[text]; ok {
		return parse(full, s.cfg.Insecure)
	}
	r, err := parse(text, s.cfg.Insecure)
	if err != nil {
		return reference{}, err
	}
	if !allowed(r, s.cfg.Allow) {
		return reference{}, fmt.Errorf("%w: image %.200q: %w by the server's configuration", sandbox.ErrInvalidSpec, text, ErrNotAllowed)
	}
	return r, nil
}

func (s *Store) ensure(ctx context.Context, r reference) (sandbox.Image, error) {
	if r.kind == kindDir {
		return s.share(ctx, r.text, func(ctx context.Context) (sandbox.Image, error) { return s.asItIs(ctx, r) })
	}
	if m := s.meaningOf(r); s.isChecked(m.Digest) && s.stillMeans(r, m) {
		if image, ok, err := s.take(ctx, m.Digest); err != nil || ok {
			return image, err
		}
	}
	return s.share(ctx, r.text, func(ctx context.Context) (sandbox.Image, error) { return s.get(ctx, r) })
}

// stillMeans reports whether a reference need not be asked for again.
func (s *Store) stillMeans(r reference, m meaning) bool {
	switch {
	case m.Digest == "":
		return false
	case r.kind != kindRegistry:
		stamp, err := stampOf(r)
		return err == nil && stamp == m.Stamp
	case r.pinned() != "" || s.cfg.Refresh < 0:
		return true
	}
	age := time.Since(m.At)
	return age >= 0 && age < s.cfg.Refresh
}

// get finds out what a reference means and makes the image of it if it is not there.
func (s *Store) get(ctx context.Context, r reference) (sandbox.Image, error) {
	known := s.meaningOf(r)
	if s.stillMeans(r, known) {
		if image, ok, err := s.take(ctx, known.Digest); err != nil || ok {
			return image, err
		}
	}
	tell := newTeller(s.cfg.Progress, r.text)
	tell.stage(StageResolve, 0)
	found, stamp, err := s.find(ctx, r)
	if err != nil {
		if r.kind != kindRegistry || known.Digest == "" || ctx.Err() != nil {
			return sandbox.Image{}, err
		}
		image, ok, takeErr := s.take(ctx, known.Digest)
		if takeErr != nil || !ok {
			return sandbox.Image{}, errors.Join(err, takeErr)
		}
		s.cfg.Log.Warn("a registry could not be asked; the image that is there is used", "image", r.text, "error", err)
		return image, nil
	}
	defer found.close()
	image, ok, err := s.take(ctx, found.digest)
	if err == nil && !ok {
		image, err = s.make(ctx, r, found.source, tell)
	}
	if err != nil {
		return sandbox.Image{}, err
	}
	err = writeJSON(s.refPath(r), meaning{Reference: r.text, Digest: found.digest, At: time.Now(), Stamp: stamp})
	if err != nil {
		return sandbox.Image{}, err
	}
	tell.stage(StageReady, 0)
	return image, nil
}

// take returns an image that is there, after it was compared with its record once, and
// marks it as used.
func (s *Store) take(ctx context.Context, digest string) (sandbox.Image, bool, error) {
	f, err := s.lock(ctx, digest, unix.LOCK_SH)
	if err != nil {
		return sandbox.Image{}, false, err
	}
	image, ok, err := s.takeLocked(ctx, digest)
	f.Close()
	if err == nil || !errors.Is(err, ErrCorrupt) {
		return image, ok, err
	}
	// Nobody may be looking at it when it is put aside.
	s.cfg.Log.Warn("an image is not as it was made, and is made again", "digest", digest, "error", err)
	if f, err = s.lock(ctx, digest, unix.LOCK_EX); err != nil {
		return sandbox.Image{}, false, err
	}
	defer f.Close()
	return sandbox.Image{}, false, s.putAside(digest)
}

// takeLocked returns ErrCorrupt when the image is there and not as it was.
func (s *Store) takeLocked(ctx context.Context, digest string) (sandbox.Image, bool, error) {
	dir := s.entryDir(digest)
	r, err := s.readRecord(digest)
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(dir); errors.Is(statErr, fs.ErrNotExist) {
			return sandbox.Image{}, false, nil
		}
	}
	if err != nil {
		return sandbox.Image{}, false, fmt.Errorf("%w: record: %w", ErrCorrupt, err)
	}
	if !s.isChecked(digest) {
		if err := s.compare(ctx, r); err != nil {
			return sandbox.Image{}, false, err
		}
	}
	if err := s.markUsed(digest); err != nil {
		return sandbox.Image{}, false, err
	}
	return sandbox.Image{Digest: digest, Dir: filepath.Join(dir, treeName), Env: r.Env}, true, nil
}

// compare compares a tree with its record, once for each boot of the machine.
func (s *Store) compare(ctx context.Context, r record) error {
	note := filepath.Join(s.entryDir(r.Digest), verifiedName)
	if b, err := os.ReadFile(note); err != nil || string(b) != s.boot {
		is, err := sumTree(ctx, filepath.Join(s.entryDir(r.Digest), treeName), skipped(r), false)
		if err != nil {
			return err
		}
		if err := r.Tree.equal(is); err != nil {
			return err
		}
		if err := os.WriteFile(note, []byte(s.boot), 0o600); err != nil {
			return err
		}
	}
	s.setChecked(r.Digest, true)
	return nil
}

// Verify reads all of an image that is there and compares it with what was unpacked. The
// error wraps ErrCorrupt when it differs: then it is put aside, and the next Ensure makes
// it again.
func (s *Store) Verify(ctx context.Context, digest string) error {
	f, err := s.lock(ctx, digest, unix.LOCK_SH)
	if err != nil {
		return err
	}
	err = s.verifyLocked(ctx, digest)
	f.Close()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("verify image %.80s: %w", digest, err)
	if !errors.Is(err, ErrCorrupt) {
		return err
	}
	f, lockErr := s.lock(ctx, digest, unix.LOCK_EX)
	if lockErr != nil {
		return errors.Join(err, lockErr)
	}
	defer f.Close()
	return errors.Join(err, s.putAside(digest))
}

func (s *Store) verifyLocked(ctx context.Context, digest string) error {
	r, err := s.readRecord(digest)
	if err != nil {
		return err
	}
	is, err := sumTree(ctx, filepath.Join(s.entryDir(digest), treeName), skipped(r), true)
	if err != nil {
		return err
	}
	return r.Tree.equal(is)
}

// equal reports how a tree differs from what it was. Content that was not read is not
// compared.
func (s sums) equal(is sums) error {
	switch {
	case s.Entries != is.Entries || s.Bytes != is.Bytes:
		return fmt.Errorf("%w: it has %d entries with %d bytes instead of %d with %d", ErrCorrupt, is.Entries, is.Bytes, s.Entries, s.Bytes)
	case s.Stat != is.Stat:
		return fmt.Errorf("%w: names, kinds, permissions, owners or times of its files have changed", ErrCorrupt)
	case is.Content != "" && s.Content != is.Content:
		return fmt.Errorf("%w: the content of a file has changed", ErrCorrupt)
	}
	return nil
}

func skipped(r record) map[string]bool {
	skip := make(map[string]bool)
	for _, p := range r.Points {
		skip[p] = true
	}
	return skip
}

// asItIs returns a tree of the host that is used as it is.
func (s *Store) asItIs(ctx context.Context, r reference) (sandbox.Image, error) {
	s.mu.Lock()
	image, ok := s.dirs[r.path]
	s.mu.Unlock()
	if ok {
		return image, nil
	}
	if err := checkPoints(r.path, points); err != nil {
		return sandbox.Image{}, err
	}
	is, err := sumTree(ctx, r.path, nil, false)
	if err != nil {
		return sandbox.Image{}, err
	}
	image = sandbox.Image{Digest: digestPrefix + is.Stat, Dir: r.path}
	s.mu.Lock()
	s.dirs[r.path] = image
	s.mu.Unlock()
	return image, nil
}

// AddMountPoints makes the places that layers are mounted on. In a tree that is used as
// it is they must be there.
func (s *Store) AddMountPoints(ctx context.Context, image sandbox.Image, layers []sandbox.Mount) error {
	wanted, err := layerPoints(layers)
	if err != nil {
		return err
	}
	missing := checkPoints(image.Dir, wanted)
	if missing == nil || image.Dir != filepath.Join(s.entryDir(image.Digest), treeName) {
		return missing
	}
	f, err := s.lock(ctx, image.Digest, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := s.readRecord(image.Digest)
	if err != nil {
		return fmt.Errorf("add mount points: %w", err)
	}
	made, err := addPoints(image.Dir, wanted)
	if len(made) > 0 {
		r.Points = append(r.Points, made...)
		err = errors.Join(err, writeJSON(filepath.Join(s.entryDir(image.Digest), recordName), r))
	}
	return err
}

// lock takes the lock of an image in this store, among all servers that share it.
func (s *Store) lock(ctx context.Context, digest string, how int) (*os.File, error) {
	if !validDigest(digest) {
		return nil, fmt.Errorf("%w: digest %.80q", ErrCorrupt, digest)
	}
	return lock(ctx, s.lockPath(digest), how)
}

func (s *Store) lockPath(digest string) string {
	return filepath.Join(s.cfg.Dir, locksName, strings.TrimPrefix(digest, digestPrefix))
}

func (s *Store) isChecked(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checked[digest]
}

func (s *Store) setChecked(digest string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is {
		s.checked[digest] = true
	} else {
		delete(s.checked, digest)
	}
}
