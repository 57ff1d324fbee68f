package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The parts of contract C that the demo reads.
type (
	demoSession struct {
		ID        string `json:"id"`
		Workspace struct {
			State     string `json:"state"`
			ExpiresAt string `json:"expiresAt"`
		} `json:"workspace"`
		Continuation struct {
			CanContinue   bool    `json:"canContinue"`
			State         string  `json:"state"`
			Reason        *string `json:"reason"`
			BoundaryRunID string  `json:"boundaryRunId"`
			Conversation  struct {
				Fidelity string `json:"fidelity"`
			} `json:"conversation"`
			Workspace struct {
				Fidelity string `json:"fidelity"`
			} `json:"workspace"`
		} `json:"continuation"`
	}
	demoEvent struct {
		Sequence int64           `json:"sequence"`
		RunID    string          `json:"runId"`
		Type     string          `json:"type"`
		Data     json.RawMessage `json:"data"`
	}
)

// demoClient speaks contract C over plain HTTP.
type demoClient struct {
	server *demoServer
	http   http.Client
}

// call makes one request and decodes the answer into out.
func (c *demoClient) call(ctx context.Context, method, path string, body, out any) error {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server.url()+path, in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.server.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, strings.TrimSpace(string(b)))
	}
	return json.Unmarshal(b, out)
}

func (c *demoClient) session(ctx context.Context, id string) (demoSession, error) {
	var out struct{ Session demoSession }
	err := c.call(ctx, http.MethodGet, "/v1/sessions/"+id, nil, &out)
	return out.Session, err
}

// follower reads a session's event stream from the start, across the death of
// the server, as a client would: it asks again with Last-Event-ID.
type follower struct {
	client  *demoClient
	session string
	show    func(demoEvent)

	mu       sync.Mutex
	events   []demoEvent
	breaks   int    // how often the stream was cut
	wrong    string // the first sequence number that was not the next one
	newEvent chan struct{}
}

func newFollower(c *demoClient, session string, show func(demoEvent)) *follower {
	return &follower{client: c, session: session, show: show, newEvent: make(chan struct{})}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		f.stream(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (f *follower) stream(ctx context.Context) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.client.server.url()+"/v1/sessions/"+f.session+"/events", nil)
	if err != nil {
		return
	}
	req.Header.Set("Authorization", "Bearer "+f.client.server.key)
	req.Header.Set("Accept", "text/event-stream")
	f.mu.Lock()
	if n := len(f.events); n > 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(f.events[n-1].Sequence, 10))
	}
	f.mu.Unlock()
	res, err := f.client.http.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		return
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			if ctx.Err() == nil {
				f.mu.Lock()
				f.breaks++
				f.mu.Unlock()
			}
			return
		}
		data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data: ")
		var e demoEvent
		if ok && json.Unmarshal([]byte(data), &e) == nil {
			f.add(e)
		}
	}
}

func (f *follower) add(e demoEvent) {
	f.mu.Lock()
	if want := int64(len(f.events)) + 1; e.Sequence != want && f.wrong == "" {
		f.wrong = fmt.Sprintf("expected %d, got %d", want, e.Sequence)
	}
	f.events = append(f.events, e)
	close(f.newEvent)
	f.newEvent = make(chan struct{})
	f.mu.Unlock()
	f.show(e)
}

// await waits until an event satisfies ok, looking from the start.
func (f *follower) await(ctx context.Context, what string, ok func(demoEvent) bool) (demoEvent, error) {
	next := 0
	for {
		f.mu.Lock()
		seen, more := f.events[next:], f.newEvent
		next = len(f.events)
		f.mu.Unlock()
		for _, e := range seen {
			if ok(e) {
				return e, nil
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return demoEvent{}, fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
}

// all returns the events that arrived so far.
func (f *follower) all() (events []demoEvent, wrong string, breaks int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]demoEvent(nil), f.events...), f.wrong, f.breaks
}

// agentText is what the agent said in a run, joined.
func agentText(events []demoEvent, run string) string {
	var b strings.Builder
	for _, e := range events {
		if e.RunID == run {
			b.WriteString(chunkText(e))
		}
	}
	return b.String()
}

// chunkText is the text of an agent message event; "" for others.
func chunkText(e demoEvent) string {
	if e.Type != "wamp.agent.update" {
		return ""
	}
	var d struct {
		Update struct {
			Kind    string `json:"sessionUpdate"`
			Content json.RawMessage
		} `json:"update"`
	}
	if json.Unmarshal(e.Data, &d) != nil || d.Update.Kind != "agent_message_chunk" {
		return ""
	}
	var content struct{ Text string }
	if json.Unmarshal(d.Update.Content, &content) != nil {
		return ""
	}
	return content.Text + "\n"
}
