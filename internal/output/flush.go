package output

import (
	"errors"
	"os"
	"syscall"
)

// freeEvery is how many bytes are written between two looks at the free space.
const freeEvery = 1 << 20

// pushBytes is how much is written to the data file before the kernel begins to bring
// it to the disk.
const pushBytes = 8 << 20

// tailRuns is how many runs may begin in a tail behind files.
const tailRuns = 256

// keep makes next, whose counts include data, what the output is, with as much
// of data as there is room for. When it fails nothing has changed.
func (w *Writer) keep(next view, stderr bool, data []byte) error {
	inline := w.store.config.InlineBytes
	fits, err := w.fits(next, len(data))
	if err != nil {
		return err
	}
	switch {
	case fits:
		next = next.add(stderr, len(data))
		if next.tail == nil && next.filed > 0 {
			next.tail = make([]byte, 0, inline+inline/4) // it will be full, and what fills it comes on top
		}
		next.tail = append(next.tail, data...)
	case len(data) == 0 && w.v.cut != "" && next.total-w.durable < int64(inline):
		// Only counted, and not every count is worth a write.
	default:
		if next, err = w.flush(next, stderr, data); err != nil {
			return err
		}
	}
	w.v = next
	w.o.publish(w.v, w.files, false)
	return nil
}

// fits reports whether n bytes go into the tail of a view. A tail behind files is
// given its room on the disk when it begins: it is shown to readers, and must
// find room in the end.
func (w *Writer) fits(v view, n int) (bool, error) {
	if v.cut != "" || len(v.tail)+n > w.store.config.InlineBytes {
		return false, nil
	}
	if v.filed == 0 || len(v.tail) > 0 {
		return v.filed == 0 || len(v.tailRuns) < tailRuns, nil
	}
	err := errors.Join(
		reserve(w.files.data, v.filed, int64(w.store.config.InlineBytes)),
		reserve(w.files.index, recordsAt+v.filedRuns*recordBytes, (tailRuns+1)*recordBytes),
	)
	if noSpace(err) {
		return false, nil // a flush keeps what there is room for
	}
	return err == nil, err
}

// reserve makes room for n bytes at an offset of a file, where its file system
// can, and leaves the size of the file.
func reserve(f *os.File, offset, n int64) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	const keepSize = 1
	var failed error
	if err := c.Control(func(fd uintptr) {
		for failed = syscall.EINTR; failed == syscall.EINTR; {
			failed = syscall.Fallocate(int(fd), keepSize, offset, n)
		}
	}); err != nil {
		return err
	}
	if failed == syscall.EOPNOTSUPP || failed == syscall.ENOSYS {
		return nil
	}
	return failed
}

// flush brings the tail of a view, and data behind it, into the files. It makes
// them when there are none. What finds no room is cut.
func (w *Writer) flush(v view, stderr bool, data []byte) (view, error) {
	if err := w.spill(); noSpace(err) {
		head := w.head(v, data)
		v = v.add(stderr, len(head))
		v.tail = append(v.tail, head...)
		return w.cutShort(v)
	} else if err != nil {
		return view{}, err
	}
	if low, err := w.low(v.kept + int64(len(data))); err != nil {
		return view{}, err
	} else if low && len(data) > 0 {
		v.cut, data = CutNoSpace, w.head(v, data)
	}
	n, err := w.writeData(v, data)
	if noSpace(err) && n < 0 {
		return w.cutShort(v)
	} else if err != nil && !noSpace(err) {
		return view{}, err
	}
	filed := v.add(stderr, n)
	if n < len(data) {
		filed.cut = CutNoSpace
	}
	if err := w.writeRecords(filed); noSpace(err) {
		return w.cutShort(v)
	} else if err != nil {
		return view{}, err
	}
	filed.data, filed.index = w.files.data, w.files.index
	filed.filed, filed.filedRuns, filed.tail, filed.tailRuns = filed.kept, filed.runs, nil, nil
	if err := w.save(&filed); noSpace(err) {
		return w.cutShort(v)
	} else if err != nil {
		return view{}, err
	}
	w.push(filed.filed)
	return filed, nil
}

// push begins to bring what was written to the disk, so that a large output has little
// left to wait for in the end. Nothing is promised: what fails is told by the sync.
func (w *Writer) push(filed int64) {
	if filed-w.pushed < pushBytes {
		return
	}
	c, err := w.files.data.SyscallConn()
	if err != nil {
		return
	}
	const begin = 2 // SYNC_FILE_RANGE_WRITE
	_ = c.Control(func(fd uintptr) { _ = syscall.SyncFileRange(int(fd), w.pushed, filed-w.pushed, begin) })
	w.pushed = filed
}

// spill makes the files, if there are none, and the room for their slots.
func (w *Writer) spill() error {
	if w.files.data != nil {
		return nil
	}
	f, err := w.store.create(w.name)
	if err != nil {
		return err
	}
	w.files = f
	if err := w.save(new(view)); err != nil {
		return errors.Join(err, w.unspill())
	}
	return nil
}

