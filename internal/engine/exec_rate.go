package engine

import (
	"math"
	"math/bits"
	"runtime"
	"syscall"

	"github.com/sojourn-dev/sojourn"
)

// machine is what a sandbox may use that nothing bounds.
type machine struct {
	milliCPUs int64
	memory    int64 // bytes
}

// thisMachine asks the kernel.
func thisMachine() machine {
	m := machine{milliCPUs: int64(runtime.NumCPU()) * 1000}
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) == nil {
		m.memory = int64(uint64(info.Totalram) * uint64(info.Unit))
	}
	return m
}

// share is price for n of a unit, rounded up; negative ones count as zero, and what
// no amount holds is the largest.
func share(price sojourn.Money, n, unit int64) sojourn.Money {
	hi, lo := bits.Mul64(uint64(max(0, price)), uint64(max(0, n)))
	if hi >= uint64(unit) {
		return math.MaxInt64 / 2
	}
	q, rest := bits.Div64(hi, lo, uint64(unit))
	if rest > 0 {
		q++
	}
	return sojourn.Money(min(q, math.MaxInt64/2)) // two of them can be added
}
