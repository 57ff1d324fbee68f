package local

import (
	"debug/elf"
	"fmt"
	"path/filepath"
)

// CheckExecutable reports whether our executable can run inside a sandbox, where only
// itself is sure to be there.
func CheckExecutable(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("executable %q is not an absolute path", path)
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read executable: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("executable %s is dynamically linked; build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}
