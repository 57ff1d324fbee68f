package config

// Rates is what the execs of sessions without an agent cost. A nil field has its
// default; 0 is free.
type Rates struct {
	VCPUSecond *Money `yaml:"vcpuSecond"` // of each virtual CPU that a sandbox may use
	GiBSecond  *Money `yaml:"gibSecond"`  // of each GiB of memory that it may use
	Exec       *Money `yaml:"exec"`       // once
}

// The default rates: what hosted sandboxes cost in public price lists of 2026, some
// 5 cents of a dollar for a CPU-hour and 1.6 for a GiB-hour.
const (
	DefaultVCPUSecond Money = 1400
	DefaultGiBSecond  Money = 450
)

// Effective returns the rates with the defaults filled in.
func (r Rates) Effective() (vcpuSecond, gibSecond, exec Money) {
	vcpuSecond, gibSecond = DefaultVCPUSecond, DefaultGiBSecond
	for _, f := range []struct {
		set *Money
		to  *Money
	}{{r.VCPUSecond, &vcpuSecond}, {r.GiBSecond, &gibSecond}, {r.Exec, &exec}} {
		if f.set != nil {
			*f.to = *f.set
		}
	}
	return vcpuSecond, gibSecond, exec
}
