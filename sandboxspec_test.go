package sojourn

import "testing"

// TestLimitsAreBoundedBothWays: what no machine could keep is refused when it is asked
// for, not when a sandbox is made.
func TestLimitsAreBoundedBothWays(t *testing.T) {
	for name, c := range map[string]struct {
		min, max int64
		set      func(*SandboxLimits, int64)
	}{
		"memory":     {MinMemoryBytes, MaxMemoryBytes, func(l *SandboxLimits, n int64) { l.MemoryBytes = n }},
		"disk":       {MinDiskBytes, MaxDiskBytes, func(l *SandboxLimits, n int64) { l.DiskBytes = n }},
		"cores":      {MinMilliCPUs, MaxMilliCPUs, func(l *SandboxLimits, n int64) { l.MilliCPUs = int(n) }},
		"processes":  {MinProcesses, MaxProcesses, func(l *SandboxLimits, n int64) { l.Processes = int(n) }},
		"open files": {MinOpenFiles, MaxOpenFiles, func(l *SandboxLimits, n int64) { l.OpenFiles = int(n) }},
	} {
		for n, want := range map[int64]Code{
			-1: CodeInvalid, 0: "", c.min - 1: CodeInvalid, c.min: "", c.max: "", c.max + 1: CodeInvalid,
		} {
			var s SandboxSpec
			c.set(&s.Limits, n)
			if got := CodeOf(s.Validate()); got != want {
				t.Errorf("%s %d: code %q, want %q", name, n, got, want)
			}
		}
	}
}
