package keeper_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestIgnoredSignalsAreNotInherited: how the server was started, under nohup or in the
// background of a script, changes nothing for the programs in its sandboxes.
func TestIgnoredSignalsAreNotInherited(t *testing.T) {
	d := launchKeeperBy(t, false, "sh", "-c", `trap "" HUP INT; exec "$@"`, "sh")
	p := d.peer(3)
	for name, s := range map[string]unix.Signal{"HUP": unix.SIGHUP, "INT": unix.SIGINT} {
		startOn(t, p, name, "sh", "-c", "kill -"+name+" $$; echo survived")
		if o := follow(t, p, name); o.Signal != unix.SignalName(s) {
			t.Errorf("%s: exit %v, signal %q, wrote %q", name, o.ExitCode, o.Signal, o.out["stdout"])
		}
	}
}
