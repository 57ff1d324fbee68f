package egress_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
)

const secret = "sk-very-secret"

func newLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// headers is a TLS server for the names of httptest's certificate that answers with
// the header it got.
func headers(t *testing.T) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(r.Header)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// brokered is a world with a server at example.com (which httptest's certificate is
// for) and a credential for it.
func brokered(t *testing.T, change func(*egress.Credential)) (*world, egress.Config, *bytes.Buffer) {
	t.Helper()
	w := newWorld()
	s := headers(t)
	w.serve("example.com", 443, addrOf(s))
	w.serve("other.test", 443, addrOf(s))
	plain := httptest.NewServer(s.Config.Handler)
	t.Cleanup(plain.Close)
	w.serve("example.com", 80, addrOf(plain))
	c := egress.Credential{Name: "api", Hosts: []string{"example.com"}, Header: "authorization", Prefix: "Bearer ", Value: secret, Env: "API_KEY"}
	if change != nil {
		change(&c)
	}
	cfg := w.config()
	cfg.RootCAs, cfg.Credentials = pool(s), []egress.Credential{c}
	logged := &bytes.Buffer{}
	cfg.Log = newLog(logged)
	return w, cfg, logged
}

func withCredential(mode sojourn.NetworkMode, rules ...string) sojourn.NetworkPolicy {
	return sojourn.NetworkPolicy{Mode: mode, Allow: rules, Credentials: []string{"api"}}
}

// trusting is a client that trusts what programs in the sandbox trust.
func (b *box) trusting() *http.Client {
	b.t.Helper()
	bundle, err := os.ReadFile(filepath.Join(b.dir, "ca.pem"))
	if err != nil {
		b.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		b.t.Fatal("the bundle holds no certificate")
	}
	return b.client(func(tr *http.Transport) { tr.TLSClientConfig = &tls.Config{RootCAs: roots} })
}

