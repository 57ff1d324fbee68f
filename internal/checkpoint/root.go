package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// rootMagic opens every root object; the last byte is the format version.
var rootMagic = []byte("SJROOT\x00\x02")

// Root is the decoded root of a checkpoint.
type Root struct {
	ID        RootID
	Parent    RootID // "" = none
	Agent     json.RawMessage
	Trees     map[Tree]TreeInfo
	Packs     []PackRef
	nextPack  uint32
	packs     map[uint32]packEntry // by ordinal
	manifests map[Tree]*manifest
}

// packEntry describes a pack well enough to verify any byte of it: digest
// covers the footer, which lists a digest for each region.
type packEntry struct {
	id     packID
	bytes  int64
	footer int64 // length of the footer, which ends at the trailer
	digest Digest
}

// pageLoc is where a page lies. hash is of the page before compression.
type pageLoc struct {
	hash   Digest
	pack   uint32
	off    int64
	stored int64
	raw    int64
}

// listLoc is a page of chunks with the packs its chunks lie in.
type listLoc struct {
	pageLoc
	packs []uint32
}

// manifest is the page table of one tree.
type manifest struct {
	pages []pageLoc
	first []string // path of the first entry of each page
	lists map[Digest]listLoc
}

var treeOrder = []Tree{Workspace, Conversation}

func (r *Root) encode() []byte {
	b := slices.Clone(rootMagic)
	parent, _ := hex.DecodeString(string(r.Parent))
	b = appendBytes(b, parent)
	b = appendBytes(b, r.Agent)
	b = binary.AppendUvarint(b, uint64(r.nextPack))
	ords := make([]uint32, 0, len(r.packs))
	for ord := range r.packs {
		ords = append(ords, ord)
	}
	slices.Sort(ords)
	b = binary.AppendUvarint(b, uint64(len(ords)))
	for _, ord := range ords {
		p := r.packs[ord]
		b = binary.AppendUvarint(b, uint64(ord))
		b = append(b, p.id[:]...)
		b = binary.AppendUvarint(b, uint64(p.bytes))
		b = binary.AppendUvarint(b, uint64(p.footer))
		b = append(b, p.digest[:]...)
	}
	for _, t := range treeOrder {
		b = appendTree(b, r.Trees[t], r.manifests[t])
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:4]...) // tells a damaged file from a wrong one without its name
}

func appendTree(b []byte, info TreeInfo, m *manifest) []byte {
	b = appendBool(b, info.Captured)
	b = appendBool(b, info.Exact)
	b = appendString(b, string(info.Reason))
	b = appendString(b, info.Detail)
	if !info.Captured {
		return b
	}
	digest, _ := hex.DecodeString(info.Digest)
	b = append(b, digest...)
	b = binary.AppendUvarint(b, uint64(info.Entries))
	b = binary.AppendUvarint(b, uint64(info.Bytes))
	b = binary.AppendUvarint(b, uint64(info.Data))
	b = binary.AppendUvarint(b, uint64(len(m.pages)))
	last := ""
	for i, p := range m.pages {
		b = appendLoc(b, p)
		shared := commonPrefix(last, m.first[i])
		b = binary.AppendUvarint(b, uint64(shared))
		b = appendString(b, m.first[i][shared:])
		last = m.first[i]
	}
	names := make([]Digest, 0, len(m.lists))
	for name := range m.lists {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b Digest) int { return slices.Compare(a[:], b[:]) })
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		l := m.lists[name]
		b = appendLoc(b, l.pageLoc)
		b = binary.AppendUvarint(b, uint64(len(l.packs)))
		for _, ord := range l.packs {
			b = binary.AppendUvarint(b, uint64(ord))
		}
	}
	return b
}

func appendLoc(b []byte, p pageLoc) []byte {
	b = append(b, p.hash[:]...)
	b = binary.AppendUvarint(b, uint64(p.pack))
	b = binary.AppendUvarint(b, uint64(p.off))
	b = binary.AppendUvarint(b, uint64(p.stored))
	return binary.AppendUvarint(b, uint64(p.raw))
}

