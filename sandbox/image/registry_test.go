package image

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// seen is what a registry was asked.
type seen struct {
	mu   sync.Mutex
	list []string // scheme, host and whether there were credentials
}

func (s *seen) add(scheme, host string, auth bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := scheme + "://" + host
	if auth {
		line += " with credentials"
	}
	s.list = append(s.list, line)
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.list, "\n")
}

// password is a file with one, for Credential.
func password(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte("geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCredentialsAreNotSentInTheOpen: at private addresses the client would ask without
// TLS when nobody answers with it.
func TestCredentialsAreNotSentInTheOpen(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"10.1.2.3:5000", "registry.localhost:5000", "registry.corp.test"} {
		for _, insecure := range []bool{false, true} {
			asked := &seen{}
			answer := roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.URL.Scheme == "https" {
					return nil, os.ErrDeadlineExceeded
				}
				asked.add(r.URL.Scheme, r.URL.Host, r.Header.Get("Authorization") != "")
				w := httptest.NewRecorder()
				w.Header().Set("Www-Authenticate", `Basic realm="r"`)
				w.WriteHeader(http.StatusUnauthorized)
				resp := w.Result()
				resp.Request = r
				return resp, nil
			})
			cfg := Config{
				Allow: []string{host + "/*"}, Transport: answer,
				Credentials: []Credential{{Registry: host, Username: "u", PasswordFile: password(t)}},
			}
			if insecure {
				cfg.Insecure = []string{host}
			}
			if _, err := newStore(t, cfg).Ensure(t.Context(), host+"/team/base"); err == nil {
				t.Errorf("%s gave an image", host)
			}
			if (asked.String() != "") != insecure {
				t.Errorf("%s, insecure %v, was asked:\n%s", host, insecure, asked)
			}
		}
	}
}

// TestCredentialsDoNotFollowRedirects: registries point to stores of others.
func TestCredentialsDoNotFollowRedirects(t *testing.T) {
	t.Parallel()
	asked := &seen{}
	var inner *testRegistry
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.add("store", r.URL.Path[:9], r.Header.Get("Authorization") != "")
		http.Redirect(w, r, "http://"+inner.host+r.URL.Path+"?stored", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(store.Close)
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("u:geheim"))
	inner = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method != http.MethodGet || r.URL.RawQuery == "stored":
			return false
		case r.Header.Get("Authorization") != want:
			w.Header().Set("Www-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/blobs/"):
			// By another name, as another host would be.
			to := strings.Replace(store.URL, "127.0.0.1", "localhost", 1)
			http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	ref := inner.push(t, "team/base", makeImage(t, nil, here(t), archive(t, file{name: "a"})))
	s := newStore(t, Config{
		Allow: []string{"*"}, Credentials: []Credential{{Registry: inner.host, Username: "u", PasswordFile: password(t)}},
	})
	if _, err := s.Ensure(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if got := asked.String(); got == "" || strings.Contains(got, "credentials") {
		t.Errorf("the store was asked:\n%s", got)
	}
}
