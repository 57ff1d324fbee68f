package output

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// Writer appends to the output of one exec. It must be closed.
type Writer struct {
	store *Store
	name  name
	o     *output // what readers see of it

	mu       sync.Mutex
	v        view  // what o shows
	files    files // none while all is tail
	durable  int64 // total offset that the files account for
	checked  int64 // bytes in files when free space was last looked at
	pushed   int64 // bytes of the data file that are on their way to the disk
	inline   []byte
	finished bool
	closed   bool
}

// Writer opens the output of an exec for appending. It goes on with what an
// earlier writer left in files, which [Writer.Total] tells. While another writer
// of this process has the output it fails with [ErrBusy].
func (s *Store) Writer(session, exec string) (*Writer, error) {
	w := &Writer{store: s, name: name{session, exec}, o: &output{refs: 1}}
	if !w.name.valid() {
		return nil, fmt.Errorf("write output: bad ids %q, %q", session, exec)
	}
	s.mu.Lock()
	busy := s.live[w.name] != nil
	if !busy {
		s.live[w.name] = w.o
	}
	s.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("write output of exec %s: %w", exec, ErrBusy)
	}
	if err := w.resume(); err != nil {
		return nil, errors.Join(fmt.Errorf("write output of exec %s: %w", exec, err), w.Close())
	}
	return w, nil
}

// resume takes over the files that are there, and cuts off what does not count.
func (w *Writer) resume() error {
	f, err := w.store.open(w.name, os.O_RDWR)
	if err != nil {
		return err
	}
	if f.data == nil {
		return w.store.remove(w.name) // there may be one of the two
	}
	v, shrunk, err := load(f)
	if err != nil {
		return errors.Join(err, f.close())
	}
	if v.total == 0 {
		return errors.Join(f.close(), w.store.remove(w.name))
	}
	v.finished = false
	w.v, w.files, w.durable, w.pushed = v, f, v.total, v.kept
	if err := w.trim(shrunk); err != nil {
		w.v, w.files = view{}, files{}
		return errors.Join(err, f.close())
	}
	w.o.publish(w.v, w.files, false)
	return nil
}

// trim cuts both files to what counts. When that is less than their slots say,
// both slots are replaced: they could come true again by what is appended next.
func (w *Writer) trim(shrunk bool) error {
	if err := w.trimTo(w.v); err != nil || !shrunk {
		return err
	}
	return errors.Join(w.save(&w.v), w.save(&w.v))
}

// Append takes data of one stream that begins at a total offset. What was
// appended before is skipped, so appending again after a crash repeats nothing.
// Data that begins behind [Writer.Total] gives [ErrGap]. What is not kept, for
// its size or a full disk, is counted and no error. After an error none of data
// was taken, and the same bytes can be appended again. Data is not held on to.
func (w *Writer) Append(offset int64, stderr bool, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed || w.finished:
		return ErrClosed
	case offset < 0 || offset > w.v.total:
		return fmt.Errorf("append %d bytes at %d, want %d: %w", len(data), offset, w.v.total, ErrGap)
	case w.v.total-offset >= int64(len(data)):
		return nil
	}
	data = data[w.v.total-offset:]
	next := w.v
	n := w.admit(&next, stderr, len(data))
	if stderr {
		next.stderr += int64(len(data))
	} else {
		next.stdout += int64(len(data))
	}
	next.total += int64(len(data))
	if err := w.keep(next, stderr, data[:n]); err != nil {
		return fmt.Errorf("append to output of exec %s: %w", w.name.exec, err)
	}
	return nil
}

// Skip gives up the bytes before a total offset that were not appended yet,
// because nobody has them any more. The output is cut there: what comes after
// is counted and not kept.
func (w *Writer) Skip(offset int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.finished {
		return ErrClosed
	}
	if offset <= w.v.total {
		return nil
	}
	next := w.v
	next.total = offset
	if next.cut == "" {
		next.cut = CutLost
	}
	return w.keep(next, false, nil)
}

// admit returns how many of n bytes are to be kept, and marks next as cut when
// that is not all.
func (w *Writer) admit(next *view, stderr bool, n int) int {
	if next.cut != "" {
		return 0
	}
	room := w.store.config.MaxBytes - next.kept
	if (next.runs == 0 || next.last.stderr != stderr) && (next.runs+1)*recordBytes > w.store.config.MaxBytes {
		room = 0
	}
	if room < int64(n) {
		next.cut = CutLimit
		return int(room)
	}
	return n
}

// Total returns the total offset of the byte that is to be appended next.
func (w *Writer) Total() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.v.total
}

// Durable returns the total offset up to which nobody else needs to keep the
// bytes: they are in files and survive a kill of this process, or were counted
// and will not be kept. While all is in memory it is 0.
func (w *Writer) Durable() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.durable
}

// Sizes returns how much the exec wrote, and how much of it is kept.
func (w *Writer) Sizes() Sizes {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.v.sizes()
}

// Finish ends the output, and readers learn that it is whole. What went to files
// is on stable storage when it returns, and inline is nil. What never left memory
// is inline, a blob that the caller must store and give to [Store.Reader]; it is
// never nil, even when the exec wrote nothing. Until [Writer.Close] the output
// can be read without it. Finish may be called again.
func (w *Writer) Finish() (inline []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return w.inline, nil
	}
	if w.closed {
		return nil, ErrClosed
	}
	if w.files.data != nil {
		if err := w.seal(); err != nil {
			return nil, fmt.Errorf("finish output of exec %s: %w", w.name.exec, err)
		}
	}
	w.v.finished, w.finished = true, true
	if w.files.data == nil {
		w.inline = encodeInline(w.v)
	}
	w.o.publish(w.v, w.files, true)
	return w.inline, nil
}

// Close lets the output go. Without a [Writer.Finish] before it, what is in files
// stays for another writer, and readers see an end that is not finished. After
// Finish, call it once the inline blob is stored. It may be called twice.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.o.publish(w.v, w.files, true)
	w.store.mu.Lock()
	delete(w.store.live, w.name)
	w.store.mu.Unlock()
	return w.o.release()
}
