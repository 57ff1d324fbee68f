package keeper

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	// maxFetchBytes bounds the request of a fetch, which is held in memory.
	maxFetchBytes = 8 << 20
	// maxBundleBytes bounds a file of certificates.
	maxBundleBytes = 4 << 20
	// maxComplaint bounds what a fetch says of a failure.
	maxComplaint = 400
)

// fetchProgram posts its stdin as JSON to a URL and writes the answer's body to
// stdout. It goes the way that its environment gives to every program of the
// sandbox and no other: without a proxy there it reaches the sandbox itself only.
// Redirections are not followed. Exit code 0 is an answer of 2xx, 1 any other or
// none, with a line on stderr that says so and tells nothing of the URL but its
// host; 2 is a wrong call.
func fetchProgram(ctx context.Context, p Proc) int {
	defer unblock(ctx, p)()
	target, err := fetchTarget(p.Args[1:])
	if err != nil {
		complain(p, err)
		return 2
	}
	status, err := fetch(ctx, p, target)
	switch {
	case err != nil:
		complain(p, fmt.Errorf("post to %s: %s", target.Host, oneLine(err)))
	case status/100 != 2:
		complain(p, fmt.Errorf("%s answered %d %s", target.Host, status, http.StatusText(status)))
	default:
		return 0
	}
	return 1
}

func fetchTarget(args []string) (*url.URL, error) {
	if len(args) != 1 {
		return nil, errors.New("usage: " + link.ProgramFetch + " URL")
	}
	target, err := url.Parse(args[0])
	if err != nil || target.Hostname() == "" || target.Scheme != "http" && target.Scheme != "https" {
		return nil, errors.New("not a URL of http or https") // the URL may hold secrets
	}
	return target, nil
}

// fetch makes the request and copies the body of its answer.
func fetch(ctx context.Context, p Proc, target *url.URL) (status int, err error) {
	body, err := io.ReadAll(io.LimitReader(p.Stdin, maxFetchBytes+1))
	if err != nil {
		return 0, fmt.Errorf("read the request: %w", err)
	}
	if len(body) > maxFetchBytes {
		return 0, fmt.Errorf("the request has more than %d bytes", maxFetchBytes)
	}
	transport, err := fetchTransport(p, target)
	if err != nil {
		return 0, err
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("not a URL that can be asked for")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sojourn")
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the URL
		}
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(p.Stdout, resp.Body); err != nil {
		return 0, fmt.Errorf("read the answer: %w", err)
	}
	return resp.StatusCode, nil
}

// fetchTransport is for one request. It dials loopback addresses only, which is
// where the proxy is.
func fetchTransport(p Proc, target *url.URL) (*http.Transport, error) {
	proxy, err := fetchProxy(p, target)
	if err != nil {
		return nil, err
	}
	roots, err := fetchRoots(p)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy: http.ProxyURL(proxy),
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialLoopback(ctx, address)
		},
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("the proxy answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
			}
			return nil
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true,
		DisableCompression:     true, // bytes are bytes
	}, nil
}

// fetchProxy finds the proxy for a URL; nil for what is in the sandbox itself.
func fetchProxy(p Proc, target *url.URL) (*url.URL, error) {
	host := target.Hostname()
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return nil, nil
	}
	name := target.Scheme + "_proxy"
	value := cmp.Or(variable(p, name), variable(p, strings.ToUpper(name)))
	if value == "" {
		return nil, errors.New("no way out of this sandbox: its programs have no proxy")
	}
	proxy, err := url.Parse(value)
	if err != nil || proxy.Host == "" {
		return nil, errors.New(name + " is not a URL")
	}
	return proxy, nil
}

// fetchRoots are the certificates that the environment names; nil means those
// of the system.
func fetchRoots(p Proc) (*x509.CertPool, error) {
	name := variable(p, "SSL_CERT_FILE")
	if name == "" {
		return nil, nil
	}
	f, err := openFile(p.MapPath(name), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open certificates: %w", err)
	}
	defer f.Close()
	bundle, err := io.ReadAll(io.LimitReader(f, maxBundleBytes))
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("no certificate in %s", name)
	}
	return roots, nil
}

// variable is a variable of the program's environment; "" when it has none.
func variable(p Proc, name string) string {
	for _, kv := range p.Env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// oneLine keeps what is said of an error short, whoever has a word in it.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > maxComplaint {
		text = strings.ToValidUTF8(text[:maxComplaint], "") + "…"
	}
	return text
}
