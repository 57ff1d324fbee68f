package config

import "testing"

// TestRatesHaveDefaultsAndCanBeFree holds what the sample says of rates.
func TestRatesHaveDefaultsAndCanBeFree(t *testing.T) {
	for text, want := range map[string][3]Money{
		"":                                     {DefaultVCPUSecond, DefaultGiBSecond, 0},
		"rates: {vcpuSecond: 0, gibSecond: 0}": {0, 0, 0},
		"rates: {vcpuSecond: 0.000014, gibSecond: 0.0000045}": {DefaultVCPUSecond, DefaultGiBSecond, 0},
		"rates: {exec: 0.01}": {DefaultVCPUSecond, DefaultGiBSecond, 1_000_000},
		"rates: {vcpuSecond: 1, gibSecond: 0.5, exec: 0.00001}": {100_000_000, 50_000_000, 1000},
	} {
		c, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		cpu, memory, exec := c.Rates.Effective()
		if got := [3]Money{cpu, memory, exec}; got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	if _, err := Parse([]byte("rates: {exec: -1}")); err == nil {
		t.Error("a negative rate was read")
	}
}
