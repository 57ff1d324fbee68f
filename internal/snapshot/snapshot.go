package snapshot

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// prefix is where the objects are in the bucket.
const prefix = "processes/"

// suffix tells what an object is made of: tar, compressed, encrypted.
const suffix = ".tar.zst.age"

// keyRecord is what the global header that an object begins with calls the object's
// key. Whoever can write to the bucket could otherwise give one session the processes of
// another, or older ones of its own.
const keyRecord = "SOJOURN.key"

// ErrDamaged reports an object whose bytes are not those that were stored, or that
// another key encrypted.
var ErrDamaged = errors.New("saved processes are damaged")

// Store keeps objects in a bucket.
type Store struct {
	bucket   *blob.Bucket
	identity *age.X25519Identity
}

// New returns the store of a bucket, whose objects only identity can read.
func New(bucket *blob.Bucket, identity *age.X25519Identity) *Store {
	return &Store{bucket: bucket, identity: identity}
}

// Save stores the files of dir, which must all be regular, and returns the object's
// key and size.
func (s *Store) Save(ctx context.Context, dir string) (key string, stored int64, err error) {
	var id [8]byte
	rand.Read(id[:]) // never fails
	key = prefix + time.Now().UTC().Format("20060102T150405.000000") + "-" + hex.EncodeToString(id[:]) + suffix
	ctx, abort := context.WithCancel(ctx)
	defer abort() // before the writer is closed nothing becomes visible
	w, err := s.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return "", 0, fmt.Errorf("store processes: %w", err)
	}
	counted := &counter{w: w}
	if err := s.pack(counted, key, dir); err != nil {
		abort()
		return "", 0, errors.Join(fmt.Errorf("store processes: %w", err), ignoreCancelled(w.Close()))
	}
	if err := w.Close(); err != nil {
		return "", 0, fmt.Errorf("store processes: %w", err)
	}
	return key, counted.n, nil
}

func ignoreCancelled(err error) error {
	if errors.Is(err, context.Canceled) || gcerrors.Code(err) == gcerrors.Canceled {
		return nil
	}
	return err
}

// pack writes the key and the files of dir as tar, compressed, encrypted.
func (s *Store) pack(w io.Writer, key, dir string) error {
	sealed, err := age.Encrypt(w, s.identity.Recipient())
	if err != nil {
		return err
	}
	// Memory is mostly zeros and repetitions: the fastest level is worth its time.
	z, err := zstd.NewWriter(sealed, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	head := &tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "key", PAXRecords: map[string]string{keyRecord: key}}
	if err := t.WriteHeader(head); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := add(t, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close(), sealed.Close())
}

func add(t *tar.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", info.Name())
	}
	err = t.WriteHeader(&tar.Header{Name: info.Name(), Mode: 0o600, Size: info.Size(), Typeflag: tar.TypeReg, Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	n, err := io.Copy(t, f)
	if err == nil && n != info.Size() {
		err = fmt.Errorf("%s has changed", info.Name())
	}
	return err
}

// Load puts the files of an object into dir, which must be empty. The error wraps
// ErrDamaged when the object is not what was stored.
func (s *Store) Load(ctx context.Context, key, dir string) error {
	if err := check(key); err != nil {
		return err
	}
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return fmt.Errorf("load processes: %w", err)
	}
	defer r.Close()
	source := &remembering{r: r}
	if err := s.unpack(source, key, dir); err != nil {
		if source.err != nil { // the store failed, not the object
			return fmt.Errorf("load processes: %w", source.err)
		}
		return fmt.Errorf("load processes: %w", err)
	}
	return nil
}

func (s *Store) unpack(r io.Reader, key, dir string) error {
	plain, err := age.Decrypt(r, s.identity)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	z, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	t := tar.NewReader(z)
	h, err := t.Next()
	if err != nil || h.Typeflag != tar.TypeXGlobalHeader || h.PAXRecords[keyRecord] != key {
		return fmt.Errorf("%w: they are not those that were stored as %s", ErrDamaged, key)
	}
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if h.Typeflag != tar.TypeReg || h.Name != path.Base(h.Name) || !filepath.IsLocal(h.Name) {
			return fmt.Errorf("%w: it has an entry %.80q", ErrDamaged, h.Name)
		}
		if err := extract(t, filepath.Join(dir, h.Name)); err != nil {
			return err
		}
	}
	// The end of the stream is authenticated as well: what tar leaves unread must
	// be read, too.
	if _, err := io.Copy(io.Discard, z); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

func extract(r io.Reader, file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		return closeErr
	}
	if err != nil {
		var onDisk *os.PathError
		if errors.As(err, &onDisk) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// Delete removes an object. It is no error when there is none.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := check(key); err != nil {
		return err
	}
	if err := s.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete saved processes: %w", err)
	}
	return nil
}

// Older returns the keys of all objects that were stored before t.
func (s *Store) Older(ctx context.Context, t time.Time) ([]string, error) {
	var keys []string
	list := s.bucket.List(&blob.ListOptions{Prefix: prefix})
	for {
		o, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			return keys, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list saved processes: %w", err)
		}
		if o.ModTime.Before(t) && check(o.Key) == nil {
			keys = append(keys, o.Key)
		}
	}
}

// check refuses a key that this package has not made.
func check(key string) error {
	name, ok := strings.CutPrefix(key, prefix)
	if !ok || !strings.HasSuffix(name, suffix) || strings.ContainsAny(name, "/\\") {
		return fmt.Errorf("saved processes: %.100q is no key of theirs", key)
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// remembering remembers the error of its source, to tell a failing store from a
// damaged object.
type remembering struct {
	r   io.Reader
	err error
}

func (r *remembering) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
