package output

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// The index file. Its slots are a sector each, so that a torn write spoils one.
const (
	slotBytes   = 64
	slotStride  = 512
	recordsAt   = 2 * slotStride
	recordBytes = 16

	slotMagic = 0x31_7475_7074_756f // "output1", the version of the format
)

// streamBits are the two upper bits of a record's first word: a record of
// zeros, as a lost block reads, has no stream.
const (
	streamShift = 62
	stdoutBits  = 1
	stderrBits  = 2
	offsetBits  = 48 // of an offset in a record
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// state is what a slot holds: how much of the files counts, and what the exec
// wrote. The bytes of total that are in neither stream were lost unseen.
type state struct {
	serial   uint64 // grows with every slot written
	kept     int64  // bytes of the data file
	runs     int64  // records
	stdout   int64  // bytes the exec wrote
	stderr   int64
	total    int64 // total offset of the next byte
	cut      Cut
	finished bool
}

// cuts numbers the reasons for the disk.
var cuts = []Cut{"", CutLimit, CutNoSpace, CutLost}

func cutNumber(c Cut) byte {
	for i := range cuts {
		if cuts[i] == c {
			return byte(i)
		}
	}
	return 0
}

// slotAt is where the slot of a serial number is written.
func slotAt(serial uint64) int64 { return int64(serial%2) * slotStride }

// slot encodes a state.
func (s state) slot() []byte {
	b := make([]byte, 0, slotBytes)
	b = binary.LittleEndian.AppendUint64(b, slotMagic)
	b = binary.LittleEndian.AppendUint64(b, s.serial)
	for _, n := range []int64{s.kept, s.runs, s.stdout, s.stderr} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	// What total has beyond both streams is small, and shares its word.
	flags := uint64(cutNumber(s.cut))
	if s.finished {
		flags |= 1 << 7
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(s.total-s.stdout-s.stderr)<<8|flags)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseSlot decodes a slot, and reports whether it is one.
func parseSlot(b []byte) (state, bool) {
	if len(b) < slotBytes || binary.LittleEndian.Uint32(b[slotBytes-4:]) != crc32.Checksum(b[:slotBytes-4], castagnoli) ||
		binary.LittleEndian.Uint64(b) != slotMagic {
		return state{}, false
	}
	word := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
	flags := binary.LittleEndian.Uint64(b[48:])
	s := state{serial: uint64(word(1)), kept: word(2), runs: word(3), stdout: word(4), stderr: word(5), finished: flags&(1<<7) != 0}
	if n := flags & 0x7f; n < uint64(len(cuts)) {
		s.cut = cuts[n]
	} else {
		return state{}, false
	}
	lost := int64(flags >> 8)
	const most = 1 << 56 // of each, so that no sum and no place of a record overflows
	if s.kept < 0 || s.runs < 0 || s.stdout < 0 || s.stderr < 0 || s.stdout > most || s.stderr > most || s.kept > s.stdout+s.stderr || s.kept >= 1<<offsetBits || s.runs > s.kept || s.runs == 0 && s.kept > 0 {
		return state{}, false
	}
	s.total = s.stdout + s.stderr + lost
	return s, true
}

// readState returns the state in force. ok is false when there is none: a file
// whose first slot was never written whole.
func readState(index io.ReaderAt) (s state, ok bool, err error) {
	for i := range uint64(2) {
		b := make([]byte, slotBytes)
		if _, err := index.ReadAt(b, slotAt(i)); err != nil && !errors.Is(err, io.EOF) {
			return state{}, false, err
		}
		if found, valid := parseSlot(b); valid && (!ok || found.serial > s.serial) {
			s, ok = found, true
		}
	}
	return s, ok, nil
}

// run is where consecutive bytes of one stream begin.
type run struct {
	start  int64 // total offset
	stdout int64 // bytes of stdout before it
	stderr bool  // the stream
}

// before returns how many bytes of a stream come before the run: the stream
// offset of its first byte, when it is of this stream.
func (r run) before(stderr bool) int64 {
	if stderr {
		return r.start - r.stdout
	}
	return r.stdout
}

// at returns the bytes of stdout before a total offset that the run holds.
func (r run) at(total int64) int64 {
	if r.stderr {
		return r.stdout
	}
	return r.stdout + total - r.start
}

// appendRecord encodes a run: the stream and its start in one word, what comes
// before and 16 bits of a checksum in the other.
func appendRecord(b []byte, r run) []byte {
	bits := uint64(stdoutBits)
	if r.stderr {
		bits = stderrBits
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(r.start)|bits<<streamShift)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.stdout))
	binary.LittleEndian.PutUint16(b[len(b)-2:], recordSum(b[len(b)-recordBytes:]))
	return b
}

// recordSum is the checksum of a record, which is not of its last two bytes.
func recordSum(b []byte) uint16 {
	return uint16(crc32.Checksum(b[:recordBytes-2], castagnoli))
}

// parseRecord decodes the record at the beginning of b, and reports whether it
// is one.
func parseRecord(b []byte) (run, bool) {
	first, second := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	bits := first >> streamShift
	r := run{start: int64(first &^ (3 << streamShift)), stdout: int64(second &^ (0xffff << offsetBits)), stderr: bits == stderrBits}
	ok := (bits == stdoutBits || bits == stderrBits) && r.stdout <= r.start && uint16(second>>offsetBits) == recordSum(b)
	return r, ok
}

// follows reports whether next can be the run after r: each says how much of
// stdout came before, so a record that was lost or spoilt does not fit.
func (r run) follows(next run) bool {
	return next.start > r.start && next.stderr != r.stderr && next.stdout == r.at(next.start)
}

// recoverState returns how much of both files counts after a crash, and the last
// run of it. A run ends where the next begins: when that one is missing or spoilt,
// the end of the last run that is there is unknown, and none of it counts. A data
// file that is too short ends a run early, and those after it never began.
func recoverState(index io.ReaderAt, s state, dataBytes int64) (state, run, error) {
	var last, before run
	kept, runs, whole := min(s.kept, dataBytes), int64(0), true
	records := bufio.NewReaderSize(io.NewSectionReader(index, recordsAt, s.runs*recordBytes), 64<<10)
	var b [recordBytes]byte
	for whole && runs < s.runs {
		_, err := io.ReadFull(records, b[:])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return state{}, run{}, err
		}
		r, ok := parseRecord(b[:])
		first := run{stderr: r.stderr}
		whole = ok && err == nil && r.start < s.kept && (runs == 0 && r == first || runs > 0 && last.follows(r))
		if whole && r.start >= kept {
			break
		}
		if whole {
			before, last = last, r
			runs++
		}
	}
	if !whole {
		kept, last, runs = min(kept, last.start), before, max(runs-1, 0)
	}
	if kept == s.kept && runs == s.runs {
		return s, last, nil
	}
	stdout := last.at(kept)
	return state{serial: s.serial, kept: kept, runs: runs, stdout: stdout, stderr: kept - stdout, total: kept}, last, nil
}
