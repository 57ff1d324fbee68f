package docker

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/mount"
)

// readOnly shows a directory or file of the host read-only, and each thing that is
// mounted below it as well: engines make only the topmost mount of a tree read-only
// (those before API 1.44 without any sign), which would leave the host's other mounts
// writable.
func readOnly(points []string, source, target string) []mount.Mount {
	ms := []mount.Mount{bind(source, target, true)}
	for _, p := range points {
		rest, below := strings.CutPrefix(p, strings.TrimSuffix(source, "/")+"/")
		if below {
			ms = append(ms, bind(p, filepath.Join(target, rest), true))
		}
	}
	return ms
}

// bind shows one mount of the host, without what is mounted below it.
func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true},
	}
}

// mountPoints returns the host's mount points, each before those below it, so that they
// can be shown in this order.
func mountPoints() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts of the host: %w", err)
	}
	return parseMountPoints(string(b)), nil
}

func parseMountPoints(info string) []string {
	var points []string
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		points = append(points, unescape(f[4]))
	}
	slices.SortFunc(points, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
	})
	return slices.Compact(points)
}

// unescape undoes the kernel's \ooo for blanks, line ends and backslashes in paths.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			out.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func isOctal(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '7' })
}
