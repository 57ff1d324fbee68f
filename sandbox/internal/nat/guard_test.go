package nat

import (
	"testing"
	"time"
)

// TestRulesThatSomebodyFlushedComeBack does what a firewall of the host does when it is
// started anew.
func TestRulesThatSomebodyFlushedComeBack(t *testing.T) {
	newWorld(t)
	n, err := Open(Config{Server: "/srv/flushed", Range: testRange}, none)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	c, err := n.conn()
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(guardEvery / 20) {
		there, err := n.installed()
		must(t, err)
		if there {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the rules have not come back")
		}
	}
	chains, err := c.ListChainsOfTableFamily(n.table().Family)
	must(t, err)
	if len(chains) != 4 {
		t.Errorf("%d chains have come back, want 4", len(chains))
	}
	must(t, n.Uninstall())
	if there, err := n.installed(); there || err != nil {
		t.Errorf("after Uninstall the rules are there: %v, %v", there, err)
	}
}
