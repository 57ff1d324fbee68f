package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/gateway"
)

// paced answers with a stream of n events, and bodies of requests are read.
func paced(n int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the client may be gone
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		fmt.Fprint(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n")
		for i := range n {
			fmt.Fprintf(w, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"word %d \"}}\n\n", i)
			_ = rc.Flush() // the client may be gone
		}
		fmt.Fprint(w, "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
	})
}

// BenchmarkStream measures calls through the gateway beside the same calls made
// directly, in turn: what a call of one event and what each further event costs more.
func BenchmarkStream(b *testing.B) {
	for _, events := range []int{1, 1000} {
		b.Run(fmt.Sprintf("events=%d", events), func(b *testing.B) {
			up := httptest.NewServer(paced(events))
			defer up.Close()
			g, err := gateway.New(gateway.Config{Log: slog.New(slog.DiscardHandler), Providers: []gateway.Provider{{
				Name: "p", API: gateway.Anthropic, BaseURL: up.URL, Key: realKey, Models: []gateway.Model{{Name: "best", Upstream: "m", Price: &prices}},
			}}})
			if err != nil {
				b.Fatal(err)
			}
			front := httptest.NewServer(g.Handler(gateway.Binding{Token: token}))
			defer front.Close()
			direct, through := time.Duration(0), time.Duration(0)
			for b.Loop() {
				direct += call(b, up.URL+"/v1/messages", events)
				through += call(b, front.URL+"/model/anthropic/v1/messages", events)
			}
			n := float64(b.N)
			b.ReportMetric(float64(through-direct)/n/1e3, "added-µs/call")
			b.ReportMetric(float64(through-direct)/n/float64(events)/1e3, "added-µs/event")
			b.ReportMetric(float64(through)/float64(direct), "times-direct")
		})
	}
}

// call makes one call and reads its events.
func call(b *testing.B, url string, events int) time.Duration {
	b.Helper()
	start := time.Now()
	req, err := http.NewRequest(http.MethodPost, url, io.NopCloser(&request))
	if err != nil {
		b.Fatal(err)
	}
	request.at = 0
	req.ContentLength = int64(len(request.text))
	req.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	lines, n := bufio.NewScanner(resp.Body), 0
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			n++
		}
	}
	if lines.Err() != nil || n != events+3 {
		b.Fatalf("%d events, %v", n, lines.Err())
	}
	return time.Since(start)
}

// request is a usual request of an agent: 100 kB of conversation, the model first.
var request = body{text: `{"model":"best","max_tokens":100,"messages":[{"role":"user","content":"` + filler(100<<10) + `"}]}`}

type body struct {
	text string
	at   int
}

func (r *body) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	if r.at += n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func filler(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = "some words of a conversation "[i%29]
	}
	return string(text)
}
