package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// mount is a mounted hierarchy.
type mount struct {
	dir         string
	root        string // the group that is seen at dir
	unified     bool   // version 2
	controllers []string
}

// readMounts returns the mounted hierarchies, each once.
func readMounts(path string) ([]mount, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer f.Close()
	var found []mount
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// "36 35 98:0 /root /dir rw,noatime master:1 - cgroup cgroup rw,memory"
		before, after, _ := strings.Cut(lines.Text(), " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if len(place) < 6 || len(kind) < 3 {
			continue
		}
		m := mount{root: unescape(place[3]), dir: unescape(place[4])}
		switch kind[0] {
		case "cgroup":
			m.controllers = strings.Split(kind[2], ",")
		case "cgroup2":
			m.unified = true
		default:
			continue
		}
		found = append(found, m)
	}
	return found, lines.Err()
}

// unescape undoes the kernel's notation of characters that would end a field.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
