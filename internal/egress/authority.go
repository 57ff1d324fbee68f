package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// authorityTime is longer than any sandbox lives.
	authorityTime = 365 * 24 * time.Hour
	leafTime      = 24 * time.Hour
	leafRenewal   = time.Hour // before its end
	clockSkew     = time.Hour
	// maxLeafs bounds those that are kept; a wildcard has any number of hosts.
	maxLeafs = 256
)

// authority signs for the hosts of credentials, and is trusted in one sandbox only.
// Its key is never written anywhere.
type authority struct {
	key  *ecdsa.PrivateKey // of the authority, and of no leaf
	cert *x509.Certificate
	now  func() time.Time

	leafKey *ecdsa.PrivateKey
	mu      sync.Mutex
	leafs   map[string]*tls.Certificate
}

// newAuthority makes an authority that can sign for domains and what is below them,
// and for nothing else.
func newAuthority(domains []string, now func() time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	start := now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Sojourn credentials of this sandbox"},
		NotBefore: start.Add(-clockSkew), NotAfter: start.Add(authorityTime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:                    x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: domains,
		ExcludedIPRanges: everyAddress(),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{key: key, cert: cert, now: now, leafKey: leafKey, leafs: make(map[string]*tls.Certificate)}, nil
}

// authorityFor returns the first that can sign for host, or nil.
func authorityFor(cas []*authority, host string) *authority {
	for _, a := range cas {
		for _, d := range a.cert.PermittedDNSDomains {
			if host == d || strings.HasSuffix(host, "."+d) {
				return a
			}
		}
	}
	return nil
}

// pem is the authority's certificate.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// leaf returns a certificate for host.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if c := a.leafs[host]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafRenewal)) {
		return c, nil
	}
	template := &x509.Certificate{
		SerialNumber: serial(), DNSNames: []string{host},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafTime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("sign for %s: %w", host, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("sign for %s: %w", host, err)
	}
	if len(a.leafs) >= maxLeafs {
		clear(a.leafs)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: cert}
	a.leafs[host] = c
	return c, nil
}

// everyAddress is all of IPv4 and IPv6.
func everyAddress() []*net.IPNet {
	return []*net.IPNet{
		{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
	}
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return new(big.Int).SetBytes(b)
}

// rootFiles are where systems keep the roots that they trust, in one file.
var rootFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

const maxRoots = 8 << 20

// systemRoots returns the roots that this host trusts, ending in a line break.
func systemRoots() ([]byte, error) {
	files := rootFiles
	if own := os.Getenv("SSL_CERT_FILE"); own != "" {
		files = append([]string{own}, files...)
	}
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil || info.Size() > maxRoots {
			continue
		}
		b, err := os.ReadFile(path)
		if err == nil && len(b) > 0 {
			return append(bytes.TrimRight(b, "\n"), '\n'), nil
		}
	}
	return nil, errors.New("no file with trusted roots was found")
}