// decodeRoot decodes and checks a root object. The caller has compared its
// digest with the name it asked for; nothing here relies on that.
func decodeRoot(raw []byte) (*Root, error) {
	if len(raw) < len(rootMagic)+4 {
		return nil, corruptf("decode root: %d bytes", len(raw))
	}
	sum := sha256.Sum256(raw[:len(raw)-4])
	if string(raw[len(raw)-4:]) != string(sum[:4]) {
		return nil, corruptf("decode root: checksum")
	}
	whole := sha256.Sum256(raw)
	d := &decoder{b: raw[:len(raw)-4], what: "root"}
	if magic := d.raw("magic", len(rootMagic)); string(magic) != string(rootMagic) {
		return nil, corruptf("decode root: no root of a known version")
	}
	r := &Root{
		ID:        RootID(hex.EncodeToString(whole[:])),
		Trees:     make(map[Tree]TreeInfo),
		packs:     make(map[uint32]packEntry),
		manifests: make(map[Tree]*manifest),
	}
	parent := d.bytes("parent", 32)
	if len(parent) != 0 && len(parent) != 32 {
		d.fail("parent")
	}
	r.Parent = RootID(hex.EncodeToString(parent))
	r.Agent = slices.Clone(d.bytes("agent", maxAgentBytes))
	if len(r.Agent) > 0 && !json.Valid(r.Agent) {
		d.fail("agent")
	}
	r.nextPack = uint32(d.uvarint("next pack", maxPacks))
	r.readPacks(d)
	for _, t := range treeOrder {
		r.readTree(d, t)
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Root) readPacks(d *decoder) {
	n := d.count("pack count", maxPacks, 50)
	for range n {
		ord := uint32(d.uvarint("pack ordinal", uint64(r.nextPack)))
		var p packEntry
		copy(p.id[:], d.raw("pack id", len(p.id)))
		p.bytes = int64(d.uvarint("pack length", maxPackBytes))
		p.footer = int64(d.uvarint("footer length", maxFooterBytes))
		p.digest = d.digest("pack digest")
		if p.footer+packOverhead > p.bytes || ord >= r.nextPack {
			d.fail("pack")
		}
		if _, twice := r.packs[ord]; twice {
			d.fail("pack ordinal")
		}
		if d.err != nil {
			return
		}
		r.packs[ord] = p
		r.Packs = append(r.Packs, PackRef{ID: p.id.name(), Bytes: p.bytes})
	}
}

func (r *Root) readTree(d *decoder, t Tree) {
	info := TreeInfo{Captured: d.bool("captured"), Exact: d.bool("exact")}
	info.Reason = Reason(d.bytes("reason", 64))
	info.Detail = string(d.bytes("detail", 4*maxPath+256))
	if !info.Captured {
		r.Trees[t] = info
		return
	}
	info.Digest = d.digest("tree digest").String()
	info.Entries = int64(d.uvarint("entries", 1<<40))
	info.Bytes = int64(d.uvarint("bytes", 1<<63-1))
	info.Data = int64(d.uvarint("data bytes", 1<<63-1))
	m := &manifest{lists: make(map[Digest]listLoc)}
	n := d.count("page count", maxPages, 38)
	last := ""
	for i := 0; i < n && d.err == nil; i++ {
		m.pages = append(m.pages, r.readLoc(d))
		shared := int(d.uvarint("shared prefix", uint64(len(last))))
		path := last[:shared] + string(d.bytes("path", maxPath))
		if len(path) > maxPath || i > 0 && comparePaths(last, path) >= 0 {
			d.fail("first path")
		}
		m.first = append(m.first, path)
		last = path
	}
	n = d.count("list count", maxPages, 37)
	for i := 0; i < n && d.err == nil; i++ {
		l := listLoc{pageLoc: r.readLoc(d)}
		packs := d.count("packs of list", maxPacks, 1)
		for range packs {
			l.packs = append(l.packs, uint32(d.uvarint("pack of list", maxPacks)))
		}
		m.lists[l.hash] = l
	}
	r.Trees[t], r.manifests[t] = info, m
}

func (r *Root) readLoc(d *decoder) (p pageLoc) {
	p.hash = d.digest("page name")
	p.pack = uint32(d.uvarint("page pack", maxPacks))
	p.off = int64(d.uvarint("page offset", maxPackBytes))
	p.stored = int64(d.uvarint("page length", maxPageRaw+1024))
	p.raw = int64(d.uvarint("page size", maxPageRaw))
	pack, ok := r.packs[p.pack]
	if !ok || p.off+p.stored > pack.bytes {
		d.fail("page place")
	}
	return p
}

// treeDigest hashes the digests of page bodies in order.
type treeDigest struct{ b []byte }

func (t *treeDigest) add(logical Digest) { t.b = append(t.b, logical[:]...) }

func (t *treeDigest) sum(tree Tree) string {
	h := sha256.New()
	fmt.Fprintf(h, "sojourn %s tree 2\n%d\n", tree, len(t.b)/32)
	h.Write(t.b)
	return hex.EncodeToString(h.Sum(nil))
}
