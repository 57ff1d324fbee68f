package output

// Index returns an index file with one slot.
func Index(s Sizes, runs int64, finished bool, records []byte) []byte {
	st := state{
		serial: 2, kept: s.KeptTotal, runs: runs, stdout: s.Stdout, stderr: s.Stderr, total: s.Stdout + s.Stderr,
		cut: s.Cut, finished: finished,
	}
	return append(append(st.slot(), make([]byte, recordsAt-slotBytes)...), records...)
}

// Record appends the record of a run that begins at a total offset, after some
// bytes of stdout.
func Record(b []byte, start, stdout int64, stderr bool) []byte {
	return appendRecord(b, run{start, stdout, stderr})
}
