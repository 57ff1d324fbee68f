package harnesstest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Bare drives an agent as the smallest client of the protocol can: it decodes each
// line, keeps nothing and answers no questions. It is what a harness is measured
// beside.
type Bare struct {
	in           io.Writer
	out          *bufio.Reader
	next         int
	conversation string
}

// NewBare opens a conversation of the agent with those ends of its pipes, in the
// directory cwd.
func NewBare(stdin io.Writer, stdout io.Reader, cwd string) (*Bare, error) {
	b := &Bare{in: stdin, out: bufio.NewReaderSize(stdout, 64<<10)}
	_, err := b.call("initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}}, nil)
	if err != nil {
		return nil, err
	}
	result, err := b.call("session/new", map[string]any{"cwd": cwd, "mcpServers": []any{}}, nil)
	if err != nil {
		return nil, err
	}
	var opened struct{ SessionID string }
	if err := json.Unmarshal(result, &opened); err != nil {
		return nil, err
	}
	b.conversation = opened.SessionID
	return b, nil
}

// Prompt gives the agent a prompt and calls each with every update until the turn
// has ended with end_turn.
func (b *Bare) Prompt(text string, each func(update json.RawMessage)) error {
	result, err := b.call("session/prompt", map[string]any{
		"sessionId": b.conversation, "prompt": []any{map[string]any{"type": "text", "text": text}},
	}, each)
	if err != nil {
		return err
	}
	var end struct{ StopReason string }
	if err := json.Unmarshal(result, &end); err != nil || end.StopReason != "end_turn" {
		return fmt.Errorf("the turn ended with %s (%v)", result, err)
	}
	return nil
}

// call makes a request and returns its result.
func (b *Bare) call(method string, params any, each func(json.RawMessage)) (json.RawMessage, error) {
	b.next++
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": b.next, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	if _, err := b.in.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	for {
		line, err := b.out.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		var m struct {
			ID     int
			Method string
			Params struct{ Update json.RawMessage }
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, fmt.Errorf("%s: %w in %.200s", method, err, line)
		}
		switch {
		case m.Method == "session/update" && each != nil:
			each(m.Params.Update)
		case m.Method == "" && m.ID == b.next && m.Error != nil:
			return nil, fmt.Errorf("%s: the agent refused: %s", method, m.Error)
		case m.Method == "" && m.ID == b.next:
			return m.Result, nil
		}
	}
}
