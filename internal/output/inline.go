package output

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// inlineVersion is the first byte of a blob.
const inlineVersion = 1

// encodeInline returns a view without files as a blob: the version, the cut, the
// sizes and the lengths of the runs as varints, the bytes.
func encodeInline(v view) []byte {
	b := make([]byte, 0, len(v.tail)+2*len(v.tailRuns)+16)
	b = append(b, inlineVersion, cutNumber(v.cut))
	b = binary.AppendUvarint(b, uint64(v.stdout))
	b = binary.AppendUvarint(b, uint64(v.stderr))
	b = binary.AppendUvarint(b, uint64(v.total-v.stdout-v.stderr))
	b = binary.AppendUvarint(b, uint64(len(v.tailRuns)))
	for i, r := range v.tailRuns {
		end := v.kept
		if i+1 < len(v.tailRuns) {
			end = v.tailRuns[i+1].start
		}
		length := uint64(end-r.start) << 1
		if r.stderr {
			length |= 1
		}
		b = binary.AppendUvarint(b, length)
	}
	return append(b, v.tail...)
}

// parseInline decodes a blob. The view shares its memory.
func parseInline(blob []byte) (view, error) {
	in := varints{b: blob}
	if version := in.byte(); version != inlineVersion {
		return view{}, fmt.Errorf("inline output of version %d: %w", version, ErrCorrupt)
	}
	v := view{state: state{finished: true}}
	cut := in.byte()
	v.stdout, v.stderr = in.next(), in.next()
	v.total = v.stdout + v.stderr + in.next()
	runs := in.next()
	if in.bad || int(cut) >= len(cuts) || runs > int64(len(in.b)) {
		return view{}, fmt.Errorf("inline output: header: %w", ErrCorrupt)
	}
	v.cut, v.tailRuns = cuts[cut], make([]run, 0, runs)
	for range runs {
		length := in.next()
		r := run{start: v.kept, stdout: v.keptStdout, stderr: length&1 != 0}
		length >>= 1
		if in.bad || length == 0 || length > int64(len(in.b)) || len(v.tailRuns) > 0 && v.tailRuns[len(v.tailRuns)-1].stderr == r.stderr {
			return view{}, fmt.Errorf("inline output: runs: %w", ErrCorrupt)
		}
		v.tailRuns = append(v.tailRuns, r)
		v.kept += length
		v.keptStdout = r.at(v.kept)
	}
	if v.kept != int64(len(in.b)) || v.keptStdout > v.stdout || v.kept-v.keptStdout > v.stderr {
		return view{}, fmt.Errorf("inline output: sizes: %w", ErrCorrupt)
	}
	v.tail = slices.Clip(in.b)
	return v, nil
}

// varints takes numbers off a blob. After the first bad one all are zero.
type varints struct {
	b   []byte
	bad bool
}

func (v *varints) byte() byte {
	if len(v.b) == 0 {
		v.bad = true
		return 0
	}
	c := v.b[0]
	v.b = v.b[1:]
	return c
}

// next returns a number below 2^60, so that a few of them can be added.
func (v *varints) next() int64 {
	n, width := binary.Uvarint(v.b)
	if v.bad || width <= 0 || n >= 1<<60 {
		v.bad = true
		return 0
	}
	v.b = v.b[width:]
	return int64(n)
}
