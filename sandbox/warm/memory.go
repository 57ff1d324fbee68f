package warm

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// memory is that of the host, in bytes; zero is unknown.
type memory struct{ total, available int64 }

// short reports whether less than reserve is available.
func (m memory) short(reserve int64) bool { return m.total > 0 && m.available < reserve }

func hostMemory() (memory, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return memory{}, fmt.Errorf("read available memory: %w", err)
	}
	return parseMemory(b)
}

// parseMemory reads a meminfo file.
func parseMemory(b []byte) (memory, error) {
	var m memory
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, " kB")), 10, 64)
		switch {
		case err != nil:
		case name == "MemTotal":
			m.total = n << 10
		case name == "MemAvailable":
			m.available = n << 10
		}
	}
	if m.total == 0 {
		return memory{}, fmt.Errorf("read available memory: meminfo has none: %.80q", b)
	}
	return m, nil
}
