package keeper_test

import (
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIgnoredSignalsAreNotInherited: how the server was started, under nohup for one,
// changes nothing for the programs in its sandboxes.
func TestIgnoredSignalsAreNotInherited(t *testing.T) {
	ignored := []unix.Signal{unix.SIGHUP, unix.SIGINT}
	for _, s := range ignored {
		signal.Ignore(s)
	}
	d := launchKeeper(t, false)
	for _, s := range ignored {
		signal.Reset(s)
	}
	p := d.peer(3)
	for name, s := range map[string]unix.Signal{"HUP": unix.SIGHUP, "INT": unix.SIGINT} {
		startOn(t, p, name, "sh", "-c", "kill -"+name+" $$; echo survived")
		if o := follow(t, p, name); o.Signal != unix.SignalName(s) {
			t.Errorf("%s: exit %v, signal %q, wrote %q", name, o.ExitCode, o.Signal, o.out["stdout"])
		}
	}
}
