package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// Errors that a caller can act on.
var (
	// ErrGap is returned for data that begins behind the end of what came before.
	// Read again from [Writer.Total], or give up what is missing with [Writer.Skip].
	ErrGap = errors.New("output is missing")
	// ErrBusy is returned when the output of an exec has a writer already.
	ErrBusy = errors.New("the output has a writer")
	// ErrNotFound is returned for an output of which nothing is here: it has no
	// files, no writer, and no inline blob was given.
	ErrNotFound = errors.New("no such output")
	// ErrCorrupt is returned when files or blobs are not what was written.
	ErrCorrupt = errors.New("output is damaged")
	// ErrClosed is returned when a closed or finished writer is used.
	ErrClosed = errors.New("output is closed")
)

// Config bounds what is kept. The zero value is ready for use.
type Config struct {
	InlineBytes int   // kept in memory until more came; 0 means 16 KiB
	MaxBytes    int64 // of one exec that are kept; 0 means 8 GiB; what comes beyond is counted; at most 256 TiB
	MinFree     int64 // free bytes of the file system below which nothing more is kept; 0 means 256 MiB
}

// Store keeps the outputs of execs below one directory. See the package comment.
type Store struct {
	config Config
	root   *os.Root

	mu    sync.Mutex
	live  map[name]*output // those that have a writer here
	named map[string]bool  // sessions whose directory has a durable name
}

// name is which output.
type name struct{ session, exec string }

// valid reports whether the parts of a name can be names of files.
func (n name) valid() bool { return validID(n.session) && validID(n.exec) }

func (n name) data() string  { return n.session + "/" + n.exec + ".data" }
func (n name) index() string { return n.session + "/" + n.exec + ".index" }

// validID reports whether id is 1 to 64 letters, digits, dashes and underscores.
func validID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// Open opens the store in dir, which is made when it is not there. What an
// earlier process left unfinished stays. Only one process may have a directory.
func Open(dir string, c Config) (*Store, error) {
	if c.InlineBytes <= 0 {
		c.InlineBytes = 16 << 10
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 8 << 30
	}
	c.MaxBytes = min(c.MaxBytes, 1<<offsetBits-1)
	if c.MinFree <= 0 {
		c.MinFree = 256 << 20
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open outputs: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open outputs: %w", err)
	}
	return &Store{config: c, root: root, live: map[name]*output{}, named: map[string]bool{}}, nil
}

// Close closes the store. Writers and readers are to be closed before.
func (s *Store) Close() error { return s.root.Close() }

// RemoveSession deletes all outputs of a session, for good when it returns.
// Readers of files keep what they have open. It fails with [ErrBusy] while an
// output of the session is being written. A session without outputs is no error.
func (s *Store) RemoveSession(session string) error {
	if !validID(session) {
		return fmt.Errorf("remove outputs: bad session id %q", session)
	}
	s.mu.Lock()
	for n, o := range s.live {
		if n.session == session && !o.ended() {
			s.mu.Unlock()
			return fmt.Errorf("remove outputs of session %s: exec %s: %w", session, n.exec, ErrBusy)
		}
	}
	delete(s.named, session)
	s.mu.Unlock()
	if err := s.root.RemoveAll(session); err != nil {
		return fmt.Errorf("remove outputs of session %s: %w", session, err)
	}
	return syncDir(s.root, ".")
}

// Remove deletes the output of one exec, for one that is damaged. It fails with
// [ErrBusy] while it is being written. One of which nothing is here is no error.
func (s *Store) Remove(session, exec string) error {
	n := name{session, exec}
	if !n.valid() {
		return fmt.Errorf("remove output: bad ids %q, %q", session, exec)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[n] != nil {
		return fmt.Errorf("remove output of exec %s: %w", exec, ErrBusy)
	}
	if err := s.remove(n); err != nil {
		return fmt.Errorf("remove output of exec %s: %w", exec, err)
	}
	return nil
}

// files are the two files of an output. The zero value is none.
type files struct{ data, index *os.File }

func (f files) close() error {
	if f.data == nil {
		return nil
	}
	return errors.Join(f.data.Close(), f.index.Close())
}

// open opens the files of an output. Both are nil, without an error, when there
// are none.
func (s *Store) open(n name, flag int) (files, error) {
	data, err := s.root.OpenFile(n.data(), flag, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return files{}, nil
	}
	if err != nil {
		return files{}, err
	}
	index, err := s.root.OpenFile(n.index(), flag, 0o600)
	if err != nil {
		data.Close()
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // died between the two, with nothing in either
		}
		return files{}, err
	}
	return files{data, index}, nil
}

// create makes the files of an output, empty.
func (s *Store) create(n name) (files, error) {
	if err := s.root.Mkdir(n.session, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return files{}, err
	}
	f, err := s.open(n, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return files{}, errors.Join(err, s.remove(n))
	}
	return f, nil
}

// remove deletes the files of an output.
func (s *Store) remove(n name) error {
	var failed error
	for _, path := range []string{n.data(), n.index()} {
		if err := s.root.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// syncNames makes the names of a session's outputs durable.
func (s *Store) syncNames(session string) error {
	if err := syncDir(s.root, session); err != nil {
		return err
	}
	s.mu.Lock()
	named := s.named[session]
	s.mu.Unlock()
	if named {
		return nil
	}
	if err := syncDir(s.root, "."); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named[session] = true
	return nil
}

// syncDir makes the entries of a directory durable.
func syncDir(root *os.Root, path string) error {
	d, err := root.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// noSpace reports whether a write failed because there is no room.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// freeBytes returns how much the file system of f has left for us.
func freeBytes(f *os.File) (int64, error) {
	var st syscall.Statfs_t
	c, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := c.Control(func(fd uintptr) { failed = syscall.Fstatfs(int(fd), &st) }); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, failed
}
