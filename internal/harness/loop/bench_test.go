package loop_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// BenchmarkStreamedToken measures what the loop adds to a token that the model
// streams: its way through the drive into committed events. The same stream is
// read by the model's client alone in the same run.
func BenchmarkStreamedToken(b *testing.B) {
	const tokens = 20_000
	m := newMock(b)
	m.fault = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		var all strings.Builder
		for range tokens {
			all.WriteString(`data: {"choices":[{"index":0,"delta":{"content":"word "}}]}` + "\n\n")
		}
		all.WriteString(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n")
		_, _ = w.Write([]byte(all.String()))
		return true
	}
	bench := newBench(b, m, model.Chat)
	bench.Completed(b, "warm", "@say x")
	item, err := model.Chat.User(model.Part{Type: "text", Text: "x"})
	if err != nil {
		b.Fatal(err)
	}
	const plainly = 5
	begun := time.Now()
	for range plainly {
		_, err := m.endpoint(model.Chat).Ask(b.Context(), model.Request{Items: []json.RawMessage{item}}, func(model.Delta) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
	alone := time.Since(begun) / plainly
	n := 0
	for b.Loop() {
		n++
		bench.Completed(b, sojourn.RunID(fmt.Sprint("r", n)), "@say x")
	}
	per := b.Elapsed() / time.Duration(n)
	b.ReportMetric(float64(per.Nanoseconds())/tokens, "ns/token")
	b.ReportMetric(float64(per)/float64(alone), "x-client-alone")
	b.ReportMetric(float64((per-alone).Nanoseconds())/tokens, "added-ns/token")
}

// BenchmarkCommand measures a call of the shell, all its commits among it,
// beside the model's two replies alone.
func BenchmarkCommand(b *testing.B) {
	m := newMock(b)
	bench := newBench(b, m, model.Chat)
	bench.Completed(b, "warm", "@say x")
	begun := time.Now()
	const plainly = 20
	for i := range plainly {
		bench.Completed(b, sojourn.RunID(fmt.Sprint("p", i)), "@say x")
	}
	alone := time.Since(begun) / plainly
	n := 0
	for b.Loop() {
		n++
		bench.Completed(b, sojourn.RunID(fmt.Sprint("r", n)), `@call shell {"command":"true"}`+"\n--\nsay end")
	}
	per := b.Elapsed() / time.Duration(n)
	b.ReportMetric(float64(per)/float64(alone), "x-turn-without")
}
