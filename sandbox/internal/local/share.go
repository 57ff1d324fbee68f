package local

import "github.com/sojourn-dev/sojourn/sandbox"

// Share is how much may be written to each place that is kept in memory, in bytes; 0 is
// what the driver does without a limit. Together they are at most the disk limit.
type Share struct {
	Root, Tmp, Shm int64
}

// ShareOf divides the disk limit among the places in memory.
func ShareOf(l sandbox.Limits) Share {
	return Share{Root: l.DiskBytes / 2, Tmp: l.DiskBytes / 4, Shm: l.DiskBytes / 4}
}

// OpenFiles is how many files a process may have open, if a driver allows most of them.
func OpenFiles(l sandbox.Limits, most uint64) uint64 {
	if l.OpenFiles > 0 {
		return min(most, uint64(l.OpenFiles))
	}
	return most
}

// Processes is how many processes and threads the driver has to bound by itself, because
// no group does; 0 is no limit.
func (c *Cell) Processes() int {
	if c.group.Bounds().Processes > 0 {
		return 0
	}
	return c.Record.Limits.Processes
}
