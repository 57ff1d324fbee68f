package script

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// entry is one line of a conversation's file.
type entry struct {
	Role string `json:"role"` // "user", "agent" or "memory"
	Text string `json:"text"`
	Key  string `json:"key,omitempty"` // of a memory
}

// session is an open conversation.
type session struct {
	id, cwd string
	log     []entry            // belongs to the turn, or to nobody
	stop    context.CancelFunc // ends the turn; guarded by the agent's mu
}

func (a *agent) keep(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[s.id] = s
}

func (a *agent) find(id string) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open[id]
}

// cancel ends the session's turn, if there is one and it listens.
func (a *agent) cancel(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.open[id]; s != nil && s.stop != nil && !a.deaf {
		s.stop()
	}
}

func (a *agent) file(id string) string { return filepath.Join(a.dir, filepath.Base(id)+".jsonl") }

// save appends to the conversation and returns when the disk has it.
func (a *agent) save(s *session, entries ...entry) (err error) {
	f, err := os.OpenFile(a.file(s.id), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the conversation: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil && e != nil {
			err = fmt.Errorf("close the conversation: %w", e)
		}
	}()
	for _, e := range entries {
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode a message: %w", err)
		}
		if _, err := f.Write(append(b, '\n')); err != nil {
			return fmt.Errorf("write the conversation: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync the conversation: %w", err)
	}
	s.log = append(s.log, entries...)
	return nil
}

// reopen resumes or loads a conversation.
func (a *agent) reopen(load bool, p params) (any, error) {
	s := &session{id: p.SessionID, cwd: p.Cwd}
	missing := &rpcError{-32002, "session not found: " + p.SessionID}
	switch a.env["SCRIPT_AGENT_LOAD"] {
	case "notfound":
		return nil, missing
	case "error":
		return nil, &rpcError{-32603, "the history cannot be read"}
	case "empty":
		a.keep(s)
		return object{}, nil
	}
	b, err := os.ReadFile(a.file(p.SessionID))
	if err != nil || p.SessionID == "" {
		return nil, missing
	}
	for line := range strings.Lines(string(b)) {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil {
			s.log = append(s.log, e)
		}
	}
	a.keep(s)
	if load && !strings.HasPrefix(a.env["SCRIPT_AGENT_REPLAY"], "late:") {
		a.replay(s)
	}
	return object{}, nil
}

// replay sends the conversation again, or as many updates as the environment
// asks for.
func (a *agent) replay(s *session) {
	want := strings.TrimPrefix(a.env["SCRIPT_AGENT_REPLAY"], "late:")
	if n, err := strconv.Atoi(want); err == nil {
		for i := range n {
			if i%10 == 9 {
				a.update(s, object{"sessionUpdate": "usage_update", "used": i, "size": 1000})
				continue
			}
			a.chunk(s, "agent_message_chunk", "replay "+strconv.Itoa(i))
		}
		return
	}
	for _, e := range s.log {
		switch e.Role {
		case "user":
			a.chunk(s, "user_message_chunk", e.Text)
		case "agent":
			a.chunk(s, "agent_message_chunk", e.Text)
		}
	}
}

// recall is what the conversation holds under key.
func (s *session) recall(key string) (value string, ok bool) {
	for _, e := range s.log {
		if e.Role == "memory" && e.Key == key {
			value, ok = e.Text, true
		}
	}
	return value, ok
}
