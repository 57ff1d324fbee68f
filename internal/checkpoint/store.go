package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// Config tunes a Store. The zero value works.
type Config struct {
	// Workers is how many goroutines read, compress or write at the same time.
	// Zero means the number of usable processors.
	Workers int
}

// Store keeps checkpoints in a bucket. Make one with New.
type Store struct {
	b       *blob.Bucket
	workers int
	sync    dirSyncer

	// Encoders, decoders and buffers are large and slow to make.
	encoders, pageEncoders, decoders, buffers sync.Pool
}

// New returns a Store over b. Local buckets should be opened with NoTempDir
// and MetadataDontWrite: a temporary file on another file system cannot be
// renamed, and nothing here uses the metadata.
func New(b *blob.Bucket, c Config) *Store {
	if c.Workers <= 0 {
		c.Workers = runtime.GOMAXPROCS(0)
	}
	s := &Store{b: b, workers: c.Workers}
	s.encoders.New = func() any { return newEncoder(zstd.SpeedDefault) }
	// Pages are mostly digests; clearing the tables of a better level costs more
	// than it saves.
	s.pageEncoders.New = func() any { return newEncoder(zstd.SpeedFastest) }
	s.decoders.New = func() any { return newDecoder() }
	s.buffers.New = func() any { b := make([]byte, 0, maxSegmentRaw); return &b }
	return s
}

const (
	packPrefix = "p/"
	rootPrefix = "r/"
)

func packKey(id PackID) string { return packPrefix + string(id) }

func rootKey(id RootID) string { return rootPrefix + string(id) }

// validRootID reports whether id can be the name of a root.
func validRootID(id RootID) bool {
	raw, err := hex.DecodeString(string(id))
	return err == nil && len(raw) == 32 && hex.EncodeToString(raw) == string(id)
}

// bucketError adds what was done, and the typed error that fits.
func (s *Store) bucketError(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case gcerrors.Code(err) == gcerrors.NotFound:
		return fmt.Errorf("%s: %w: %w", doing, ErrMissing, err)
	case isNoSpace(err):
		return fmt.Errorf("%s: %w: %w", doing, ErrNoSpace, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// readRoot fetches a root and verifies it against its name.
func (s *Store) readRoot(ctx context.Context, ref Ref) (*Root, error) {
	doing := fmt.Sprintf("read root %s", ref.ID)
	if !validRootID(ref.ID) {
		return nil, fmt.Errorf("%s: no root id: %w", doing, ErrMissing)
	}
	raw, err := s.readWhole(ctx, rootKey(ref.ID), maxRootBytes)
	if err != nil {
		return nil, s.bucketError(doing, err)
	}
	if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != string(ref.ID) {
		return nil, corruptf("%s: digest %x", doing, sum)
	}
	r, err := decodeRoot(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return r, nil
}

// readWhole reads an object of at most limit bytes.
func (s *Store) readWhole(ctx context.Context, key string, limit int64) ([]byte, error) {
	r, err := s.b.NewReader(ctx, key, nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = corruptf("object of more than %d bytes", limit)
	}
	return b, err
}

// readRange reads length bytes at off into buf, which it may reallocate.
func (s *Store) readRange(ctx context.Context, key string, off, length int64, buf []byte) ([]byte, error) {
	r, err := s.b.NewRangeReader(ctx, key, off, length, nil)
	if err != nil {
		return nil, s.bucketError("read "+key, err)
	}
	defer r.Close()
	if int64(cap(buf)) < length {
		buf = make([]byte, length)
	}
	buf = buf[:length]
	if _, err := io.ReadFull(r, buf); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return nil, corruptf("read %s: object ends before byte %d", key, off+length)
		}
		return nil, s.bucketError("read "+key, err)
	}
	return buf, nil
}

// putRoot stores the bytes of a root under their digest. A root that is there
// already is the same root.
func (s *Store) putRoot(ctx context.Context, raw []byte) (Ref, error) {
	sum := sha256.Sum256(raw)
	ref := Ref{ID: RootID(hex.EncodeToString(sum[:])), Bytes: int64(len(raw))}
	doing := fmt.Sprintf("store root %s", ref.ID)
	w, err := s.create(ctx, rootKey(ref.ID))
	if err != nil {
		return Ref{}, s.bucketError(doing, err)
	}
	if _, err := w.Write(raw); err != nil {
		w.abort()
		return Ref{}, s.bucketError(doing, err)
	}
	switch err := w.commit(); {
	case err == nil:
		return ref, nil
	case gcerrors.Code(err) != gcerrors.FailedPrecondition:
		return Ref{}, s.bucketError(doing, err)
	}
	old, err := s.readSynced(ctx, rootKey(ref.ID))
	if err != nil {
		return Ref{}, s.bucketError(doing, err)
	}
	if !bytes.Equal(old, raw) {
		return Ref{}, fmt.Errorf("%s: %w", doing, ErrExists)
	}
	return ref, nil
}

// DeletePack removes a pack. It is no error if there is none.
func (s *Store) DeletePack(ctx context.Context, id PackID) error {
	return s.delete(ctx, packKey(id))
}

// DeleteRoot removes a root. It is no error if there is none.
func (s *Store) DeleteRoot(ctx context.Context, id RootID) error {
	return s.delete(ctx, rootKey(id))
}

func (s *Store) delete(ctx context.Context, key string) error {
	if err := s.b.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return s.bucketError("delete "+key, err)
	}
	return nil
}

// Object is an object of the bucket. One of Pack and Root is set.
type Object struct {
	Pack    PackID
	Root    RootID
	Bytes   int64
	ModTime time.Time
}

// Orphans lists packs and roots last written before the cutoff for which known
// reports false. The first error ends the list, and then nothing may be deleted
// because of it: collect all of it before acting. Objects whose names are not
// ours are not listed.
func (s *Store) Orphans(ctx context.Context, before time.Time, known func(Object) (bool, error)) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for _, prefix := range []string{packPrefix, rootPrefix} {
			list := s.b.List(&blob.ListOptions{Prefix: prefix})
			for {
				item, err := list.Next(ctx)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					yield(Object{}, s.bucketError("list "+prefix, err))
					return
				}
				o := Object{Bytes: item.Size, ModTime: item.ModTime}
				name := strings.TrimPrefix(item.Key, prefix)
				switch {
				case prefix == packPrefix && len(name) == packNames.EncodedLen(16):
					o.Pack = PackID(name)
				case prefix == rootPrefix && validRootID(RootID(name)):
					o.Root = RootID(name)
				default:
					continue
				}
				if !item.ModTime.Before(before) {
					continue
				}
				ok, err := known(o)
				if err != nil {
					yield(Object{}, fmt.Errorf("look up %s: %w", item.Key, err))
					return
				}
				if !ok && !yield(o, nil) {
					return
				}
			}
		}
	}
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
