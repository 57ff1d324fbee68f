package keeper_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// toolServer answers with what it was sent; the path is the status to give.
func toolServer(w http.ResponseWriter, r *http.Request) {
	var status int
	if _, err := fmt.Sscanf(r.URL.Path, "/%d", &status); err != nil {
		status = 500
	}
	if status/100 == 3 {
		w.Header().Set("Location", "/200")
	}
	w.WriteHeader(status)
	body, _ := io.ReadAll(r.Body) // what is missing shows in the answer
	fmt.Fprintf(w, "%s %s %s %d %s", r.Method, r.Host, r.Header.Get("Content-Type"), r.ContentLength, body)
}

// proxy is the way out: it carries what asks for two names to a server, whose
// certificate has one of them.
func proxy(t *testing.T, plain http.Handler, secure string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodConnect:
			plain.ServeHTTP(w, r)
		case r.Host != "tool.example:443" && r.Host != "example.com:443":
			w.WriteHeader(http.StatusForbidden)
		default:
			tunnel(t, w, secure)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func tunnel(t *testing.T, w http.ResponseWriter, to string) {
	out, err := net.Dial("tcp", to)
	if err != nil {
		t.Error(err)
		return
	}
	defer out.Close()
	in, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer in.Close()
	fmt.Fprint(in, "HTTP/1.1 200 OK\r\n\r\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, in) // either side may end first
		out.Close()
	}()
	_, _ = io.Copy(in, out)
	in.Close()
	<-done
}

func TestFetchGoesThroughTheProxy(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.HandlerFunc(toolServer))
	defer secure.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(bundle, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	way := proxy(t, http.HandlerFunc(toolServer), secure.Listener.Addr().String())
	direct := httptest.NewServer(http.HandlerFunc(toolServer))
	defer direct.Close()
	vars := map[string]string{"HTTP_PROXY": way, "https_proxy": way, "SSL_CERT_FILE": bundle}

	_, dial := serve(t, keeper.Config{})
	c := dial()
	const sent = `{"a":1}`
	for i, tt := range []struct {
		url  string
		env  map[string]string
		code int
		out  string // with what was sent
		says string
	}{
		{"http://tool.example/200?key=sekret", vars, 0, "POST tool.example application/json 7 ", ""},
		{"http://tool.example/204", vars, 0, "", ""},
		{"http://tool.example/302?key=sekret", vars, 1, "POST tool.example application/json 7 ", "tool.example answered 302 Found\n"},
		{"http://u:sekret@tool.example/404", vars, 1, "POST tool.example application/json 7 ", "tool.example answered 404 Not Found\n"},
		{"https://example.com/200?key=sekret", vars, 0, "POST example.com application/json 7 ", ""},
		{"https://tool.example/200?key=sekret", vars, 1, "", "certificate is valid for"},
		{"https://other.example/200?key=sekret", vars, 1, "", "the proxy answered 403 Forbidden\n"},
		{"http://tool.example/200?key=sekret", nil, 1, "", "post to tool.example: no way out"},
		{"http://tool.example/200", map[string]string{"http_proxy": "http://93.184.216.34:80"}, 1, "", "not in the sandbox"},
		{"https://tool.example/200", map[string]string{"https_proxy": way, "SSL_CERT_FILE": "/dev/zero"}, 1, "", "not a regular file"},
		{"http://169.254.169.254/200", map[string]string{"no_proxy": "*"}, 1, "", "no way out"},
		{direct.URL + "/201", nil, 0, "POST " + direct.Listener.Addr().String() + " application/json 7 ", ""},
		{"http://127.0.0.1:" + fmt.Sprint(freePort(t)) + "/?sekret", nil, 1, "", "connection refused"},
		{"ftp://sekret/", nil, 2, "", "not a URL"},
		{"sekret", nil, 2, "", "not a URL"},
		{"http://[sekret", nil, 2, "", "not a URL"},
	} {
		id := fmt.Sprint(i)
		start(t, c, link.StartParams{ProcessID: id, Argv: []string{link.ProgramFetch, tt.url}, Env: tt.env, PipeStdin: true})
		if err := c.Write(t.Context(), id, "", []byte(sent)); err != nil && tt.code != 2 {
			t.Fatal(err)
		}
		if err := c.CloseStdin(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		o := follow(t, c, id)
		out, says := string(o.out["stdout"]), string(o.out["stderr"])
		if tt.out != "" {
			tt.out += sent
		}
		if o.ExitCode == nil || *o.ExitCode != tt.code || out != tt.out || !strings.Contains(says, tt.says) {
			t.Errorf("%s: code %v, stdout %q, stderr %q; want %d, %q, %q", tt.url, o.ExitCode, out, says, tt.code, tt.out, tt.says)
		}
		if strings.Contains(says, "sekret") || strings.Count(says, "\n") > 1 || (tt.says == "") != (says == "") {
			t.Errorf("%s: stderr is %q", tt.url, says)
		}
	}
}
