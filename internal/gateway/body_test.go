package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/gateway"
)

// unsized hides the length of a body, so that it is sent in chunks.
type unsized struct{ io.Reader }

func TestBodiesThatCannotBePassedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	const path = "/model/openai/v1/responses"
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"nothing":                 {``, 400},
		"no JSON":                 {`model=best`, 400},
		"a list":                  {`["model","best"]`, 400},
		"cut":                     {`{"model":"best","input":"x`, 400},
		"more behind":             {`{"model":"best"} {"model":"other"}`, 400},
		"no model":                {`{"input":"x","in":{"model":"best"}}`, 400},
		"a number":                {`{"model":5}`, 400},
		"twice":                   {`{"model":"best","input":"x","model":"forbidden"}`, 400},
		"twice, escaped":          {`{"model":"best","input":"x","\u006dodel":"forbidden"}`, 400},
		"twice, in capitals":      {`{"model":"best","input":"x","MODEL":"forbidden"}`, 400},
		"in capitals only":        {`{"Model":"best"}`, 400},
		"a name that is not read": {`{"model":"best","mod\u00eal":1}`, 400},
		"deep":                    {`{"model":"best","input":` + strings.Repeat("[", 20000), 400},
		"a very long name":        {`{"model":"` + strings.Repeat("a", 5000) + `"}`, 400},
	} {
		resp, body := r.do(r.ask(path, c.body))
		if resp.StatusCode != c.status || !strings.Contains(body, `"error"`) {
			t.Errorf("%s: %d %s, want %d", name, resp.StatusCode, body, c.status)
		}
	}
	req := r.ask(path, `{"model":"best"}`)
	req.Header.Set("Content-Encoding", "gzip")
	if resp, body := r.do(req); resp.StatusCode != 415 {
		t.Errorf("compressed: %d %s, want 415", resp.StatusCode, body)
	}
	if n := len(r.mock.Records()); n != 0 {
		t.Errorf("%d requests came to the provider", n)
	}
}

func TestEscapedModelIsReadAsItIsMeant(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	r.do(r.ask("/model/openai/v1/responses", `{"\u006dodel":"\u0062est","input":"x"}`))
	if got, want := string(r.mock.Records()[0].Body), `{"\u006dodel":"vendor-model-2026.1","input":"x"}`; got != want {
		t.Errorf("the provider got %s, want %s", got, want)
	}
}

// TestLargeBodiesAreStreamed: with the model at either end, with and without a length.
func TestLargeBodiesAreStreamed(t *testing.T) {
	t.Parallel()
	filler := strings.Repeat("0123456789abcde\\n", 3<<20/17)
	for name, body := range map[string]string{
		"first": `{"model":"best","input":"` + filler + `"}`,
		"last":  `{"input":"` + filler + `","model":"best"}`,
	} {
		for _, sized := range []bool{true, false} {
			r := newRig(t, nil, nil)
			req := r.ask("/model/openai/v1/responses", body)
			if !sized {
				req.Body, req.ContentLength = io.NopCloser(unsized{strings.NewReader(body)}), -1
			}
			resp, got := r.do(req)
			want := strings.Replace(body, `"best"`, `"vendor-model-2026.1"`, 1)
			if resp.StatusCode != 200 || string(r.mock.Records()[0].Body) != want {
				t.Errorf("model %s, sized %v: %d %.200s", name, sized, resp.StatusCode, got)
			}
			if c := r.only(); c.RequestBytes != int64(len(body)) {
				t.Errorf("%+v: want %d bytes", c, len(body))
			}
		}
	}
}

// TestSecondModelFarBehindEndsTheRequest: it is found after the provider has the
// beginning, and before it has the end.
func TestSecondModelFarBehindEndsTheRequest(t *testing.T) {
	t.Parallel()
	var whole atomic.Bool
	done := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer close(done)
		_, err := io.Copy(io.Discard, req.Body)
		whole.Store(err == nil)
	}), nil)
	resp, body := r.do(r.ask("/model/openai/v1/responses", `{"model":"best","input":"`+strings.Repeat("x", 4<<20)+`","model":"forbidden"}`))
	if resp.StatusCode != 400 || !strings.Contains(body, "twice") {
		t.Errorf("%d %s, want 400", resp.StatusCode, body)
	}
	<-done
	if whole.Load() {
		t.Error("the provider had all of the request")
	}
}

func TestOversizedBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	huge := func() io.Reader {
		return io.MultiReader(strings.NewReader(`{"model":"best","input":"`), io.LimitReader(zeros{}, 65<<20), strings.NewReader(`"}`))
	}
	for _, sized := range []bool{true, false} {
		req := r.ask("/model/openai/v1/responses", "")
		req.Body, req.ContentLength, req.GetBody = io.NopCloser(huge()), -1, nil
		if sized {
			req.ContentLength = 24 + 65<<20 + 2
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil { // the connection may end before all of the body is away
			t.Logf("sized %v: %v", sized, err)
			continue
		}
		if resp.StatusCode != 413 {
			t.Errorf("sized %v: %d, want 413", sized, resp.StatusCode)
		}
		resp.Body.Close()
	}
	for _, rec := range r.mock.Records() {
		if rec.Body != nil {
			t.Errorf("the provider had %d bytes of a body that is too large", len(rec.Body))
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// TestStalledRequestGivesItsPlaceBack: with nothing of the body, a part of it, and more
// than is read before the provider is asked.
func TestStalledRequestGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	for _, sent := range []string{"", `{"model":"best",`, `{"model":"best","input":"` + strings.Repeat("x", 2<<20)} {
		r := newRig(t, nil, func(c *gateway.Config, b *gateway.Binding) { c.Patience, b.MaxCalls = 50*time.Millisecond, 1 })
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		go fmt.Fprintf(conn, "POST /model/openai/v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 8000000\r\n\r\n%s", token, sent)
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil && resp.StatusCode/100 == 2 {
			t.Errorf("%d bytes and no more: %d", len(sent), resp.StatusCode)
		}
		conn.Close()
		// There is one place: this waits for none.
		if resp, body := r.do(r.ask("/model/openai/v1/responses", `{"model":"best","input":"x"}`)); resp.StatusCode == 429 {
			t.Errorf("after %d bytes and no more: %d %s, want the place back", len(sent), resp.StatusCode, body)
		}
	}
}

func TestWhatIsHeldIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, func(c *gateway.Config, _ *gateway.Binding) { c.MaxHeldBytes = 256 << 10 })
	big := `{"input":"` + strings.Repeat("x", 200<<10) + `","model":"best"}`
	for range 3 {
		if resp, body := r.do(r.ask("/model/openai/v1/responses", big)); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Fatalf("%d %s, want 503", resp.StatusCode, body)
		}
		// What was taken is given back.
		if resp, body := r.do(r.ask("/model/openai/v1/responses", `{"input":"x","model":"best"}`)); resp.StatusCode != 200 {
			t.Fatalf("%d %s, want 200", resp.StatusCode, body)
		}
	}
}
