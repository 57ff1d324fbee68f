package process

import (
	"context"
	"fmt"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// The versions of Landlock that bring what matters here.
const (
	abiScopes = 6 // signals and sockets without a path
	abiUnix   = 9 // sockets with a path
)

// Probe reports whether the driver works on this machine, by making a sandbox in a
// directory of its own below that of the configuration, or below the system's for
// temporary files if that is empty.
func Probe(ctx context.Context, cfg Config) sandbox.Report {
	r := local.Probe(ctx, Name, capabilities(), cfg.Dir, func(dir string) (sandbox.Driver, error) {
		return Open(Config{Dir: dir, Executable: cfg.Executable})
	})
	abi, err := ll.LandlockGetABIVersion()
	switch {
	case err != nil:
		r.Fix = "Enable Landlock: add it to the lsm= parameter of the kernel (5.13 or newer)."
	case r.Available:
		r.Reason += " " + missing(abi)
	}
	return r
}

// missing says what a version of Landlock leaves open.
func missing(abi int) string {
	switch {
	case abi < abiScopes:
		return fmt.Sprintf("Landlock ABI %d does not keep programs from signalling the host's processes of the same user, nor from its sockets.", abi)
	case abi < abiUnix:
		return fmt.Sprintf("Landlock ABI %d does not keep programs from the host's Unix sockets.", abi)
	}
	return fmt.Sprintf("Landlock ABI %d.", abi)
}
