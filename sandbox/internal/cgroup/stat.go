package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// Stat is what a group has used. What this kernel does not count is zero.
type Stat struct {
	MemoryBytes      int64
	MemoryPeakBytes  int64
	MemoryLimitBytes int64 // 0 without a limit
	CPU              time.Duration
	CPUThrottled     time.Duration // that processes could have run and were not let
	Processes        int           // and threads
	MemoryKills      int64         // processes killed because the memory was used up
	ProcessDenied    int64         // new processes refused
}

// Stat reads what the group has used. It is the zero value for a nil group; the error
// is os.ErrNotExist when the group is not there.
func (g *Group) Stat() (Stat, error) {
	if g == nil {
		return Stat{}, nil
	}
	if !g.Exists() {
		return Stat{}, fmt.Errorf("read control group %s: %w", g.name, os.ErrNotExist)
	}
	s, err := g.tree.h.stat(g.name)
	if err != nil {
		return Stat{}, fmt.Errorf("read control group %s: %w", g.name, err)
	}
	return s, nil
}

// reader reads files of groups and remembers the first error. Files that this kernel
// does not have read as zero.
type reader struct {
	err error
}

// number reads a file that is one number. What means "no limit" is zero.
func (r *reader) number(dir, name string) int64 {
	return r.parse(dir, name, strings.TrimSpace(r.text(dir, name)))
}

// field reads the number behind a key in a file with a line for each.
func (r *reader) field(dir, name, key string) int64 {
	for line := range strings.Lines(r.text(dir, name)) {
		if k, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return r.parse(dir, name, value)
		}
	}
	return 0
}

// nanoseconds reads a time; without a key the file is one number.
func (r *reader) nanoseconds(dir, name, key string) time.Duration {
	if key == "" {
		return time.Duration(r.number(dir, name))
	}
	return time.Duration(r.field(dir, name, key))
}

func (r *reader) microseconds(dir, name, key string) time.Duration {
	return time.Duration(r.field(dir, name, key)) * time.Microsecond
}

func (r *reader) text(dir, name string) string {
	text, err := read(dir, name)
	if err != nil && !errors.Is(err, os.ErrNotExist) && r.err == nil {
		r.err = err
	}
	return text
}

// unlimited is from where on version 1 means no limit; it rounds down to a page.
const unlimited = math.MaxInt64 &^ 0xff_ffff

func (r *reader) parse(dir, name, value string) int64 {
	if value == "" || value == "max" {
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		if r.err == nil {
			r.err = fmt.Errorf("read %s in %s: %q is no number", name, dir, value)
		}
		return 0
	}
	if n >= unlimited {
		return 0
	}
	return int64(n)
}
