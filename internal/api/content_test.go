package api

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
)

// keyed serves one operation under a contract with a scheme of its own.
func keyed(s *Service) {
	s.c.Contract.Scheme, s.c.Contract.KeyHeader, s.c.Contract.RateHeaders = "ApiKey", "X-API-Key", true
	s.c.Auth.(*door).keys["ApiKey admin"] = sojourn.Principal{Key: "admin", Project: "p", Kind: sojourn.KeyAdmin}
}

func TestAKeyMayComeInAHeaderOfItsOwn(t *testing.T) {
	server, _ := serve(t, Config{}, keyed)
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"scheme":           {[]string{"Authorization", "ApiKey admin"}, 200},
		"bearer":           {[]string{"Authorization", "Bearer admin"}, 200},
		"header":           {[]string{"Authorization", "", "X-API-Key", "admin"}, 200},
		"wrong header":     {[]string{"Authorization", "", "X-API-Key", "other"}, 401},
		"none":             {[]string{"Authorization", ""}, 401},
		"the first counts": {[]string{"Authorization", "ApiKey other", "X-API-Key", "admin"}, 401},
	} {
		a := call(t, server, "GET", "/things/x", "", c.headers...)
		if a.status != c.status {
			t.Errorf("%s: %d %s, want %d", name, a.status, a.body, c.status)
		}
		if got := a.header.Get("WWW-Authenticate"); a.status == 401 && (got != `ApiKey realm="sojourn"` || !strings.Contains(a.err.Message, "ApiKey")) {
			t.Errorf("%s: challenge %q, message %q; want both to speak of ApiKey", name, got, a.err.Message)
		}
	}
	plain, _ := serve(t, Config{})
	if a := call(t, plain, "GET", "/things/x", "", "Authorization", "", "X-API-Key", "admin"); a.status != 401 {
		t.Errorf("a contract without that header took it: %d", a.status)
	}
}

func TestWhatIsLeftOfTheRateIsTold(t *testing.T) {
	server, _ := serve(t, Config{Settings: Settings{Rate: Rate{PerSecond: 0.01, Burst: 2}}}, keyed)
	for _, want := range []string{"1", "0", "0"} {
		a := call(t, server, "GET", "/things/x", "")
		reset, err := strconv.Atoi(a.header.Get("X-RateLimit-Reset"))
		if a.header.Get("X-RateLimit-Remaining") != want || a.header.Get("X-RateLimit-Limit") != "2" || err != nil || reset < 1 || reset > 200 {
			t.Errorf("%d, %v: want %s of 2 left", a.status, a.header, want)
		}
	}
}

// serveContent serves at /content what open answers with.
func serveContent(t *testing.T, open func(answer func(io.ReadSeeker))) *httptest.Server {
	t.Helper()
	server, _ := serve(t, Config{}, func(s *Service) {
		Register(s, Operation{ID: "content", Method: "GET", Path: "/content", Scope: "read", Download: "text/plain"},
			func(context.Context, *struct{}) (*huma.StreamResponse, error) {
				return &huma.StreamResponse{Body: func(hc huma.Context) {
					open(func(body io.ReadSeeker) {
						r, w := humago.Unwrap(hc)
						w.Header().Set("Content-Type", "text/plain")
						Content(w, r, body)
					})
				}}, nil
			})
	})
	return server
}

func TestContentIsAnsweredInParts(t *testing.T) {
	server := serveContent(t, func(answer func(io.ReadSeeker)) { answer(strings.NewReader("0123456789")) })
	for _, c := range []struct {
		method, parts string
		status        int
		body, length  string
	}{
		{"GET", "", 200, "0123456789", "10"},
		{"GET", "bytes=3-5", 206, "345", "3"},
		{"GET", "bytes=-2", 206, "89", "2"},
		{"HEAD", "", 200, "", "10"},
		{"GET", "bytes=0-99999999999999999999", 206, "0123456789", "10"},
		{"GET", "bytes=8-9223372036854775807", 206, "89", "2"},
		{"GET", "bytes=-99999999999999999999", 206, "0123456789", "10"},
		{"GET", "Bytes=, 3-5 ,", 206, "345", "3"},
		{"GET", "bytes=-0,1-2", 206, "12", "2"},
		{"GET", "items=0-1", 200, "0123456789", "10"},
		{"GET", "bytes=abc", 200, "0123456789", "10"},
		{"GET", "bytes=5-2", 200, "0123456789", "10"},
		{"GET", "bytes=99999999999999999999-99999999999999999998", 200, "0123456789", "10"},
		{"GET", "bytes=+1-2", 200, "0123456789", "10"},
		{"GET", "bytes=-", 200, "0123456789", "10"},
		{"GET", "bytes=", 200, "0123456789", "10"},
		{"GET", "bytes 0-1", 200, "0123456789", "10"},
		{"GET", "bytes=0-1,x", 200, "0123456789", "10"},
	} {
		a := call(t, server, c.method, "/content", "", "Range", c.parts)
		if a.status != c.status || a.body != c.body || a.header.Get("Content-Length") != c.length || a.header.Get("Content-Type") != "text/plain" {
			t.Errorf("%s %s: %d %q %v, want %d %q", c.method, c.parts, a.status, a.body, a.header, c.status, c.body)
		}
	}
	for _, parts := range []string{"bytes=-0", "bytes=10-11", "bytes=99999999999999999999-", "bytes=10-99999999999999999999"} {
		if a := call(t, server, "GET", "/content", "", "Range", parts); a.status != 416 || a.header.Get("Content-Range") != "bytes */10" {
			t.Errorf("%s: %d %q %v, want 416", parts, a.status, a.body, a.header)
		}
	}
	a := call(t, server, "GET", "/content", "", "Range", "bytes=10-")
	if a.status != 416 || a.err.Code != "invalid" || a.header.Get("Content-Range") != "bytes */10" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("beyond the end: %d %q %v, want 416 in the envelope", a.status, a.body, a.header)
	}
}

