package exec

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/output"
)

// benchBytes is how much an exec of a benchmark has written, in lines of text.
const benchBytes = 64 << 20

// BenchmarkOutput reads a large output through the contract, raw and as an event
// stream. The peer is a file server of the standard library on the same bytes; the
// ratio is its throughput in the same run to that of the contract.
func BenchmarkOutput(b *testing.B) {
	dir := b.TempDir()
	line := append(bytes.Repeat([]byte("x"), 79), '\n')
	data := bytes.Repeat(line, benchBytes/len(line))
	if err := os.WriteFile(filepath.Join(dir, "plain"), data, 0o600); err != nil {
		b.Fatal(err)
	}
	store, err := output.Open(filepath.Join(dir, "outputs"), output.Config{})
	if err != nil {
		b.Fatal(err)
	}
	w, err := store.Writer("s", "x")
	if err != nil {
		b.Fatal(err)
	}
	const step = 64 << 10
	for at := 0; at < len(data); at += step {
		if err := w.Append(int64(at), false, data[at:min(at+step, len(data))]); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := w.Finish(); err != nil {
		b.Fatal(err)
	}
	e := &stub{facts: openSession(), exec: sojourn.Exec{
		ID: "x", Session: "s", State: sojourn.ExecEnded, Result: sojourn.ExecResult{Code: new(0), Stdout: int64(len(data))},
	}, output: func() (*output.Reader, error) { return store.Reader("s", "x", nil) }}
	ours := httptest.NewServer(New(e, doorman{}, Config{}))
	defer ours.Close()
	peer := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer peer.Close()

	for _, c := range []struct{ name, accept string }{{"raw", "*/*"}, {"events", "text/event-stream"}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			var took, limit time.Duration
			for b.Loop() {
				took += fetch(b, ours.URL+sessionsPath+"/s/executions/x/output", c.accept, int64(len(data)))
				limit += fetch(b, peer.URL+"/plain", "*/*", int64(len(data)))
			}
			b.ReportMetric(limit.Seconds()/took.Seconds(), "of-file-server")
		})
	}
}

// fetch reads an answer to its end, which has at least so many bytes.
func fetch(b *testing.B, url, accept string, least int64) time.Duration {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), "GET", url, nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Authorization", "ApiKey admin")
	r.Header.Set("Accept", accept)
	began := time.Now()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); err != nil || n < least || res.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s, %d bytes, %v", url, res.Status, n, err)
	}
	return time.Since(began)
}
