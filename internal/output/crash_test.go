package output_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// small is an output of a few dozen bytes with runs of both streams, some of
// them of several chunks.
func small() []chunk {
	var all []chunk
	for i, c := range []struct {
		stderr bool
		n      int
	}{{false, 3}, {false, 4}, {true, 1}, {true, 2}, {false, 1}, {true, 9}, {false, 5}, {false, 6}, {true, 1}, {false, 1}} {
		data := make([]byte, c.n)
		for j := range data {
			data[j] = byte('A' + i)
		}
		all = append(all, chunk{c.stderr, data})
	}
	return all
}

// disk is the content of the two files; nil is a file that is not there.
type disk struct{ data, index []byte }

func readDisk(t *testing.T, dir string) disk {
	t.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, "session", name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return b
	}
	return disk{read("exec.data"), read("exec.index")}
}

func (d disk) write(t *testing.T, dir string) {
	t.Helper()
	for name, b := range map[string][]byte{"exec.data": d.data, "exec.index": d.index} {
		path := filepath.Join(dir, "session", name)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if b == nil {
			continue
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// record writes an output and returns what the disk held after every append, and
// what was durable then.
func record(t *testing.T, c output.Config, all []chunk) (disks []disk, durable []int64) {
	t.Helper()
	s, dir := open(t, c)
	w := writer(t, s, "exec")
	step := func() {
		disks, durable = append(disks, readDisk(t, dir)), append(durable, w.Durable())
	}
	step()
	offset := int64(0)
	for _, c := range all {
		if err := w.Append(offset, c.stderr, c.data); err != nil {
			t.Fatal(err)
		}
		offset += int64(len(c.data))
		step()
	}
	if _, err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	step()
	return disks, durable
}

// survive opens what a crash left, checks that all of it is a prefix of what was
// written and has at least the durable bytes, then writes on and compares.
func survive(t *testing.T, s *output.Store, all []chunk, durable int64) {
	t.Helper()
	want := modelOf(all)
	if r, err := s.Reader("session", "exec", nil); err == nil {
		sizes, _ := r.Sizes()
		check(t, r, want.prefix(sizes.KeptTotal), 7)
		if sizes.KeptTotal < durable {
			t.Fatalf("a reader sees %d bytes, %d were durable", sizes.KeptTotal, durable)
		}
		r.Close()
	} else if !errors.Is(err, output.ErrNotFound) && !errors.Is(err, output.ErrCorrupt) || durable > 0 {
		t.Fatal(err)
	}
	w, err := s.Writer("session", "exec")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	total := w.Total()
	if total < durable || w.Durable() < durable {
		t.Fatalf("Total is %d, Durable %d, and %d were durable", total, w.Durable(), durable)
	}
	if total > 0 {
		r, err := s.Reader("session", "exec", nil)
		if err != nil {
			t.Fatal(err)
		}
		sizes, finished := r.Sizes()
		before := want.prefix(total)
		if sizes.Stdout != int64(len(before.of(output.Stdout))) || sizes.Stdout+sizes.Stderr != total || sizes.KeptTotal != total || finished {
			t.Fatalf("Sizes of the first %d bytes are %+v, %v", total, sizes, finished)
		}
		r.Close()
	}
	live, err := s.Reader("session", "exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	write(t, w, all)
	if err := w.Close(); err != nil { // a Finish would wait for the disk, thousands of times
		t.Fatal(err)
	}
	check(t, live, want, 11)
}

// TestKillAtEveryByteLosesNothingThatWasDurable: between two appends lie a write
// of data, one of records and one of a slot. A kill leaves a prefix of these
// bytes, and every prefix is tried.
func TestKillAtEveryByteLosesNothingThatWasDurable(t *testing.T) {
	t.Parallel()
	for _, c := range []output.Config{{InlineBytes: 1}, {InlineBytes: 6}} {
		all := small()
		disks, durable := record(t, c, all)
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "session"), 0o700); err != nil {
			t.Fatal(err)
		}
		s := reopen(t, dir, c)
		states := 0
		for i := 1; i < len(disks); i++ {
			for d := range between(disks[i-1], disks[i]) {
				d.write(t, dir)
				survive(t, s, all, durable[i-1])
				states++
			}
		}
		if states < 200 {
			t.Errorf("%d states were tried, want more than 200", states)
		}
	}
}

// between yields what the disk may hold when the writer dies on its way from one
// content to the next.
func between(from, to disk) func(yield func(disk) bool) {
	return func(yield func(disk) bool) {
		for n := len(from.data); n <= len(to.data); n++ {
			if !yield(disk{to.data[:n:n], from.index}) {
				return
			}
		}
		const recordsAt = 1024
		index := from.index
		for n := max(len(from.index), recordsAt); n <= len(to.index); n++ { // the records
			index = append(append(make([]byte, 0, n), from.index...), make([]byte, max(0, n-len(from.index)))...)
			if n > recordsAt {
				copy(index[recordsAt:], to.index[recordsAt:n])
			}
			if !yield(disk{to.data, index}) {
				return
			}
		}
		for i := range min(recordsAt, len(to.index)) { // the slots
			if i < len(index) && index[i] == to.index[i] {
				continue
			}
			index = append([]byte(nil), index...)
			index[i] = to.index[i]
			if !yield(disk{to.data, index}) {
				return
			}
		}
	}
}

// TestAnyTwoPrefixesOpenAndWriteOn: whatever of the two files a crash of the
// machine left, no byte is under the wrong stream, and the rest can be appended.
func TestAnyTwoPrefixesOpenAndWriteOn(t *testing.T) {
	t.Parallel()
	all := small()
	c := output.Config{InlineBytes: 1}
	disks, _ := record(t, c, all)
	finished, unfinished := disks[len(disks)-1], disks[len(disks)-2]
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "session"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, dir, c)
	for _, d := range []disk{finished, unfinished} {
		for data := range len(d.data) + 1 {
			for index := 0; index <= len(d.index); index++ {
				if index < 1024 && index%512 > 64 {
					continue // nothing is written there
				}
				if data%5 != 0 && (index+1)%16 > 2 {
					continue // every byte of each is tried; not all with all
				}
				disk{d.data[:data], d.index[:index]}.write(t, dir)
				survive(t, s, all, 0)
			}
		}
	}
}

// TestSpoiltRecordsEndTheOutput: a record that is not what was written shows no
// byte under the wrong stream.
func TestSpoiltRecordsEndTheOutput(t *testing.T) {
	t.Parallel()
	all := small()
	c := output.Config{InlineBytes: 1}
	disks, _ := record(t, c, all)
	d := disks[len(disks)-2]
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "session"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, dir, c)
	try := func(change func(index []byte)) {
		index := bytes.Clone(d.index)
		change(index)
		disk{d.data, index}.write(t, dir)
		survive(t, s, all, 0)
	}
	for i := 1024; i < len(d.index); i++ {
		for bit := range 8 {
			try(func(index []byte) { index[i] ^= 1 << bit })
		}
		try(func(index []byte) { clear(index[i:]) }) // a block that never came to the disk
	}
	for i := 1024; i < len(d.index); i += 16 {
		for j := 1024; j < len(d.index); j += 16 {
			try(func(index []byte) { copy(index[i:i+16], d.index[j:]) }) // one that came to another place
		}
	}
}

