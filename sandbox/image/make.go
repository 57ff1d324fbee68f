package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	downloads     = 3 // at once
	downloadTries = 5 // of each layer
	retryPause    = 500 * time.Millisecond
	// stallTime is how long a download may bring nothing before it is broken off.
	stallTime = 60 * time.Second
	// slackBytes is how much more than its files the archive of an entry may take.
	slackBytes = 4 << 10
)

// errStalled breaks off a download that brings nothing.
var errStalled = errors.New("nothing came for a minute")

// located is a source with the files that it reads from.
type located struct {
	*source
	close func()
}

// find finds the image of a reference. The stamp tells files of the host from later ones
// in their place.
func (s *Store) find(ctx context.Context, r reference) (_ located, stamp string, err error) {
	if r.kind == kindRegistry {
		src, err := s.registries.find(ctx, r.remote, s.platform)
		return located{src, func() {}}, "", err
	}
	if stamp, err = stampOf(r); err != nil {
		return located{}, "", err
	}
	var found files
	switch r.kind {
	case kindRootfs:
		src, err := plainSource(ctx, r.path)
		return located{src, func() {}}, stamp, err
	case kindLayout:
		found, err = openDirFiles(r.path)
	default:
		found, err = s.openArchive(ctx, r.path)
	}
	if err != nil {
		return located{}, "", err
	}
	closeFiles := func() { found.Close() } // they were only read
	src, err := findOnDisk(found, r.image, s.platform)
	if err != nil {
		closeFiles()
		return located{}, "", err
	}
	return located{src, closeFiles}, stamp, nil
}

// stampOf changes when a file of the host is changed or replaced.
func stampOf(r reference) (string, error) {
	path := r.path
	if r.kind == kindLayout {
		path = filepath.Join(path, indexFile)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("look at %s: %w", path, err)
	}
	return fmt.Sprintf("%d-%d-%d-%d-%d", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), nil
}

// openArchive opens an archive of images. One that is compressed is unpacked into a file
// without a name first, because its parts are read in another order than they come.
func (s *Store) openArchive(ctx context.Context, path string) (files, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var head [8]byte
	n, err := f.ReadAt(head[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return nil, err
	}
	if compression(head[:n]) == "" {
		return openTarFiles(ctx, f)
	}
	defer f.Close()
	r, err := decompress(f)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	tmp, err := os.CreateTemp(s.cfg.Dir, newPrefix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(tmp.Name()); err != nil {
		tmp.Close()
		return nil, err
	}
	_, err = io.Copy(tmp, &meter{ctx: ctx, r: r, left: s.archiveBytes()})
	if err == nil {
		_, err = tmp.Seek(0, io.SeekStart)
	}
	if err != nil {
		tmp.Close()
		return nil, readError("archive", err)
	}
	return openTarFiles(ctx, tmp)
}

// plainSource is the archive of a root: its digest is that of the file.
func plainSource(ctx context.Context, path string) (*source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no file", ErrCorrupt, path)
	}
	d := newDigester(&meter{ctx: ctx, r: f, left: info.Size()})
	if _, err := io.CopyBuffer(io.Discard, d, make([]byte, block)); err != nil {
		return nil, err
	}
	return &source{digest: d.digest(), isPlain: true, layers: []layer{{
		size: info.Size(), digest: d.digest(),
		open: func(context.Context, int) (io.ReadCloser, error) { return os.Open(path) },
	}}}, nil
}

// archiveBytes is how large the archive of an image within the limits can be.
func (s *Store) archiveBytes() int64 {
	return s.cfg.Limits.Bytes + slackBytes*(s.cfg.Limits.Entries+1)
}

// make makes an image that is not there, unless another server does so first.
func (s *Store) make(ctx context.Context, r reference, src *source, tell *teller) (sandbox.Image, error) {
	f, err := s.lock(ctx, src.digest, unix.LOCK_EX)
	if err != nil {
		return sandbox.Image{}, err
	}
	image, err := s.makeLocked(ctx, r, src, tell)
	f.Close()
	if err == nil {
		if err := s.Collect(ctx); err != nil {
			s.cfg.Log.Warn("images could not be cleaned up", "error", err)
		}
	}
	return image, err
}

func (s *Store) makeLocked(ctx context.Context, r reference, src *source, tell *teller) (_ sandbox.Image, err error) {
	image, ok, err := s.takeLocked(ctx, src.digest)
	if errors.Is(err, ErrCorrupt) {
		err = s.putAside(src.digest)
	}
	if err != nil || ok {
		return image, err
	}
	d, err := newDraft(s.cfg.Dir)
	if err != nil {
		return sandbox.Image{}, err
	}
	defer func() { err = errors.Join(err, d.remove()) }()
	if err := s.unpack(ctx, src, d, tell); err != nil {
		return sandbox.Image{}, err
	}
	entry := filepath.Join(d.dir, "entry")
	tell.stage(StageVerify, 0)
	tree, err := sumTree(ctx, filepath.Join(entry, treeName), nil, true)
	if err != nil {
		return sandbox.Image{}, err
	}
	rec := record{
		Version: recordVersion, Digest: src.digest, Reference: r.text, Platform: s.platform.String(),
		Env: src.env, MadeAt: time.Now().UTC(), Tree: tree,
	}
	if err := s.publish(entry, rec); err != nil {
		return sandbox.Image{}, err
	}
	image, _, err = s.takeLocked(ctx, src.digest)
	return image, err
}

// publish gives a finished image its place. All of it is on disk before it has its name.
func (s *Store) publish(entry string, rec record) error {
	if err := writeJSON(filepath.Join(entry, recordName), rec); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(entry, verifiedName), []byte(s.boot), 0o600); err != nil {
		return err
	}
	f, err := os.Open(entry)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write image to disk: %w", err)
	}
	if err := os.Rename(entry, s.entryDir(rec.Digest)); err != nil {
		return err
	}
	dir, err := os.Open(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// unpack makes the tree of an image in a draft.
func (s *Store) unpack(ctx context.Context, src *source, d *draft, tell *teller) error {
	root := filepath.Join(d.dir, "entry", treeName)
	if err := os.MkdirAll(filepath.Join(d.dir, "entry", usersName), 0o700); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		return err
	}
	blobs := filepath.Join(d.dir, "blobs")
	if err := os.Mkdir(blobs, 0o700); err != nil {
		return err
	}
	if err := s.downloadAll(ctx, src.layers, blobs, tell); err != nil {
		return err
	}
	t, err := newTree(root, filepath.Join(d.dir, "trash"), s.owners, s.cfg.Limits)
	if err != nil {
		return err
	}
	defer t.close()
	total := int64(0)
	for _, l := range src.layers {
		total += max(l.size, 0)
	}
	tell.stage(StageUnpack, total)
	for i, l := range src.layers {
		if i > 0 {
			if err := t.nextLayer(); err != nil {
				return err
			}
		}
		if l.remote {
			path := blobPath(blobs, l)
			l.open = func(context.Context, int) (io.ReadCloser, error) { return os.Open(path) }
		}
		if err := s.unpackLayer(ctx, t, l, !src.isPlain, tell); err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(src.layers), err)
		}
	}
	if err := t.furnish(); err != nil {
		return err
	}
	return t.finish()
}

