package gvisor

import (
	"context"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// Probe reports whether the driver works on this machine, by making a sandbox in a
// directory of its own below that of the configuration, or below the system's for
// temporary files if that is empty.
func Probe(ctx context.Context, cfg Config) sandbox.Report {
	return local.Probe(ctx, Name, capabilities(!privileged()), cfg.Dir, func(dir string) (sandbox.Driver, error) {
		return Open(Config{Dir: dir, Executable: cfg.Executable, Runsc: cfg.Runsc})
	})
}