// TestWhatWasCutOffDoesNotComeBack: a slot that promised more than a crash left
// is not believed again when the files have grown as long by other bytes.
func TestWhatWasCutOffDoesNotComeBack(t *testing.T) {
	t.Parallel()
	all := small()
	want := modelOf(all)
	c := output.Config{InlineBytes: 1}
	disks, _ := record(t, c, all)
	whole := disks[len(disks)-2]
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "session"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, dir, c)
	for n := 1; n < len(whole.data); n++ {
		disk{whole.data[:n], whole.index}.write(t, dir)
		writer(t, s, "exec").Close()
		left := readDisk(t, dir)
		for slot := range 2 {
			// The next writer dies when it has written data and records, in a slot.
			index := append(bytes.Clone(left.index), whole.index[len(left.index):]...)
			index[512*slot+20]++
			disk{append(bytes.Clone(left.data), bytes.Repeat([]byte("?"), len(whole.data)-len(left.data))...), index}.write(t, dir)
			w := writer(t, s, "exec")
			if got := w.Total(); got != int64(len(left.data)) {
				t.Errorf("of %d bytes that were left, and others behind them, %d are taken", len(left.data), got)
			}
			live := reader(t, s, "exec", nil)
			w.Close()
			check(t, live, want.prefix(int64(len(left.data))), 0)
		}
	}
}

// TestAbortedOutputGoesOnFromItsFiles: a server that stops leaves what is in
// files; the next one appends from there.
func TestAbortedOutputGoesOnFromItsFiles(t *testing.T) {
	t.Parallel()
	all := chunks(4, 200, 300)
	want := modelOf(all)
	c := output.Config{InlineBytes: 1000}
	s, dir := open(t, c)
	w := writer(t, s, "exec")
	live := reader(t, s, "exec", nil)
	write(t, w, all[:100])
	durable := w.Durable()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, live, modelOf(all[:100]), 0)
	if _, finished := live.Sizes(); finished {
		t.Error("an output whose writer was closed passes for finished")
	}
	s = reopen(t, dir, c)
	r := reader(t, s, "exec", nil)
	check(t, r, want.prefix(durable), 0)
	w = writer(t, s, "exec")
	if got := w.Total(); got != durable || durable == 0 {
		t.Errorf("Total is %d, want %d, which was durable", got, durable)
	}
	write(t, w, all)
	check(t, reader(t, s, "exec", finish(t, w)), want, 0)
	check(t, r, want.prefix(durable), 0)
}

// TestSkippedBytesAreCountedAndSaid: what nobody has any more is a cut.
func TestSkippedBytesAreCountedAndSaid(t *testing.T) {
	t.Parallel()
	for _, inline := range []int{2, 1000} {
		s, dir := open(t, output.Config{InlineBytes: inline})
		w := writer(t, s, "exec")
		write(t, w, []chunk{{false, []byte("abc")}})
		if err := w.Skip(10); err != nil {
			t.Fatal(err)
		}
		if err := w.Append(10, true, []byte("xyz")); err != nil {
			t.Fatal(err)
		}
		want := output.Sizes{Stdout: 3, Stderr: 3, KeptTotal: 3, Cut: output.CutLost}
		if got := w.Sizes(); got != want || w.Total() != 13 {
			t.Errorf("Sizes are %+v of %d, want %+v of 13", got, w.Total(), want)
		}
		inline := finish(t, w)
		for _, s := range []*output.Store{s, reopen(t, dir, output.Config{})} {
			r := reader(t, s, "exec", inline)
			check(t, r, modelOf([]chunk{{false, []byte("abc")}}), 0)
			if got, finished := r.Sizes(); got != want || !finished {
				t.Errorf("the reader's Sizes are %+v, %v, want %+v", got, finished, want)
			}
		}
	}
}
