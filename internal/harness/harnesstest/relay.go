package harnesstest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// RelayRow is the runtime of [Relay], started by command. Its prompts are what the
// model is asked; package modeltest says what that can be.
func RelayRow(command ...string) harness.Runtime {
	return harness.Runtime{
		ID: "relay", Label: "Relay", Command: command, API: harness.APIOpenAI,
		Env: map[string]string{"RELAY_URL": "{{model_url}}", "RELAY_KEY": "{{token}}", "RELAY_MODEL": "{{model}}"},
	}
}

// Relay is an agent that asks its model what it was asked itself, and says each piece
// of the answer as it comes. It has the faults of agents that tell the truth about
// nothing: whatever came of its call it ends the turn with end_turn, and it says that
// it has used one token. A 429 it obeys: it asks again after as long as that says.
//
// Each of its updates has the time at which it was written in _meta.at, in
// nanoseconds since 1970.
//
// RELAY_URL, RELAY_KEY and RELAY_MODEL say whom it asks, over chat completions.
// RELAY_SOCKET=1 makes it dial the socket that leads out of the sandbox, in one in
// which nothing listens at [sandbox.EgressAddress].
//
// It is a [keeper.Program].
func Relay(ctx context.Context, p keeper.Proc) int {
	ctx, stop := context.WithCancel(ctx)
	if c, ok := p.Stdin.(io.Closer); ok {
		defer context.AfterFunc(ctx, func() { _ = c.Close() })() // so that the reading ends
	}
	r := &relay{p: p, ctx: ctx, env: map[string]string{}, stop: func() {}}
	for _, e := range p.Env {
		k, v, _ := strings.Cut(e, "=")
		r.env[k] = v
	}
	transport := &http.Transport{DisableCompression: true}
	if r.env["RELAY_SOCKET"] != "" {
		transport.DialContext = r.dialSocket
	}
	r.client.Transport = transport
	defer transport.CloseIdleConnections()
	defer r.turns.Wait()
	defer stop()
	in := bufio.NewReaderSize(p.Stdin, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		r.receive(line)
	}
}

// RelayMain is Relay as a process of its own.
func RelayMain() int {
	return Relay(context.Background(), keeper.Proc{
		Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
}

var _ keeper.Program = Relay

// relay is a running Relay.
type relay struct {
	p      keeper.Proc
	ctx    context.Context
	env    map[string]string
	client http.Client
	turns  sync.WaitGroup
	stop   context.CancelFunc // ends the latest turn; belongs to the reading goroutine

	out sync.Mutex // held for one line
}

// dialSocket dials through the descriptor of the directory, because the path of a
// socket is limited to 107 bytes.
func (r *relay) dialSocket(ctx context.Context, _, _ string) (net.Conn, error) {
	dir, err := os.Open(r.p.MapPath(sandbox.SocketDir))
	if err != nil {
		return nil, fmt.Errorf("open the directory of the socket: %w", err)
	}
	defer dir.Close()
	return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), sandbox.EgressSocketName))
}

func (r *relay) receive(line []byte) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Prompt []struct{ Text string } }
	}
	if json.Unmarshal(line, &m) != nil {
		return
	}
	switch m.Method {
	case "initialize":
		r.send(map[string]any{"id": m.ID, "result": map[string]any{
			"protocolVersion": 1, "authMethods": []any{}, "agentCapabilities": map[string]any{},
			"agentInfo": map[string]any{"name": "relay", "version": "1"},
		}})
	case "session/new":
		r.send(map[string]any{"id": m.ID, "result": map[string]any{"sessionId": "relay"}})
	case "session/cancel":
		r.stop()
	case "session/prompt":
		ctx, stop := context.WithCancel(r.ctx)
		r.stop = stop
		r.turns.Go(func() {
			defer stop()
			reason := "end_turn"
			for _, part := range m.Params.Prompt {
				r.ask(ctx, part.Text)
			}
			if ctx.Err() != nil {
				reason = "cancelled"
			}
			r.update(map[string]any{"sessionUpdate": "usage_update", "used": 1, "size": 1000})
			r.send(map[string]any{"id": m.ID, "result": map[string]any{"stopReason": reason}})
		})
	}
}

// ask asks the model, as often as that is busy, and says what it says.
func (r *relay) ask(ctx context.Context, prompt string) {
	for ctx.Err() == nil {
		again, err := r.askOnce(ctx, prompt)
		if err != nil {
			r.say("The model failed: " + err.Error())
		}
		if again == 0 {
			return
		}
		r.say(fmt.Sprintf("The model is busy for %v.", again))
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// askOnce makes one call. again is after how long to make it again, or 0.
func (r *relay) askOnce(ctx context.Context, prompt string) (again time.Duration, err error) {
	body, err := json.Marshal(map[string]any{
		"model": r.env["RELAY_MODEL"], "stream": true, "stream_options": map[string]any{"include_usage": true},
		"messages": []any{map[string]any{"role": "user", "content": prompt}},
	})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.env["RELAY_URL"]+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.env["RELAY_KEY"])
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return 0, r.relay(resp.Body)
	case http.StatusTooManyRequests:
		seconds, err := strconv.Atoi(cmp.Or(resp.Header.Get("Retry-After"), "1"))
		return time.Duration(seconds) * time.Second, err
	default:
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what came of it will do
		return 0, fmt.Errorf("%s: %s", resp.Status, why)
	}
}

// relay says the pieces of a streamed answer.
func (r *relay) relay(stream io.Reader) error {
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || bytes.Equal(data, []byte("[DONE]")) {
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return err
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content != "" {
				r.say(c.Delta.Content)
			}
		}
	}
	return lines.Err()
}

func (r *relay) say(text string) {
	r.update(map[string]any{"sessionUpdate": "agent_message_chunk", "content": map[string]any{"type": "text", "text": text}})
}

func (r *relay) update(u map[string]any) {
	u["_meta"] = map[string]any{"at": time.Now().UnixNano()}
	r.send(map[string]any{"method": "session/update", "params": map[string]any{"sessionId": "relay", "update": u}})
}

func (r *relay) send(m map[string]any) {
	m["jsonrpc"] = "2.0"
	b, _ := json.Marshal(m) // of strings and numbers
	r.out.Lock()
	defer r.out.Unlock()
	// When nobody reads any more, the input ends as well.
	_, _ = r.p.Stdout.Write(append(b, '\n'))
}

// At returns when [Relay] wrote the update in the data of an event.
func At(update json.RawMessage) (at time.Time, ok bool) {
	var d struct {
		Meta struct{ At int64 } `json:"_meta"`
	}
	if json.Unmarshal(update, &d) != nil || d.Meta.At == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, d.Meta.At), true
}
