package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"gocloud.dev/blob"
	"golang.org/x/sys/unix"
)

// Drivers for remote buckets acknowledge a write when it is durable. The one
// for local directories renames a temporary file and never syncs, so objects
// are synced here: it hands its file to BeforeWrite, a duplicate of that
// descriptor outlives the driver's Close, and the kernel knows by which name it
// goes after the rename. Order: data, then the rename, then the directory.

// objectWriter writes one new object. Exactly one of commit and abort is due.
type objectWriter struct {
	s      *Store
	w      *blob.Writer
	ctx    context.Context
	cancel context.CancelFunc
	key    string
	fd     int // duplicate of the local file, -1 if there is none
	n      int64
}

// create begins an object that must not exist yet.
func (s *Store) create(ctx context.Context, key string) (*objectWriter, error) {
	o := &objectWriter{s: s, key: key, fd: -1, ctx: ctx}
	wctx, cancel := context.WithCancel(ctx)
	o.cancel = cancel
	var err error
	o.w, err = s.b.NewWriter(wctx, key, &blob.WriterOptions{
		DisableContentTypeDetection: true,
		IfNotExist:                  true,
		BeforeWrite:                 o.duplicate,
	})
	if err != nil {
		cancel()
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *objectWriter) duplicate(as func(any) bool) error {
	var f *os.File
	if !as(&f) {
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var dupErr error
	err = conn.Control(func(fd uintptr) {
		o.fd, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	return errors.Join(err, dupErr)
}

func (o *objectWriter) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	o.n += int64(n)
	return n, err
}

func (o *objectWriter) close() {
	if o.fd >= 0 {
		unix.Close(o.fd)
		o.fd = -1
	}
}

// abort gives up the object; the driver drops what was written.
func (o *objectWriter) abort() {
	o.cancel()
	o.w.Close() // its error is the cancellation
	o.close()
}

// commit finishes the object, makes it durable and checks its length.
func (o *objectWriter) commit() error {
	defer o.cancel()
	defer o.close()
	if o.fd >= 0 {
		if err := fsync(o.fd); err != nil {
			o.abort()
			return fmt.Errorf("sync %s: %w", o.key, err)
		}
	}
	if err := o.w.Close(); err != nil {
		return err
	}
	if o.fd >= 0 {
		if err := o.s.sync.entry(o.s.b, o.fd); err != nil {
			return fmt.Errorf("sync %s: %w", o.key, err)
		}
	}
	attrs, err := o.s.b.Attributes(o.ctx, o.key)
	if err != nil {
		return err
	}
	if attrs.Size != o.n {
		return corruptf("store %s: %d of %d bytes are there", o.key, attrs.Size, o.n)
	}
	return nil
}

// readSynced reads an object and makes sure that it is durable even if the
// process that wrote it did not live to sync it.
func (s *Store) readSynced(ctx context.Context, key string) ([]byte, error) {
	r, err := s.b.NewReader(ctx, key, nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var local io.Reader
	if r.As(&local) {
		if f, ok := local.(*os.File); ok {
			if err := f.Sync(); err != nil {
				return nil, err
			}
			if err := s.sync.entry(s.b, int(f.Fd())); err != nil {
				return nil, err
			}
		}
	}
	return io.ReadAll(io.LimitReader(r, maxRootBytes))
}

// dirSyncer makes directory entries of a local bucket durable.
type dirSyncer struct {
	mu   sync.Mutex
	done map[string]bool // directories whose own entries are durable
}

// entry syncs the directory that holds the open file, the sidecar file if the
// driver wrote one, and once per directory the ones above it that the driver
// may have made.
func (s *dirSyncer) entry(b *blob.Bucket, fd int) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	if !filepath.IsAbs(path) || strings.HasSuffix(path, " (deleted)") {
		return fmt.Errorf("the file is now called %q", path)
	}
	if err := syncPath(path + ".attrs"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	if err := syncPath(dir); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var top os.FileInfo
	if s.done[dir] || !b.As(&top) {
		return nil
	}
	for d, n := dir, 0; n < 16; n++ {
		if fi, err := os.Stat(d); err != nil || os.SameFile(fi, top) || d == "/" {
			break
		}
		d = filepath.Dir(d)
		if err := syncPath(d); err != nil {
			return err
		}
	}
	if s.done == nil {
		s.done = make(map[string]bool)
	}
	s.done[dir] = true
	return nil
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func fsync(fd int) error {
	return retry(func() error { return unix.Fsync(fd) })
}

// retry calls f again while a signal interrupts it.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
