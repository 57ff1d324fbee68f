package gvisor_test

import (
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
)

func TestIsReexec(t *testing.T) {
	for _, c := range []struct {
		args []string
		want bool
	}{
		{nil, false},
		{[]string{"sojourn"}, false},
		{[]string{"/usr/bin/sojourn", "serve"}, false},
		{[]string{"sojourn", "serve", "runsc"}, false},
		{[]string{"sojourn", "runsc", "--root=/x", "run"}, true},
		{[]string{"runsc-sandbox", "boot"}, true},
		{[]string{"runsc-gofer"}, true},
		{[]string{"/x/runsc"}, true},
		{[]string{"runsc[getUsernsFD]"}, true},
		{[]string{"/proc/self/exe", "umount"}, true},
	} {
		if got := gvisor.IsReexec(c.args); got != c.want {
			t.Errorf("IsReexec(%q) = %v, want %v", c.args, got, c.want)
		}
	}
}
