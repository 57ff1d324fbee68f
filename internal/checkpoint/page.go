package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// place is where a chunk lies: pack ordinal of the root, segment of the pack,
// byte in the decompressed segment.
type place struct{ pack, seg, off uint32 }

// chunk is a run of file bytes, or a hole.
type chunk struct {
	hash Digest // zero for a hole
	len  int64  // bytes of the file
	hole bool
	at   place // unset for a hole
}

// chunkList names a page with chunks of one long file.
type chunkList struct {
	logical  Digest // of the chunks without their places
	physical Digest // of the page: its name
	size     int64  // bytes of the file that its chunks cover
	data     int64  // the same without holes
}

// A page, before compression, is
//
//	count, len(body), body, places
//
// The body is all that makes up the tree; places say where chunks lie. So the
// digest of the body stays when chunks are moved to other packs.

// placer encodes places relative to the one before: most chunks follow the
// previous one in its segment and take one byte.
type placer struct{ next place }

const (
	placeFollows = 0 // right behind the previous chunk
	placeNextSeg = 1 // at the start of the next segment
	placeAt      = 2 // anywhere: pack, segment, offset follow
)

func (p *placer) append(b []byte, c *chunk) []byte {
	switch c.at {
	case p.next:
		b = append(b, placeFollows)
	case place{p.next.pack, p.next.seg + 1, 0}:
		b = append(b, placeNextSeg)
	default:
		b = append(b, placeAt)
		b = binary.AppendUvarint(b, uint64(c.at.pack))
		b = binary.AppendUvarint(b, uint64(c.at.seg))
		b = binary.AppendUvarint(b, uint64(c.at.off))
	}
	p.next = place{c.at.pack, c.at.seg, c.at.off + uint32(c.len)}
	return b
}

func (p *placer) read(d *decoder, c *chunk) {
	switch d.byte("place") {
	case placeFollows:
		c.at = p.next
	case placeNextSeg:
		c.at = place{p.next.pack, p.next.seg + 1, 0}
	case placeAt:
		c.at.pack = uint32(d.uvarint("pack", maxPacks-1))
		c.at.seg = uint32(d.uvarint("segment", maxSegments-1))
		c.at.off = uint32(d.uvarint("offset", maxSegmentRaw))
	default:
		d.fail("place")
	}
	if c.at.seg >= maxSegments || int64(c.at.off)+c.len > maxSegmentRaw {
		d.fail("place")
	}
	p.next = place{c.at.pack, c.at.seg, c.at.off + uint32(c.len)}
}

// appendChunk adds the body part of c: twice the length, plus one for a hole,
// then the digest.
func appendChunk(b []byte, c *chunk) []byte {
	if c.hole {
		return binary.AppendUvarint(b, uint64(c.len)<<1|1)
	}
	b = binary.AppendUvarint(b, uint64(c.len)<<1)
	return append(b, c.hash[:]...)
}

func readChunk(d *decoder) (c chunk) {
	v := d.uvarint("chunk", 1<<63-1)
	c.len, c.hole = int64(v>>1), v&1 == 1
	if c.len == 0 || !c.hole && c.len > maxSegmentRaw {
		d.fail("chunk length")
	}
	if !c.hole {
		c.hash = d.digest("chunk digest")
	}
	return c
}

// pageBuilder collects entries into one page. The zero value is ready.
type pageBuilder struct {
	body, places []byte
	n            int
	first, last  string
	placer       placer
}

const (
	flagTorn  = 1 << 4 // in the type byte of an entry
	flagLists = 1 << 5
)

func (p *pageBuilder) add(e *Entry) {
	if p.n == 0 {
		p.first = e.Path
	}
	shared := commonPrefix(p.last, e.Path)
	if p.n == 0 {
		shared = 0
	}
	p.n++
	p.last = e.Path
	kind := byte(e.Type)
	if e.Torn {
		kind |= flagTorn
	}
	if len(e.lists) > 0 {
		kind |= flagLists
	}
	b := append(p.body, kind)
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendString(b, e.Path[shared:])
	if e.Type == TypeHardlink {
		p.body = appendString(b, e.Target)
		return
	}
	b = binary.AppendUvarint(b, uint64(e.Mode))
	b = binary.AppendUvarint(b, uint64(e.UID))
	b = binary.AppendUvarint(b, uint64(e.GID))
	b = binary.AppendVarint(b, e.MTime.Sec)
	b = binary.AppendUvarint(b, uint64(e.MTime.Nsec))
	b = binary.AppendUvarint(b, uint64(len(e.Xattrs)))
	for _, x := range e.Xattrs {
		b = appendString(b, x.Name)
		b = appendBytes(b, x.Value)
	}
	switch e.Type {
	case TypeSymlink:
		b = appendString(b, e.Target)
	case TypeFile:
		b = binary.AppendUvarint(b, uint64(e.Size))
		b = p.addContent(b, e)
	}
	p.body = b
}

