package checkpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A pack is
//
//	magic, regions, footer, length of footer (4 bytes, big endian), magic
//
// and the regions fill the space without gaps. The footer lists every region
// with the digest of its stored bytes, so nothing is decompressed unverified.

var (
	packMagic = []byte("SJPACK\x00\x02")
	packTail  = []byte("SJPACKED")
)

// packOverhead is what a pack holds besides regions and footer.
const packOverhead = 8 + 4 + 8

// packTarget is how many bytes before compression a pack takes before the next
// one begins.
const packTarget = 64 << 20

// packID is 48 bits of time and 80 random bits: unique, and listed by age.
type packID [16]byte

var packNames = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

func newPackID() (id packID) {
	rand.Read(id[:])
	ms := uint64(time.Now().UnixMilli())
	id[0], id[1] = byte(ms>>40), byte(ms>>32)
	binary.BigEndian.PutUint32(id[2:], uint32(ms))
	return id
}

func (id packID) name() PackID { return PackID(packNames.EncodeToString(id[:])) }

// region methods.
const (
	storedRaw  = 0
	storedZstd = 1
)

// region is one run of stored bytes in a pack.
type region struct {
	segment int // -1 for a page
	off     int64
	stored  int64
	raw     int64
	method  byte
	hash    Digest // of the stored bytes
}

func encodeFooter(regions []region) []byte {
	b := binary.AppendUvarint(nil, uint64(len(regions)))
	for _, r := range regions {
		b = binary.AppendUvarint(b, uint64(r.segment+1))
		b = binary.AppendUvarint(b, uint64(r.stored))
		b = binary.AppendUvarint(b, uint64(r.raw))
		b = append(b, r.method)
		b = append(b, r.hash[:]...)
	}
	return b
}

// footer is a decoded footer: all regions in order, and segments by number.
type footer struct {
	regions  []region
	segments []int32 // index into regions, -1 = no such segment
}

// decodeFooter decodes the footer of a pack of the given length and checks
// that the regions tile it.
func decodeFooter(raw []byte, packBytes int64) (*footer, error) {
	d := &decoder{b: raw, what: "pack footer"}
	n := d.count("region count", 2*maxSegments, 36)
	f := &footer{regions: make([]region, 0, n)}
	off := int64(len(packMagic))
	for i := 0; i < n && d.err == nil; i++ {
		r := region{segment: int(d.uvarint("segment", maxSegments)) - 1, off: off}
		r.stored = int64(d.uvarint("stored length", maxPageRaw+1024))
		limit := uint64(maxSegmentRaw)
		if r.segment < 0 {
			limit = maxPageRaw
		}
		r.raw = int64(d.uvarint("raw length", limit))
		r.method = d.byte("method")
		r.hash = d.digest("digest")
		if r.method > storedZstd || r.method == storedRaw && r.raw != r.stored {
			d.fail("method")
		}
		off += r.stored
		f.regions = append(f.regions, r)
		f.number(d, r.segment, i)
	}
	if off+int64(len(raw))+packOverhead-int64(len(packMagic)) != packBytes {
		d.fail("length of pack")
	}
	return f, d.end()
}

func (f *footer) number(d *decoder, segment, index int) {
	if segment < 0 || d.err != nil {
		return
	}
	for len(f.segments) <= segment {
		f.segments = append(f.segments, -1)
	}
	if f.segments[segment] >= 0 {
		d.fail("segment twice")
		return
	}
	f.segments[segment] = int32(index)
}

func (f *footer) segment(n uint32) (region, bool) {
	if int64(n) >= int64(len(f.segments)) || f.segments[n] < 0 {
		return region{}, false
	}
	return f.regions[f.segments[n]], true
}

// newEncoder returns an encoder for one goroutine.
func newEncoder(level zstd.EncoderLevel) *zstd.Encoder {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithEncoderLevel(level), zstd.WithWindowSize(maxSegmentRaw))
	if err != nil {
		panic("checkpoint: options of the zstd encoder: " + err.Error()) // constants of ours
	}
	return enc
}

// newDecoder returns a decoder for one goroutine that refuses frames which
// want more memory than the format has use for.
func newDecoder() *zstd.Decoder {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxPageRaw), zstd.WithDecoderMaxWindow(maxPageRaw), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("checkpoint: options of the zstd decoder: " + err.Error())
	}
	return dec
}

// compress appends raw to dst, compressed if that saves more than 3 %.
func compress(enc *zstd.Encoder, dst, raw []byte) ([]byte, byte) {
	out := enc.EncodeAll(raw, dst)
	if len(out)-len(dst) > len(raw)*97/100 {
		return append(out[:len(dst)], raw...), storedRaw
	}
	return out, storedZstd
}

// decompress returns exactly want bytes or an error. It appends to dst, which
// it may reallocate.
func decompress(dec *zstd.Decoder, dst, stored []byte, method byte, want int64) ([]byte, error) {
	if method == storedRaw {
		if int64(len(stored)) != want {
			return nil, corruptf("stored block of %d bytes, not %d", len(stored), want)
		}
		return append(dst, stored...), nil
	}
	if int64(cap(dst)-len(dst)) < want {
		dst = append(make([]byte, 0, int64(len(dst))+want), dst...)
	}
	n := len(dst)
	out, err := dec.DecodeAll(stored, dst[:n:int64(n)+want])
	if err != nil {
		return nil, corruptf("decompress: %v", err)
	}
	if int64(len(out)-n) != want {
		return nil, corruptf("block decompresses to %d bytes, not %d", len(out)-n, want)
	}
	return out, nil
}

// checkHash returns ErrCorrupt unless b has the digest.
func checkHash(b []byte, want Digest, what string) error {
	if got := Digest(sha256.Sum256(b)); got != want {
		return fmt.Errorf("%s: digest %s, want %s: %w", what, got, want, ErrCorrupt)
	}
	return nil
}
