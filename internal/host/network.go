package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Resolver turns names into addresses for sandboxes.
type Resolver interface {
	LookupNS(ctx context.Context, name string) ([]*net.NS, error)
}

// answerTime is how long the resolver may take to answer.
const answerTime = 3 * time.Second

// Names reports whether the host's resolver answers: it is asked for the servers of
// the root of all names, which tells nobody anything.
func (m Machine) Names(ctx context.Context, r Resolver) Check {
	c := Check{Name: "names", State: Works}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	servers := m.nameServers()
	_, err := r.LookupNS(ctx, ".")
	if e, ok := errors.AsType[*net.DNSError](err); err == nil || ok && e.IsNotFound && !e.IsTimeout {
		c.Says = fmt.Sprintf("The host's resolver (%s) answers; sandboxes ask only the server.", servers)
		return c
	}
	c.State = Fails
	c.Says = fmt.Sprintf("The host's resolver (%s) does not answer, so sandboxes reach names of /etc/hosts and addresses only.", servers)
	c.Fix = "Let the server reach a resolver: see /etc/resolv.conf."
	return c
}

// nameServers are those of the host's configuration, in words.
func (m Machine) nameServers() string {
	text, err := m.read("/etc/resolv.conf")
	if err != nil {
		return "no /etc/resolv.conf"
	}
	var all []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" && net.ParseIP(f[1]) != nil {
			all = append(all, f[1])
		}
	}
	if len(all) == 0 {
		return "none in /etc/resolv.conf"
	}
	return strings.Join(all[:min(len(all), 3)], ", ") // resolvers use no more
}

// Raw says which drivers give sandboxes networks of their own out of a range that the
// operator has named.
func (m Machine) Raw(named string, drivers []string) Check {
	c := Check{Name: "raw", State: Works}
	switch missing := m.rawNeeds(); {
	case named == "":
		c.State, c.Says = Off, "No sandbox gets an interface of its own, because SOJOURN_RAW_NETWORK names no range."
		if len(missing) > 0 {
			c.Says += " It would also need " + list(missing) + "."
		}
	case len(drivers) > 0:
		c.Says = fmt.Sprintf("Sandboxes of %s that ask for network.raw get addresses of %s.", list(drivers), named)
	default:
		c.State, c.Says = Fails, fmt.Sprintf("No driver can give sandboxes addresses of %s.", named)
		c.Fix = "Unset SOJOURN_RAW_NETWORK, or run the server as root with net.ipv4.ip_forward=1 and nf_tables in the kernel."
		if len(missing) > 0 {
			c.Fix = "Unset SOJOURN_RAW_NETWORK, or give the server " + list(missing) + "."
		}
	}
	return c
}

func (m Machine) rawNeeds() (missing []string) {
	if m.UID != 0 {
		missing = append(missing, "root")
	}
	if on, err := m.read("/proc/sys/net/ipv4/ip_forward"); err == nil && on != "1" {
		missing = append(missing, "net.ipv4.ip_forward=1")
	}
	return missing
}