func fetch(t *testing.T, c *http.Client, url string, header http.Header) (http.Header, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	got := http.Header{}
	if resp.StatusCode != 200 {
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	return got, json.NewDecoder(resp.Body).Decode(&got)
}

func basic(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }

func TestBrokerPutsSecretsWherePlaceholdersAre(t *testing.T) {
	t.Parallel()
	_, cfg, logged := brokered(t, nil)
	b := open(t, cfg, withCredential(sojourn.NetworkAllow, "example.com"))
	for _, c := range []struct{ name, field, sent, want string }{
		{"absent", "Authorization", "", "Bearer " + secret},
		{"bearer", "Authorization", "Bearer sojourn-credential-api", "Bearer " + secret},
		{"basic", "Authorization", basic("user:sojourn-credential-api"), basic("user:" + secret)},
		{"of the client's own", "Authorization", "Bearer mine", "Bearer mine"},
		{"basic of the client's own", "Authorization", basic("me:mine"), basic("me:mine")},
		{"of another credential", "Authorization", "Bearer sojourn-credential-api-2", "Bearer sojourn-credential-api-2"},
	} {
		h := http.Header{}
		if c.sent != "" {
			h.Set(c.field, c.sent)
		}
		got, err := fetch(t, b.trusting(), "https://example.com/", h)
		if err != nil || got.Get(c.field) != c.want {
			t.Errorf("%s: %s = %q, %v, want %q", c.name, c.field, got.Get(c.field), err, c.want)
		}
	}
	env := b.gate.Env()
	if env["API_KEY"] != "sojourn-credential-api" || env["SSL_CERT_FILE"] != "/run/sojourn/ca.pem" || env["https_proxy"] != "http://127.0.0.1:3128" {
		t.Errorf("Env = %v", env)
	}
	told := fmt.Sprint(b.decided(), env, cfg.Credentials, logged.String())
	told += fmt.Sprintf("%+v %#v", cfg.Credentials[0], cfg.Credentials[0])
	bundle, err := os.ReadFile(filepath.Join(b.dir, "ca.pem"))
	if err != nil || strings.Contains(told, secret) || strings.Contains(string(bundle), secret) || strings.Contains(string(bundle), "PRIVATE") {
		t.Errorf("the secret was told: %s, %v", told, err)
	}
}

// TestSecretsGoWhereServersExpectThem: what else a request says comes back in answers,
// as an origin does in the fields of CORS.
func TestSecretsGoWhereServersExpectThem(t *testing.T) {
	t.Parallel()
	_, cfg, _ := brokered(t, func(c *egress.Credential) { c.Header, c.Prefix = "X-Api-Key", "" })
	b := open(t, cfg, withCredential(sojourn.NetworkAllow, "example.com"))
	const placeholder = "sojourn-credential-api"
	sent := http.Header{"X-Api-Key": {placeholder}, "Authorization": {"token " + placeholder}}
	echoed := []string{"Origin", "Content-Type", "Accept", "X-Request-Id", "Idempotency-Key", "Cookie", "Referer", "X-Token"}
	for _, name := range echoed {
		sent[name] = []string{placeholder}
	}
	got, err := fetch(t, b.trusting(), "https://example.com/", sent)
	if err != nil || got.Get("X-Api-Key") != secret || got.Get("Authorization") != "token "+secret {
		t.Errorf("the server got %v, %v", got, err)
	}
	for _, name := range echoed {
		if got.Get(name) != placeholder {
			t.Errorf("%s = %q", name, got.Get(name))
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodTrace, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.trusting().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 403 || resp.Header.Get("Sojourn-Refused") != "bad_request" {
		t.Errorf("TRACE = %s", resp.Status)
	}
}

func TestBasicCredentialsHaveAUser(t *testing.T) {
	t.Parallel()
	_, cfg, _ := brokered(t, func(c *egress.Credential) { c.Header, c.Prefix, c.User = "", "", "git" })
	b := open(t, cfg, withCredential(sojourn.NetworkAllow, "example.com"))
	if got, err := fetch(t, b.trusting(), "https://example.com/", nil); err != nil || got.Get("Authorization") != basic("git:"+secret) {
		t.Errorf("Authorization = %q, %v", got.Get("Authorization"), err)
	}
}

func TestSecretsGoToTheirHostsOnly(t *testing.T) {
	t.Parallel()
	w, cfg, _ := brokered(t, nil)
	b := open(t, cfg, withCredential(sojourn.NetworkOpen))
	placeholder := http.Header{"Authorization": {"Bearer sojourn-credential-api"}}
	insecure := b.client(func(tr *http.Transport) { tr.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} })
	for _, url := range []string{"https://other.test/", "http://example.com/"} {
		got, err := fetch(t, insecure, url, placeholder)
		if err != nil || got.Get("Authorization") != placeholder.Get("Authorization") {
			t.Errorf("%s got %q, %v, want the placeholder", url, got.Get("Authorization"), err)
		}
	}
	// The gate does not speak for others, and its authority cannot.
	if _, err := fetch(t, b.trusting(), "https://other.test/", nil); err == nil {
		t.Error("the bundle speaks for a host without a credential")
	}
	// A server that does not prove itself gets nothing.
	w.serve("example.com", 443, addrOf(headersOfStranger(t)))
	if got, err := fetch(t, b.trusting(), "https://example.com/", nil); err == nil {
		t.Errorf("a server with another authority got %v", got)
	}
}

// headersOfStranger is a server whose certificate nobody trusts.
func headersOfStranger(t *testing.T) *httptest.Server {
	t.Helper()
	cert := selfSigned(t, "example.com")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it got %v", r.Header) }))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestPlainHTTPGetsSecretsOnlyWhenToldTo(t *testing.T) {
	t.Parallel()
	_, cfg, _ := brokered(t, func(c *egress.Credential) { c.PlainHTTP = true })
	b := open(t, cfg, withCredential(sojourn.NetworkAllow, "example.com"))
	if got, err := fetch(t, b.client(), "http://example.com/", nil); err != nil || got.Get("Authorization") != "Bearer "+secret {
		t.Errorf("Authorization = %q, %v", got.Get("Authorization"), err)
	}
}

func TestCredentialsComeAndGoWithThePolicy(t *testing.T) {
	t.Parallel()
	_, cfg, _ := brokered(t, nil)
	b := open(t, cfg, allow("example.com"))
	if _, ok := b.gate.Env()["SSL_CERT_FILE"]; ok {
		t.Error("programs are told to trust what is not there")
	}
	b.gate.SetPolicy(withCredential(sojourn.NetworkAllow, "example.com"))
	client := b.trusting()
	if got, err := fetch(t, client, "https://example.com/", nil); err != nil || got.Get("Authorization") == "" {
		t.Errorf("with the credential: %v, %v", got, err)
	}
	b.gate.SetPolicy(allow("example.com"))
	if got, err := fetch(t, client, "https://example.com/", nil); err == nil && got.Get("Authorization") != "" {
		t.Errorf("after it was taken away: %v", got)
	}
	e, err := egress.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	bad := sojourn.NetworkPolicy{Mode: sojourn.NetworkOpen, Credentials: []string{"nobodys"}}
	if err := e.Check(bad); sojourn.CodeOf(err) != sojourn.CodeInvalid {
		t.Errorf("Check of a credential that is not there = %v", err)
	}
}

// TestAuthoritiesSpeakOfTheSessionsHostsOnly: others are nobody's business in its sandbox,
// and what programs have read of the first stays true when there is another.
func TestAuthoritiesSpeakOfTheSessionsHostsOnly(t *testing.T) {
	t.Parallel()
	_, cfg, _ := brokered(t, nil)
	cfg.Credentials = append(cfg.Credentials,
		egress.Credential{Name: "late", Hosts: []string{"*.late.test", "example.com"}, Value: secret},
		egress.Credential{Name: "theirs", Hosts: []string{"hidden.test"}, Value: secret})
	p := withCredential(sojourn.NetworkAllow, "example.com", "*.late.test")
	b := open(t, cfg, p)
	domains := func() (list []string) {
		bundle, err := os.ReadFile(filepath.Join(b.dir, "ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil && strings.Contains(c.Subject.CommonName, "Sojourn") {
				list = append(list, strings.Join(c.PermittedDNSDomains, "+"))
			}
		}
		return list
	}
	if got := fmt.Sprint(domains()); got != "[example.com]" {
		t.Errorf("authorities for %s", got)
	}
	early := b.trusting()
	p.Credentials = append(p.Credentials, "late")
	b.gate.SetPolicy(p)
	if got := fmt.Sprint(domains()); got != "[example.com late.test]" {
		t.Errorf("authorities for %s", got)
	}
	for name, c := range map[string]*http.Client{"before": early, "after": b.trusting()} {
		if _, err := fetch(t, c, "https://example.com/", nil); err != nil {
			t.Errorf("what was read %s the second: %v", name, err)
		}
	}
}

func TestBadCredentialsAreRefusedWithoutTheSecret(t *testing.T) {
	t.Parallel()
	good := egress.Credential{Name: "api", Hosts: []string{"a.test"}, Value: secret}
	for name, change := range map[string]func(*egress.Credential){
		"name": func(c *egress.Credential) { c.Name = "a b" }, "no host": func(c *egress.Credential) { c.Hosts = nil },
		"address":   func(c *egress.Credential) { c.Hosts = []string{"192.0.2.1"} },
		"bad host":  func(c *egress.Credential) { c.Hosts = []string{"https://a.test"} },
		"no value":  func(c *egress.Credential) { c.Value = "" },
		"two lines": func(c *egress.Credential) { c.Value = secret + "\r\nX: y" }, "header": func(c *egress.Credential) { c.Header = "a b" },
		"prefix": func(c *egress.Credential) { c.Prefix = "\n" }, "user": func(c *egress.Credential) { c.User = "a:b" },
		"both": func(c *egress.Credential) { c.User, c.Header = "u", "X" }, "variable": func(c *egress.Credential) { c.Env = "A=B" },
	} {
		c := good
		change(&c)
		_, err := egress.New(egress.Config{Credentials: []egress.Credential{c}})
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: New = %v", name, err)
		}
	}
	if _, err := egress.New(egress.Config{Credentials: []egress.Credential{good, good}}); err == nil {
		t.Error("two credentials with one name are taken")
	}
}

// selfSigned is a certificate for a name that nobody else vouches for.
func selfSigned(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
