package nat

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
)

// guardEvery is how often it is seen to that the rules are there.
const guardEvery = time.Second

// guard puts the rules back when somebody has removed them: to flush all rules is how the
// firewalls of many hosts start anew. Without rules the links would lead everywhere, so
// they are removed if that fails.
func (n *Network) guard(ctx context.Context) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if there, err := n.installed(); there || err != nil { // one that cannot be told is asked again
			continue
		}
		if n.install() != nil {
			_ = n.remove(func(string) bool { return true }) // tried again with the rules
		}
	}
}

// installed reports whether the server's table is there.
func (n *Network) installed() (bool, error) {
	c, err := n.conn()
	if err != nil {
		return false, err
	}
	want := n.table()
	tables, err := c.ListTablesOfFamily(want.Family)
	if err != nil {
		return false, fmt.Errorf("list rules: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == want.Name }), nil
}

// unguard ends the guard.
func (n *Network) unguard() {
	if n.off != nil {
		n.off()
	}
	n.guarding.Wait()
}