// TestAFileIsSentAsWhatItHolds: the kernel sends what a copy would have, and a file that is
// shorter than it was said to be breaks the answer off.
func TestAFileIsSentAsWhatItHolds(t *testing.T) {
	text := make([]byte, 5*writeStep/2)
	for i := range text {
		text[i] = 'a' + byte(i*i%23)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, append([]byte("before"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	size := int64(len(text))
	server := serveContent(t, func(answer func(io.ReadSeeker)) {
		f, err := os.Open(file)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		answer(NewStretch(f, int64(len("before")), size))
	})
	for _, c := range []struct {
		method, parts string
		status        int
		from, to      int
	}{
		{"GET", "", 200, 0, len(text)},
		{"HEAD", "", 200, 0, 0},
		{"GET", "bytes=7-9", 206, 7, 10},
		{"GET", "bytes=-70000", 206, len(text) - 70000, len(text)},
		{"GET", "bytes=65536-140000", 206, 65536, 140001},
	} {
		a := call(t, server, c.method, "/content", "", "Range", c.parts)
		if want := string(text[c.from:c.to]); a.status != c.status || a.body != want {
			t.Errorf("%s %s: %d with %d bytes, want %d with %d", c.method, c.parts, a.status, len(a.body), c.status, len(want))
		}
	}
	a := call(t, server, "GET", "/content", "", "Range", "bytes=1-2,5-6")
	if a.status != 206 || !strings.Contains(a.body, string(text[1:3])) || !strings.Contains(a.body, string(text[5:7])) {
		t.Errorf("two parts: %d %q", a.status, a.body)
	}
	size++
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/content", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("%d bytes of %d were taken for all", len(got), size)
	}
}

// TestNothingHasNoParts: whatever part of an empty body is asked for, the answer is well
// formed.
func TestNothingHasNoParts(t *testing.T) {
	server := serveContent(t, func(answer func(io.ReadSeeker)) { answer(strings.NewReader("")) })
	for _, parts := range []string{"bytes=0-", "bytes=-5", "bytes=-0", "bytes=3-4", "bytes=0-0,2-2"} {
		if a := call(t, server, "GET", "/content", "", "Range", parts); a.status != 200 || a.body != "" || a.header.Get("Content-Range") != "" {
			t.Errorf("%s of nothing: %d %q %v, want 200 and nothing", parts, a.status, a.body, a.header)
		}
	}
}

func TestAFeedEndsWellOnlyWhenItsSourceSaysSo(t *testing.T) {
	feed := func(path string, last error) func(*Service) {
		return func(s *Service) {
			Register(s, Operation{ID: path, Method: "GET", Path: "/" + path, Scope: "read"},
				func(context.Context, *struct{}) (*huma.StreamResponse, error) {
					return &huma.StreamResponse{Body: func(hc huma.Context) {
						r, w := humago.Unwrap(hc)
						Feed(w, r, func(_ context.Context, write func([]byte) error) error {
							if err := write([]byte("data: 1\n\n")); err != nil {
								return err
							}
							return last
						})
					}}, nil
				})
		}
	}
	server, _ := serve(t, Config{Settings: Settings{Heartbeat: time.Minute}}, feed("well", io.EOF), feed("stream", io.ErrNoProgress))
	if a := call(t, server, "GET", "/well", ""); a.body != ": open\n\ndata: 1\n\n" {
		t.Errorf("got %q, want all of it and the end", a.body)
	}
	_, body := dial(t, server, "admin", "")
	if _, err := io.ReadAll(body); err == nil {
		t.Error("a broken feed looks like its end")
	}
}
