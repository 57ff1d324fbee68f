package egress

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// bundleName is the file in the socket directory that holds what programs in the
// sandbox must trust: the roots of this host and the authority of the gate.
const bundleName = "ca.pem"

// bundleVariables tell programs where that file is.
var bundleVariables = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "PIP_CERT",
	"CARGO_HTTP_CAINFO", "NPM_CONFIG_CAFILE",
}

// broker is the credentials that a session may use now. A nil one has none.
type broker struct {
	active []*credential
	cas    []*authority // those of the gate
}

// newBroker returns the broker for the credentials with these names, which there are.
// Authorities are made for the hosts that have none, and stay, because programs in the
// sandbox keep what they have read of them. None speaks of hosts that the session has
// no credential for: those are nobody's business in the sandbox.
func (g *Gate) newBroker(names []string) (*broker, error) {
	if len(names) == 0 {
		return nil, nil
	}
	b := &broker{cas: g.authorities}
	without := make(map[string]bool)
	for _, name := range names {
		c := g.e.known[name]
		b.active = append(b.active, c)
		for _, r := range c.rules {
			if authorityFor(b.cas, r.Domain()) == nil {
				without[r.Domain()] = true
			}
		}
	}
	if len(without) == 0 {
		return b, nil
	}
	ca, err := newAuthority(slices.Sorted(maps.Keys(without)), g.e.cfg.Now)
	if err != nil {
		return nil, fmt.Errorf("make authority for credentials: %w", err)
	}
	b.cas = append(slices.Clone(b.cas), ca)
	bundle, err := systemRoots()
	if err != nil {
		g.log.Warn("roots of this host for sandboxes", "error", err)
	}
	for _, ca := range b.cas {
		bundle = append(bundle, ca.pem()...)
	}
	if err := writeBundle(g.spec.Dir, bundle); err != nil {
		return nil, fmt.Errorf("write authority for credentials: %w", err)
	}
	g.authorities = b.cas
	return b, nil
}

// forHost returns the first credential for a host and port, or nil.
func (b *broker) forHost(host string, port int) *credential {
	if b == nil {
		return nil
	}
	for _, c := range b.active {
		if c.matches(host, port) {
			return c
		}
	}
	return nil
}

// addEnv adds the placeholders, and where the authority is.
func (b *broker) addEnv(env map[string]string) {
	if b == nil {
		return
	}
	for _, name := range bundleVariables {
		env[name] = sandbox.SocketDir + "/" + bundleName
	}
	for _, c := range b.active {
		if c.Env != "" {
			env[c.Env] = c.placeholder
		}
	}
}

// serverTLS is what the gate shows to a client that asks for host.
func (b *broker) serverTLS(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			ca := authorityFor(b.cas, host)
			if ca == nil {
				return nil, errNoAuthority // the policy has just changed, and cuts this
			}
			return ca.leaf(host)
		},
	}
}

var errNoAuthority = errors.New("no authority signs for the host")

func (g *Gate) currentBroker() *broker {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.broker
}

// upstreamTLS is how the gate checks the servers that it sends secrets to.
func (g *Gate) upstreamTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: g.e.cfg.RootCAs}
}

// writeBundle replaces the bundle in one step. The sandbox can read the directory and
// not write to it.
func writeBundle(dir string, pem []byte) error {
	f, err := os.CreateTemp(dir, bundleName+".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it is gone when all went well
	_, err = f.Write(pem)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, bundleName))
}
