package model_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/model"
)

// BenchmarkDelta measures a streamed token, beside reading its line alone.
func BenchmarkDelta(b *testing.B) {
	delta := map[model.API]string{
		model.Anthropic: `{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"word "}}`,
		model.Responses: `{"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"word "}`,
		model.Chat:      `{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}`,
	}
	const tokens = 2000
	for api, events := range replies {
		b.Run(string(api), func(b *testing.B) {
			at := map[model.API]int{model.Anthropic: 7, model.Responses: 4, model.Chat: 3}[api]
			var all []string
			all = append(all, events[:at]...)
			for range tokens {
				all = append(all, delta[api])
			}
			all = append(all, events[at:]...)
			var stream bytes.Buffer
			for _, e := range all {
				fmt.Fprintf(&stream, "data: %s\n\n", e)
			}
			e := model.Endpoint{API: api, BaseURL: "http://model", Client: &http.Client{Transport: answering(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = w.Write(stream.Bytes())
			})}}
			begun := time.Now()
			for range 20 {
				for line := range bytes.SplitSeq(stream.Bytes(), []byte("\n\n")) {
					if !json.Valid(bytes.TrimPrefix(line, []byte("data: "))) && len(line) > 0 && !bytes.HasSuffix(line, []byte("[DONE]")) {
						b.Fatal("the stream is not JSON")
					}
				}
			}
			floor := time.Since(begun) / 20
			n := 0
			for b.Loop() {
				n++
				if _, err := e.Ask(b.Context(), model.Request{}, silent); err != nil {
					b.Fatal(err)
				}
			}
			per := b.Elapsed() / time.Duration(n)
			b.ReportMetric(float64(per.Nanoseconds())/tokens, "ns/token")
			b.ReportMetric(float64(per)/float64(floor), "x-json-scan")
		})
	}
}