func (p *pageBuilder) addContent(b []byte, e *Entry) []byte {
	if len(e.lists) > 0 {
		b = binary.AppendUvarint(b, uint64(len(e.lists)))
		for i := range e.lists {
			l := &e.lists[i]
			b = binary.AppendUvarint(b, uint64(l.size))
			b = binary.AppendUvarint(b, uint64(l.data))
			b = append(b, l.logical[:]...)
			p.places = append(p.places, l.physical[:]...)
		}
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(e.chunks)))
	for i := range e.chunks {
		c := &e.chunks[i]
		b = appendChunk(b, c)
		if !c.hole {
			p.places = p.placer.append(p.places, c)
		}
	}
	return b
}

// full reports whether the page must end here whatever comes next.
func (p *pageBuilder) full() bool {
	return p.n >= maxPageEntries || len(p.body) >= 256<<10
}

// finish returns the page and the digest of its body, and empties the builder.
func (p *pageBuilder) finish() (raw []byte, logical Digest) {
	raw = binary.AppendUvarint(nil, uint64(p.n))
	raw = appendBytes(raw, p.body)
	raw = append(raw, p.places...)
	logical = sha256.Sum256(p.body)
	*p = pageBuilder{body: p.body[:0], places: p.places[:0]}
	return raw, logical
}

// cutsPage reports whether a page ends before the entry of this path. It
// depends on the path alone, so cuts stay where they are when others change.
func cutsPage(path string) bool {
	h := uint64(14695981039346656037)
	for i := range len(path) {
		h = (h ^ uint64(path[i])) * 1099511628211
	}
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return h>>57 == 0 // one in 128
}

// decodePage returns the entries of a page in order, checked against each
// other, and the digest of its body.
func decodePage(raw []byte) ([]Entry, Digest, error) {
	d := &decoder{b: raw, what: "page"}
	n := d.count("entry count", maxPageEntries, 1)
	body := &decoder{b: d.bytes("body", maxPageRaw), what: "page body"}
	if d.err != nil {
		return nil, Digest{}, d.err
	}
	logical := Digest(sha256.Sum256(body.b))
	entries := make([]Entry, n)
	var pl placer
	for i := range entries {
		last := ""
		if i > 0 {
			last = entries[i-1].Path
		}
		readEntry(body, d, &pl, &entries[i], last)
		if i > 0 && body.err == nil && comparePaths(last, entries[i].Path) >= 0 {
			body.fail("order of entries")
		}
	}
	if err := body.end(); err != nil {
		return nil, Digest{}, err
	}
	if err := d.end(); err != nil {
		return nil, Digest{}, err
	}
	return entries, logical, nil
}

func readEntry(b, places *decoder, pl *placer, e *Entry, last string) {
	kind := b.byte("entry type")
	e.Type, e.Torn = EntryType(kind&0xf), kind&flagTorn != 0
	shared := int(b.uvarint("shared prefix", uint64(len(last))))
	e.Path = last[:shared] + string(b.bytes("path", maxPath))
	if len(e.Path) > maxPath {
		b.fail("path")
	}
	if e.Type == TypeHardlink {
		e.Target = string(b.bytes("link path", maxPath))
		return
	}
	e.Mode = uint32(b.uvarint("mode", 0o7777))
	e.UID = uint32(b.uvarint("uid", 1<<32-1))
	e.GID = uint32(b.uvarint("gid", 1<<32-1))
	e.MTime.Sec = b.varint("mtime")
	e.MTime.Nsec = uint32(b.uvarint("mtime", 999_999_999))
	if n := b.count("attribute count", maxXattrs, 2); n > 0 {
		e.Xattrs = make([]Xattr, n)
	}
	total := 0
	for i := range e.Xattrs {
		x := &e.Xattrs[i]
		x.Name = string(b.bytes("attribute name", maxName))
		x.Value = slices.Clone(b.bytes("attribute", maxXattrValue))
		if total += len(x.Value); total > maxXattrBytes || strings.IndexByte(x.Name, 0) >= 0 {
			b.fail("attribute")
		}
	}
	switch e.Type {
	case TypeDir:
	case TypeSymlink:
		e.Target = string(b.bytes("link target", maxSymlink))
		if e.Target == "" || strings.IndexByte(e.Target, 0) >= 0 {
			b.fail("link target")
		}
	case TypeFile:
		e.Size = int64(b.uvarint("size", 1<<63-1))
		readContent(b, places, pl, e, kind&flagLists != 0)
	default:
		b.fail("entry type")
	}
}

