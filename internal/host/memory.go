package host

import (
	"fmt"
	"strconv"
	"strings"
)

// Memory is that of the machine, in bytes; zero is unknown.
type Memory struct {
	TotalBytes     int64 `json:"totalBytes"`
	AvailableBytes int64 `json:"availableBytes"`
}

// Memory reads how much there is.
func (m Machine) Memory() Memory {
	text, err := m.read("/proc/meminfo")
	if err != nil {
		return Memory{}
	}
	return Memory{TotalBytes: kilobytes(field(text, "MemTotal")), AvailableBytes: kilobytes(field(text, "MemAvailable"))}
}

// Room is how many sandboxes of a size could be kept ready without taking the memory
// that is left to everything else, an eighth of all.
func (m Memory) Room(each int64) int64 {
	if each <= 0 {
		return 0
	}
	return max(0, m.AvailableBytes-m.TotalBytes/8) / each
}

// Ahead says how many sandboxes the memory would allow to keep ready when one that
// does nothing takes each bytes; 0 is unknown.
func (m Machine) Ahead(driver string, each int64) Check {
	c := Check{Name: "memory", State: Works}
	mem := m.Memory()
	if mem.TotalBytes == 0 {
		c.State, c.Says = Untried, "How much memory there is could not be read."
		return c
	}
	c.Says = fmt.Sprintf("%s of %s are available.", Bytes(mem.AvailableBytes), Bytes(mem.TotalBytes))
	if each <= 0 {
		c.Says += " What a sandbox takes could not be measured here."
		return c
	}
	n := mem.Room(each)
	c.Says += fmt.Sprintf(" A sandbox of %s that does nothing takes %s, so that there is memory for %d (warm.max in the configuration).", driver, Bytes(each), n)
	if n == 0 {
		c.State, c.Fix = Limited, "Leave warm.max at 0: sandboxes that wait would take memory from those that work."
	}
	return c
}

func kilobytes(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 64)
	if err != nil || n < 0 || n > 1<<53 {
		return 0
	}
	return n << 10
}
