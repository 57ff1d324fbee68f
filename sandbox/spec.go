package sandbox

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// maxSession is how many characters a session id may have, so that directories
// named after it stay valid everywhere.
const maxSession = 64

// Validate reports whether a driver could carry the spec out at all. Its error
// wraps ErrInvalidSpec.
func (s Spec) Validate() error {
	if err := ValidateSession(s.Session, s.Epoch); err != nil {
		return err
	}
	if l := s.Limits; min(l.MemoryBytes, l.DiskBytes) < 0 || min(l.Processes, l.MilliCPUs, l.OpenFiles) < 0 {
		return fmt.Errorf("%w: a limit is negative", ErrInvalidSpec)
	}
	for _, m := range s.Layers {
		if err := m.validate(); err != nil {
			return err
		}
	}
	return nil
}

// ValidateSession reports whether session and epoch can name a sandbox. Its error
// wraps ErrInvalidSpec.
func ValidateSession(session string, epoch int64) error {
	if session == "" || len(session) > maxSession || strings.ContainsFunc(session, notInID) {
		return fmt.Errorf("%w: session %.80q is not 1 to %d of A-Z a-z 0-9 _ -", ErrInvalidSpec, session, maxSession)
	}
	if epoch < 0 {
		return fmt.Errorf("%w: epoch %d is negative", ErrInvalidSpec, epoch)
	}
	return nil
}

// Check reports whether a driver with these capabilities does all that the spec
// asks for. Its error wraps ErrUnsupported.
func (c Capabilities) Check(s Spec) error {
	switch {
	case !slices.Contains(c.Networks, s.Network):
		return fmt.Errorf("network %q: %w", s.Network, ErrUnsupported)
	case s.Limits.MemoryBytes > 0 && !c.Limits.Memory:
		return fmt.Errorf("memory limit: %w", ErrUnsupported)
	case s.Limits.Processes > 0 && !c.Limits.Processes:
		return fmt.Errorf("process limit: %w", ErrUnsupported)
	case s.Limits.MilliCPUs > 0 && !c.Limits.CPU:
		return fmt.Errorf("cpu limit: %w", ErrUnsupported)
	case s.Limits.DiskBytes > 0 && !c.Limits.Disk:
		return fmt.Errorf("disk limit: %w", ErrUnsupported)
	case s.Limits.OpenFiles > 0 && !c.Limits.OpenFiles:
		return fmt.Errorf("open files limit: %w", ErrUnsupported)
	case s.Image != "" && !c.Images:
		return fmt.Errorf("image %.100q: %w", s.Image, ErrUnsupported)
	case s.Resume != nil && !c.ProcessSnapshot:
		return fmt.Errorf("process snapshot: %w", ErrUnsupported)
	}
	return nil
}

// reserved are the paths that belong to the driver: no layer may cover them or
// what is below them.
var reserved = []string{WorkspacePath, HomePath, path.Dir(KeeperPath), SocketDir, "/proc", "/sys", "/dev", "/usr", "/etc", "/tmp"}

func (m Mount) validate() error {
	for _, p := range []string{m.Source, m.Target} {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0) {
			return fmt.Errorf("%w: layer path %.200q is not absolute and clean", ErrInvalidSpec, p)
		}
	}
	for _, r := range reserved {
		if m.Target == r || strings.HasPrefix(m.Target, r+"/") || strings.HasPrefix(r, m.Target+"/") {
			return fmt.Errorf("%w: layer target %s covers or is below %s", ErrInvalidSpec, m.Target, r)
		}
	}
	return nil
}

func notInID(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return false
	}
	return true
}