func readContent(b, places *decoder, pl *placer, e *Entry, lists bool) {
	var sum int64
	if lists {
		e.lists = make([]chunkList, b.count("list count", maxChunkLists, 34))
		for i := range e.lists {
			l := &e.lists[i]
			l.size = int64(b.uvarint("list size", 1<<63-1))
			l.data = int64(b.uvarint("list data", uint64(l.size)))
			l.logical = b.digest("list digest")
			l.physical = places.digest("list name")
			sum = addSize(b, sum, l.size)
		}
	} else {
		if n := b.count("chunk count", maxInlineChunks, 1); n > 0 {
			e.chunks = make([]chunk, n)
		}
		for i := range e.chunks {
			e.chunks[i] = readChunk(b)
			if !e.chunks[i].hole {
				pl.read(places, &e.chunks[i])
			}
			sum = addSize(b, sum, e.chunks[i].len)
		}
	}
	if sum != e.Size {
		b.fail("sum of chunks")
	}
}

func addSize(d *decoder, a, b int64) int64 {
	if b < 0 || a > 1<<63-1-b {
		d.fail("size")
		return a
	}
	return a + b
}

// encodeList returns a page of chunks of one long file.
func encodeList(chunks []chunk) (raw []byte, l chunkList) {
	var body, places []byte
	var pl placer
	for i := range chunks {
		c := &chunks[i]
		l.size += c.len
		body = appendChunk(body, c)
		if !c.hole {
			l.data += c.len
			places = pl.append(places, c)
		}
	}
	raw = binary.AppendUvarint(nil, uint64(len(chunks)))
	raw = appendBytes(raw, body)
	raw = append(raw, places...)
	l.logical, l.physical = sha256.Sum256(body), sha256.Sum256(raw)
	return raw, l
}

// decodeList is the reverse of encodeList.
func decodeList(raw []byte) ([]chunk, chunkList, error) {
	d := &decoder{b: raw, what: "chunk list"}
	n := d.count("chunk count", maxListChunks, 1)
	body := &decoder{b: d.bytes("body", maxPageRaw), what: "chunk list body"}
	l := chunkList{logical: sha256.Sum256(body.b), physical: sha256.Sum256(raw)}
	chunks := make([]chunk, n)
	var pl placer
	for i := range chunks {
		chunks[i] = readChunk(body)
		if !chunks[i].hole {
			l.data += chunks[i].len
			pl.read(d, &chunks[i])
		}
		l.size = addSize(body, l.size, chunks[i].len)
	}
	if err := body.end(); err != nil {
		return nil, l, err
	}
	return chunks, l, d.end()
}

// splitList cuts the chunks of a long file into lists where the chunks' own
// digests say so, so that an edit rewrites one list.
func splitList(chunks []chunk) [][]chunk {
	var out [][]chunk
	start := 0
	for i := range chunks {
		n := i + 1 - start
		if n >= 16 && !chunks[i].hole && chunks[i].hash[0]&0x3f == 0 || n == maxListChunks {
			out, start = append(out, chunks[start:i+1]), i+1
		}
	}
	if start < len(chunks) {
		out = append(out, chunks[start:])
	}
	return out
}

func commonPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// comparePaths orders paths as a depth-first walk with sorted names meets
// them: component by component, a directory before what it holds.
func comparePaths(a, b string) int {
	i := commonPrefix(a, b)
	switch {
	case i == len(a) && i == len(b):
		return 0
	case i == len(a):
		return -1
	case i == len(b):
		return 1
	case a[i] == '/' || b[i] != '/' && a[i] < b[i]:
		return -1
	default:
		return 1
	}
}

// splitPath returns the directory of a path and its last component.
func splitPath(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// validName reports whether a component can be created as it is.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxName &&
		strings.IndexByte(name, 0) < 0 && strings.IndexByte(name, '/') < 0
}