// unpackLayer reads all of a layer into the tree and then says whether it was the right
// one: what a wrong one has left is never published.
func (s *Store) unpackLayer(ctx context.Context, t *tree, l layer, isLayer bool, tell *teller) error {
	f, err := l.open(ctx, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	limit := l.size
	if limit < 0 {
		limit = s.archiveBytes()
	}
	stream := newDigester(&meter{ctx: ctx, r: f, left: limit, told: func(n int) { tell.add(int64(n)) }})
	unzipped, err := decompress(stream)
	if err != nil {
		return err
	}
	defer unzipped.Close()
	archive := newDigester(&meter{ctx: ctx, r: unzipped, left: s.archiveBytes()})
	if err := t.extract(ctx, archive, isLayer); err != nil {
		return err
	}
	// What follows the end of the archive counts in the digests.
	for _, rest := range []io.Reader{archive, stream} {
		if _, err := io.CopyBuffer(io.Discard, rest, make([]byte, block)); err != nil {
			return readError("layer", err)
		}
	}
	if l.digest != "" {
		if err := sameDigest("it", l.digest, stream.digest()); err != nil {
			return err
		}
	}
	if l.diffID != "" {
		return sameDigest("its archive", l.diffID, archive.digest())
	}
	return nil
}

func blobPath(dir string, l layer) string {
	return filepath.Join(dir, strings.TrimPrefix(l.digest, digestPrefix))
}

// downloadAll brings the layers that are elsewhere into a directory.
func (s *Store) downloadAll(ctx context.Context, layers []layer, dir string, tell *teller) error {
	wanted := make(map[string]layer) // the same layer may be in an image twice
	total := int64(0)
	for _, l := range layers {
		if _, ok := wanted[l.digest]; l.remote && !ok {
			wanted[l.digest] = l
			total += l.size
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	if total > s.archiveBytes() {
		return fmt.Errorf("%w: %d bytes to download", ErrTooLarge, total)
	}
	tell.stage(StageDownload, total)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(downloads)
	for _, l := range wanted {
		g.Go(func() error {
			if err := download(ctx, l, blobPath(dir, l), tell); err != nil {
				return fmt.Errorf("download layer %.20s: %w", l.digest, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// download brings a layer, in several tries if it must.
func download(ctx context.Context, l layer, path string, tell *teller) error {
	for try := 0; ; try++ {
		n, err := downloadOnce(ctx, l, path, try, tell)
		if err == nil || ctx.Err() != nil || try+1 == downloadTries {
			return err
		}
		tell.add(-n)
		pause := time.NewTimer(retryPause << try)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

// downloadOnce returns how many bytes have come, also when it fails.
func downloadOnce(ctx context.Context, l layer, path string, try int, tell *teller) (n int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallTime, func() { cancel(errStalled) })
	defer stall.Stop()
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r, err := l.open(ctx, try)
	if err != nil {
		return 0, stalled(ctx, err)
	}
	defer r.Close()
	stream := newDigester(&meter{ctx: ctx, r: r, left: l.size, told: func(got int) {
		stall.Reset(stallTime)
		n += int64(got)
		tell.add(int64(got))
	}})
	if _, err := io.CopyBuffer(struct{ io.Writer }{f}, stream, make([]byte, block)); err != nil {
		return n, stalled(ctx, err)
	}
	return n, sameDigest("it", l.digest, stream.digest())
}

// stalled says so when that is why something was broken off.
func stalled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}
