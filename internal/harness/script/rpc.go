package script

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string { return e.Message }

// params are those that any method may have.
type params struct {
	SessionID string `json:"sessionId"`
	Cwd       string `json:"cwd"`
	Prompt    []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"prompt"`
}

// receive handles one line from the client. Only prompts may take long; all
// else is answered in order.
func (a *agent) receive(line []byte) {
	var m message
	if json.Unmarshal(line, &m) != nil {
		a.send(object{"id": nil, "error": rpcError{-32700, "parse error"}})
		return
	}
	if m.Method == "" {
		a.mu.Lock()
		ch := a.waiting[string(m.ID)]
		delete(a.waiting, string(m.ID))
		a.mu.Unlock()
		if ch != nil {
			ch <- m
		}
		return
	}
	var p params
	if len(m.Params) > 0 && json.Unmarshal(m.Params, &p) != nil {
		a.reply(m, nil, &rpcError{-32602, "invalid params"})
		return
	}
	if a.env["SCRIPT_AGENT_HANG"] == m.Method {
		return
	}
	switch m.Method {
	case "session/prompt":
		a.prompt(m, p)
	case "session/cancel":
		a.cancel(p.SessionID)
	default:
		result, err := a.handle(m.Method, p)
		a.reply(m, result, err)
		if err == nil {
			a.after(m.Method, p)
		}
	}
}

// reply answers a request, unless it ended the agent.
func (a *agent) reply(m message, result any, err error) {
	var code exiting
	if errors.As(err, &code) {
		a.end(code)
		return
	}
	if len(m.ID) == 0 {
		return
	}
	if err == nil {
		a.send(object{"id": m.ID, "result": result})
		return
	}
	var e *rpcError
	if !errors.As(err, &e) {
		e = &rpcError{-32603, err.Error()}
	}
	a.send(object{"id": m.ID, "error": e})
}

// call requests something of the client.
func (a *agent) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id, ch := a.request(method, params)
	return a.await(ctx, id, ch)
}

func (a *agent) request(method string, params any) (id string, ch chan message) {
	a.mu.Lock()
	a.next++
	id, ch = "a"+strconv.Itoa(a.next), make(chan message, 1)
	a.waiting[`"`+id+`"`] = ch
	a.mu.Unlock()
	a.send(object{"id": id, "method": method, "params": params})
	return id, ch
}

// await waits for the answer. A cancelled turn waits too: the client has to
// answer every question, and the answer is then that it was cancelled.
func (a *agent) await(ctx context.Context, id string, ch chan message) (json.RawMessage, error) {
	select {
	case m := <-ch:
		if m.Error != nil {
			return nil, m.Error
		}
		return m.Result, nil
	case <-ctx.Done():
		a.mu.Lock()
		delete(a.waiting, `"`+id+`"`)
		a.mu.Unlock()
		return nil, context.Cause(ctx)
	}
}

// handle carries out everything but prompts and cancels.
func (a *agent) handle(method string, p params) (any, error) {
	crash := a.env["SCRIPT_AGENT_CRASH"]
	switch method {
	case "initialize":
		if crash == "initialize" {
			return nil, exiting(exitFault)
		}
		return a.introduce(), nil
	case "session/new":
		if crash == "new" {
			return nil, exiting(exitFault)
		}
		s := &session{id: "scr_" + strings.ToLower(rand.Text()), cwd: p.Cwd}
		if err := a.save(s); err != nil {
			return nil, err
		}
		a.keep(s)
		return object{"sessionId": s.id}, nil
	case "session/load", "session/resume":
		if crash == "load" {
			return nil, exiting(exitFault)
		}
		return a.reopen(method == "session/load", p)
	case "session/close":
		a.cancel(p.SessionID)
		a.mu.Lock()
		delete(a.open, p.SessionID)
		a.mu.Unlock()
		return object{}, nil
	default:
		return nil, &rpcError{-32601, "method not found: " + method}
	}
}

// after is what happens once a request was answered.
func (a *agent) after(method string, p params) {
	if method == "session/new" && a.env["SCRIPT_AGENT_CRASH"] == "after-new" {
		a.end(exiting(exitFault))
	}
	if method == "session/load" && strings.HasPrefix(a.env["SCRIPT_AGENT_REPLAY"], "late:") {
		a.replay(a.find(p.SessionID))
	}
}

// introduce is the answer to initialize.
func (a *agent) introduce() any {
	offers := object{"close": object{}}
	if a.env["SCRIPT_AGENT_NO_RESUME"] == "" {
		offers["resume"] = object{}
	}
	version := 1
	if n, err := strconv.Atoi(a.env["SCRIPT_AGENT_PROTOCOL"]); err == nil {
		version = n
	}
	return object{
		"protocolVersion": version, "authMethods": []any{},
		"agentInfo": object{"name": "script-agent", "title": "Script agent", "version": "1"},
		"agentCapabilities": object{
			"loadSession":         a.env["SCRIPT_AGENT_NO_LOAD"] == "",
			"promptCapabilities":  object{"image": true, "embeddedContext": true},
			"sessionCapabilities": offers,
		},
	}
}
