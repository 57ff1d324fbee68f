package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func TestValidateRefusesWhatNoDriverCanDo(t *testing.T) {
	bad := map[string]Spec{
		"no session":       {},
		"path as session":  {Session: "../x"},
		"dot session":      {Session: ".."},
		"long session":     {Session: strings.Repeat("a", 65)},
		"zero byte":        {Session: "a\x00"},
		"negative epoch":   {Session: "a", Epoch: -1},
		"negative limit":   {Session: "a", Limits: Limits{MemoryBytes: -1}},
		"relative source":  {Session: "a", Layers: []Mount{{Source: "x", Target: "/opt/x"}}},
		"relative target":  {Session: "a", Layers: []Mount{{Source: "/x", Target: "opt/x"}}},
		"unclean target":   {Session: "a", Layers: []Mount{{Source: "/x", Target: "/opt/../workspace"}}},
		"target is root":   {Session: "a", Layers: []Mount{{Source: "/x", Target: "/"}}},
		"covers workspace": {Session: "a", Layers: []Mount{{Source: "/x", Target: "/workspace"}}},
		"below sockets":    {Session: "a", Layers: []Mount{{Source: "/x", Target: "/run/sojourn/x"}}},
		"above sockets":    {Session: "a", Layers: []Mount{{Source: "/x", Target: "/run"}}},
	}
	for name, spec := range bad {
		if err := spec.Validate(); !errors.Is(err, ErrInvalidSpec) {
			t.Errorf("%s: Validate = %v, want ErrInvalidSpec", name, err)
		}
	}
	good := Spec{Session: "se_0-Z", Epoch: 3, Layers: []Mount{{Source: "/srv/agents", Target: "/agents"}}}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate(%+v) = %v", good, err)
	}
}

func TestCheckRefusesWhatTheDriverCannotDo(t *testing.T) {
	c := Capabilities{Networks: []Network{NetworkNone}, Limits: LimitSupport{Memory: true}}
	if err := c.Check(Spec{Limits: Limits{MemoryBytes: 1}}); err != nil {
		t.Errorf("memory limit with support: %v", err)
	}
	for name, s := range map[string]Spec{
		"network":   {Network: "open"},
		"processes": {Limits: Limits{Processes: 1}},
		"cpu":       {Limits: Limits{MilliCPUs: 1}},
	} {
		if err := c.Check(s); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: Check = %v, want ErrUnsupported", name, err)
		}
	}
}
