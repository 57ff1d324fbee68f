package checkpoint

import "encoding/binary"

// The bounds of the format. A writer refuses to pass them and a reader refuses
// what does, so that hostile bytes cannot ask for memory.
const (
	maxRootBytes    = 64 << 20
	maxAgentBytes   = 1 << 20
	maxPacks        = 1 << 16
	maxPages        = 1 << 20
	maxPageRaw      = 4 << 20
	maxFooterBytes  = 64 << 20
	maxPackBytes    = 1 << 32
	maxSegments     = 1 << 17
	maxSegmentRaw   = 1 << 20
	maxPath         = 32 << 10
	maxDepth        = 4096
	maxName         = 255
	maxSymlink      = 4096
	maxXattrs       = 1024
	maxXattrValue   = 64 << 10
	maxXattrBytes   = 1 << 20 // all of one entry
	maxInlineChunks = 64
	maxPageEntries  = 1024
	maxListChunks   = 512
	maxChunkLists   = 1 << 16 // of one file
)

func appendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendString(b []byte, v string) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// decoder reads foreign bytes. The first problem sticks in err and makes all
// later reads return zero values, so callers check once, before they act.
type decoder struct {
	b    []byte
	what string // for errors
	err  error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = corruptf("decode %s: bad %s", d.what, what)
		d.b = nil
	}
}

func (d *decoder) uvarint(what string, limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.fail(what)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint(what string) int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail(what)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads a number of things that take at least size bytes each.
func (d *decoder) count(what string, limit, size int) int {
	n := int(d.uvarint(what, uint64(limit)))
	if n > len(d.b)/size {
		d.fail(what)
		return 0
	}
	return n
}

func (d *decoder) raw(what string, n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail(what)
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(what string, limit int) []byte {
	return d.raw(what, int(d.uvarint(what, uint64(limit))))
}

func (d *decoder) byte(what string) byte {
	if v := d.raw(what, 1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) bool(what string) bool {
	v := d.byte(what)
	if v > 1 {
		d.fail(what)
	}
	return v == 1
}

func (d *decoder) digest(what string) (v Digest) {
	copy(v[:], d.raw(what, len(v)))
	return v
}

// end reports the first problem, or that bytes are left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("end")
	}
	return d.err
}
