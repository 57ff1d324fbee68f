package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// TestProbeRemovesWhatAKilledOneLeft tries a driver beside a probe that runs, one that
// was killed with its sandbox running, and files that are not a probe's.
func TestProbeRemovesWhatAKilledOneLeft(t *testing.T) {
	dir := t.TempDir()
	l := &calling{}
	l.t = t
	open := func(dir string) (sandbox.Driver, error) { return callingMachine(t, dir, l), nil }

	running, lock, err := beginProbe(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	killed, dead, err := beginProbe(dir)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := callingMachine(t, killed, l).Create(t.Context(), sandbox.Spec{Session: "probe"})
	if err != nil {
		t.Fatal(err)
	}
	dead.Close() // as the kernel does
	young, old := filepath.Join(dir, probePrefix+"young"), filepath.Join(dir, probePrefix+"old")
	mkdir(t, young)
	mkdir(t, old)
	then := time.Now().Add(-2 * probeAge)
	if err := os.Chtimes(old, then, then); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, probePrefix+"file"), "")

	r := Probe(t.Context(), "calling", sandbox.Capabilities{}, dir, open)
	if !r.Available || r.Reason != "A sandbox was made as root and its keeper called." {
		t.Errorf("Probe = %+v", r)
	}
	select {
	case <-sb.Done():
	case <-time.After(10 * time.Second):
		t.Error("the sandbox of the killed probe runs")
	}
	gone(t, killed)
	gone(t, old)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 { // with the file
		t.Errorf("left are %v, %v, want %s, %s and a file", entries, err, running, young)
	}

	l.kill = errors.New("it does not die")
	if _, err := callingMachine(t, running, l).Create(t.Context(), sandbox.Spec{Session: "probe"}); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if left := removeOldProbes(t.Context(), dir, open); !errors.Is(left, l.kill) {
		t.Errorf("left behind = %v, want %v", left, l.kill)
	}
	l.kill = nil
	if left := removeOldProbes(t.Context(), dir, open); left != nil {
		t.Errorf("left behind = %v", left)
	}
	gone(t, running)
}
