package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow is how far back a zstd stream may refer, and so what reading one costs.
const maxWindow = 128 << 20

// digestPrefix starts the name of a digest: there is only one kind.
const digestPrefix = "sha256:"

// decompress returns what a gzip, a zstd or a plain stream holds. The caller closes it.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, block)
	head, err := b.Peek(6)
	if err != nil && len(head) == 0 {
		return io.NopCloser(b), nil // empty: an archive without entries
	}
	switch compression(head) {
	case "gzip":
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, readError("gzip", err)
		}
		return z, nil
	case "zstd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, readError("zstd", err)
		}
		return z.IOReadCloser(), nil
	case "xz", "bzip2":
		return nil, fmt.Errorf("%w: compressed with %s; gzip and zstd are understood", ErrCorrupt, compression(head))
	}
	return io.NopCloser(b), nil
}

// compression names how a stream that starts like this is compressed; "" is not at all.
func compression(head []byte) string {
	for _, c := range []struct{ name, magic string }{
		{"gzip", "\x1f\x8b"}, {"zstd", "\x28\xb5\x2f\xfd"}, {"xz", "\xfd7zX"}, {"bzip2", "BZh"},
	} {
		if bytes.HasPrefix(head, []byte(c.magic)) {
			return c.name
		}
	}
	return ""
}

// meter reads on behalf of a context: it stops with it, fails after a number of bytes,
// and tells how much has come.
type meter struct {
	ctx  context.Context
	r    io.Reader
	left int64
	told func(n int) // may be nil
}

func (m *meter) Read(p []byte) (int, error) {
	if m.ctx.Err() != nil {
		return 0, context.Cause(m.ctx)
	}
	n, err := m.r.Read(p)
	if m.left -= int64(n); m.left < 0 {
		return n, fmt.Errorf("%w: more bytes than allowed or announced", ErrTooLarge)
	}
	if m.told != nil && n > 0 {
		m.told(n)
	}
	return n, err
}

// digester is a reader that knows the digest of what it has read.
type digester struct {
	r io.Reader
	h hash.Hash
}

func newDigester(r io.Reader) *digester { return &digester{r, sha256.New()} }

func (d *digester) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	d.h.Write(p[:n])
	return n, err
}

func (d *digester) digest() string { return digestPrefix + hex.EncodeToString(d.h.Sum(nil)) }

// digestOf is the digest of bytes.
func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return digestPrefix + hex.EncodeToString(sum[:])
}

// sameDigest reports whether something has the digest that it is said to have. Nothing
// said is no answer.
func sameDigest(what, want, got string) error {
	if want != got {
		return fmt.Errorf("%w: %s has the digest %.80s instead of %.80s", ErrCorrupt, what, got, want)
	}
	return nil
}

// validDigest reports whether s names content by SHA-256.
func validDigest(s string) bool {
	if len(s) != len(digestPrefix)+2*sha256.Size || s[:len(digestPrefix)] != digestPrefix {
		return false
	}
	for _, c := range s[len(digestPrefix):] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
