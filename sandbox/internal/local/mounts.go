package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// unmountBelow undoes all mounts of this mount namespace in the directory dir, so that
// removing it removes nothing else.
func unmountBelow(dir string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	points, err := mountPoints(f, dir+"/")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, p := range slices.Backward(points) { // what was mounted later lies on top
		err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it went with the one below it
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	return nil
}

// mountPoints returns the mount points that begin with prefix, from a mountinfo file.
func mountPoints(r io.Reader, prefix string) ([]string, error) {
	var points []string
	lines := bufio.NewReader(r) // a line can be as long as the options of an overlay
	for {
		line, err := lines.ReadString('\n')
		// The fifth field; the kernel writes blanks in it as octal numbers.
		if fields := strings.SplitN(line, " ", 6); len(fields) == 6 {
			if p := mountPath.Replace(fields[4]); strings.HasPrefix(p, prefix) {
				points = append(points, p)
			}
		}
		if errors.Is(err, io.EOF) {
			return points, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// mountPath decodes a path in mountinfo.
var mountPath = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