// head returns the part of data that would be kept in memory: also on a full
// disk the first InlineBytes of an output are.
func (w *Writer) head(v view, data []byte) []byte {
	return data[:min(int64(len(data)), max(0, int64(w.store.config.InlineBytes)-v.kept))]
}

// unspill removes files that hold nothing.
func (w *Writer) unspill() error {
	f := w.files
	w.files = files{}
	return errors.Join(f.close(), w.store.remove(w.name))
}

// writeData writes the tail and data behind what is filed. It returns how many
// bytes of data are written, or -1 when not even the tail is.
func (w *Writer) writeData(v view, data []byte) (int, error) {
	head, rest := v.tail, data
	if len(data) <= w.store.config.InlineBytes {
		head, rest = append(v.tail, data...), nil // one write; behind what others see of it
	}
	n, err := writeAt(w.files.data, head, v.filed)
	if err == nil {
		var m int
		m, err = writeAt(w.files.data, rest, v.filed+int64(n))
		n += m
	}
	return max(n-len(v.tail), -1), err
}

// writeRecords writes the records of the runs that begin in the tail.
func (w *Writer) writeRecords(v view) error {
	b := make([]byte, 0, len(v.tailRuns)*recordBytes)
	for _, r := range v.tailRuns {
		b = appendRecord(b, r)
	}
	_, err := writeAt(w.files.index, b, recordsAt+v.filedRuns*recordBytes)
	return err
}

// save writes the slot of a view: all that is filed counts now, and all that is
// counted is durable.
func (w *Writer) save(v *view) error {
	s := v.state
	s.serial++
	s.kept, s.runs = v.filed, v.filedRuns
	if _, err := w.files.index.WriteAt(s.slot(), slotAt(s.serial)); err != nil {
		return err
	}
	v.serial, w.durable = s.serial, v.total
	return nil
}

// cutShort is what becomes of a view when there is no room for what it has
// beyond the files. Its tail stays readable; in vain, if its file system gives
// no reserve and a last try in Finish finds no room either. From here on bytes
// are counted only, and durable without being kept: whoever has them shall not
// wait for room.
func (w *Writer) cutShort(v view) (view, error) {
	if v.cut == "" {
		v.cut = CutNoSpace
	}
	if v.filed == 0 {
		if w.files.data != nil {
			if err := w.unspill(); err != nil {
				return view{}, err
			}
		}
		w.durable = v.total
		return v, nil
	}
	if err := w.trimTo(v); err != nil {
		return view{}, err
	}
	if err := w.save(&v); err != nil && !noSpace(err) {
		return view{}, err
	}
	w.durable = v.total
	return v, nil
}

// trimTo cuts both files to what a view has of them.
func (w *Writer) trimTo(v view) error {
	return errors.Join(w.files.data.Truncate(v.filed), w.files.index.Truncate(recordsAt+v.filedRuns*recordBytes))
}

// low reports whether the file system has too little room for an output to grow
// to a size. It looks once in a while.
func (w *Writer) low(size int64) (bool, error) {
	if w.checked > 0 && size < w.checked+freeEvery {
		return false, nil
	}
	free, err := freeBytes(w.files.data)
	w.checked = size
	return free < w.store.config.MinFree, err
}

// seal brings everything to stable storage: the bytes before the slot that says
// that they are all, and the names last.
func (w *Writer) seal() error {
	v := w.v
	if len(v.tail) > 0 {
		var err error
		if v, err = w.flush(v, false, nil); err != nil {
			return err
		}
		if w.files.data == nil {
			w.v = v
			return nil // it went back to memory, all of it
		}
		if v, err = v.withoutTail(); err != nil {
			return err
		}
	}
	if err := errors.Join(w.trimTo(v), w.files.data.Sync()); err != nil {
		return err
	}
	v.finished = true
	if err := w.save(&v); err != nil {
		return err
	}
	v.finished, w.v = false, v
	return errors.Join(w.files.index.Sync(), w.store.syncNames(w.name.session))
}

// withoutTail returns the view of what is filed.
func (v view) withoutTail() (view, error) {
	if len(v.tail) == 0 {
		return v, nil
	}
	last, err := v.run(v.filedRuns - 1)
	if err != nil {
		return view{}, err
	}
	v.kept, v.runs, v.last, v.keptStdout = v.filed, v.filedRuns, last, last.at(v.filed)
	v.tail, v.tailRuns = nil, nil
	return v, nil
}

// writeStep bounds one write to the data file. The kernel takes page cache for a write in
// pieces of its size, and a virtual machine has large pieces only from memory that its
// host has to find first: 256 KiB at a time cost four times as much as 64 KiB.
const writeStep = 64 << 10

// writeAt is f.WriteAt in steps, and leaves an empty write out.
func writeAt(f *os.File, b []byte, offset int64) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = f.WriteAt(b[n:min(len(b), n+writeStep)], offset+int64(n))
		n += m
	}
	return n, err
}
