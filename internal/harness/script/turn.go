package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// turn is one prompt being carried out.
type turn struct {
	a     *agent
	s     *session
	ctx   context.Context
	ask   bool     // @write and @run ask before
	calls int      // tool calls so far; their ids begin anew in each turn
	said  []string // becomes the agent's entry in the conversation
	late  []string // to be said after the answer
}

// errCancelled ends a turn that the client has called off.
var errCancelled = errors.New("cancelled")

// stopping ends a turn with a reason; nil stands for none.
type stopping struct{ reason *string }

func (s stopping) Error() string { return "stop" }

// instructions are the words of the language; doc.go explains them.
var instructions = map[string]func(t *turn, arg string) error{
	"@say":           func(t *turn, arg string) error { t.say(unescape(arg)); return nil },
	"@think":         func(t *turn, arg string) error { t.a.chunk(t.s, "agent_thought_chunk", arg); return nil },
	"@plan":          (*turn).plan,
	"@usage":         (*turn).usage,
	"@call":          (*turn).toolCall,
	"@write":         (*turn).writeFile,
	"@run":           (*turn).run,
	"@permission":    func(t *turn, arg string) error { t.ask = arg == "on"; return nil },
	"@ask":           (*turn).askUser,
	"@withdraw":      (*turn).withdraw,
	"@request":       (*turn).requestClient,
	"@remember":      (*turn).remember,
	"@recall":        (*turn).recall,
	"@history":       (*turn).history,
	"@cat":           (*turn).cat,
	"@sha":           (*turn).sha,
	"@env":           func(t *turn, arg string) error { t.say(t.a.env[arg]); return nil },
	"@sleep":         func(t *turn, arg string) error { return t.sleep(time.Duration(number(arg)) * time.Millisecond) },
	"@work":          (*turn).work,
	"@flood":         (*turn).flood,
	"@big":           func(t *turn, arg string) error { t.chunk(strings.Repeat("x", number(arg))); return nil },
	"@late":          func(t *turn, arg string) error { t.late = append(t.late, arg); return nil },
	"@noise":         func(t *turn, arg string) error { t.a.write([]byte(unescape(arg) + "\n")); return nil },
	"@noise-bytes":   (*turn).noiseBytes,
	"@raw":           func(t *turn, arg string) error { t.a.write([]byte(arg + "\n")); return nil },
	"@stderr":        func(t *turn, arg string) error { t.a.stderr(arg); return nil },
	"@fork":          (*turn).fork,
	"@ignore-cancel": (*turn).ignoreCancel,
	"@stop":          func(_ *turn, arg string) error { return stopping{&arg} },
	"@stop-no-reason": func(*turn, string) error {
		return stopping{}
	},
	"@error":  func(_ *turn, arg string) error { return &rpcError{-32603, arg} },
	"@exit":   func(_ *turn, arg string) error { return exiting(number(arg)) },
	"@signal": (*turn).die,
}

// number reads a count; what is none counts as 0.
func number(s string) int {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// prompt begins a turn; it is answered when the turn ends.
func (a *agent) prompt(m message, p params) {
	s := a.find(p.SessionID)
	if s == nil {
		a.reply(m, nil, &rpcError{-32002, "session not found: " + p.SessionID})
		return
	}
	var text []string
	for _, c := range p.Prompt {
		if c.Type == "text" {
			text = append(text, c.Text)
		}
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	a.mu.Lock()
	busy := s.stop != nil
	if !busy {
		s.stop = func() { cancel(errCancelled) }
	}
	a.mu.Unlock()
	if busy {
		cancel(nil)
		a.reply(m, nil, &rpcError{-32600, "a prompt is open"})
		return
	}
	a.turns.Go(func() {
		defer cancel(nil)
		t := &turn{a: a, s: s, ctx: ctx}
		result, err := t.carryOut(strings.Join(text, "\n"))
		a.mu.Lock()
		s.stop = nil
		a.mu.Unlock()
		a.reply(m, result, err)
		for _, l := range t.late {
			a.chunk(s, "agent_message_chunk", l)
		}
	})
}

// carryOut works through the prompt and returns the answer to it.
func (t *turn) carryOut(prompt string) (any, error) {
	if err := t.a.save(t.s, entry{Role: "user", Text: prompt}); err != nil {
		return nil, err
	}
	if t.a.env["SCRIPT_AGENT_CRASH"] == "prompt" {
		t.say("about to crash")
		return nil, exiting(exitFault)
	}
	err := t.interpret(prompt)
	if code := exiting(0); errors.As(err, &code) {
		return nil, err
	}
	if t.a.ctx.Err() != nil {
		return nil, context.Cause(t.a.ctx)
	}
	if e := t.a.save(t.s, entry{Role: "agent", Text: strings.Join(t.said, "\n")}); e != nil {
		return nil, e
	}
	var stop stopping
	switch {
	case errors.Is(err, errCancelled):
		return object{"stopReason": "cancelled"}, nil
	case errors.As(err, &stop) && stop.reason == nil:
		return object{}, nil
	case errors.As(err, &stop):
		return object{"stopReason": *stop.reason}, nil
	case err != nil:
		return nil, err
	}
	return object{"stopReason": "end_turn"}, nil
}

// interpret runs the prompt's instructions in order.
func (t *turn) interpret(prompt string) error {
	scripted := false
	for line := range strings.Lines(prompt) {
		verb, arg, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		if !strings.HasPrefix(verb, "@") {
			continue
		}
		scripted = true
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		do, ok := instructions[verb]
		if !ok {
			t.say("unknown instruction: " + verb)
			continue
		}
		if err := do(t, arg); err != nil {
			return err
		}
	}
	if !scripted {
		t.say("echo: " + prompt)
	}
	return nil
}

// say says text and remembers having said it.
func (t *turn) say(text string) {
	t.said = append(t.said, text)
	t.chunk(text)
}

func (t *turn) chunk(text string) { t.a.chunk(t.s, "agent_message_chunk", text) }

func (t *turn) plan(arg string) error {
	var entries []object
	for i, text := range strings.Split(arg, ";") {
		status := "pending"
		if i == 0 {
			status = "in_progress"
		}
		entries = append(entries, object{"content": strings.TrimSpace(text), "priority": "medium", "status": status})
	}
	t.a.update(t.s, object{"sessionUpdate": "plan", "entries": entries})
	return nil
}

func (t *turn) usage(arg string) error {
	used, size, _ := strings.Cut(arg, " ")
	t.a.update(t.s, object{"sessionUpdate": "usage_update", "used": number(used), "size": number(size)})
	return nil
}

func (t *turn) remember(arg string) error {
	key, value, _ := strings.Cut(arg, " ")
	return t.a.save(t.s, entry{Role: "memory", Key: key, Text: value})
}

func (t *turn) recall(key string) error {
	value, ok := t.s.recall(key)
	if !ok {
		value = "nothing is remembered as " + key
	}
	t.say(value)
	return nil
}

func (t *turn) history(string) error {
	texts := []string{}
	for _, e := range t.s.log {
		if e.Role == "user" {
			texts = append(texts, e.Text)
		}
	}
	b, err := json.Marshal(texts)
	if err != nil {
		return err
	}
	t.say(string(b))
	return nil
}

// sleep waits for d, or until the turn is cancelled.
func (t *turn) sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}

func (t *turn) work(arg string) error {
	whole, step, _ := strings.Cut(arg, " ")
	steps := max(1, number(whole)/max(1, number(step)))
	for i := range steps {
		if err := t.sleep(time.Duration(max(1, number(step))) * time.Millisecond); err != nil {
			return err
		}
		t.say(fmt.Sprintf("step %d of %d", i+1, steps))
	}
	return nil
}

func (t *turn) flood(arg string) error {
	count, size, _ := strings.Cut(arg, " ")
	padding := strings.Repeat(".", number(size))
	for i := range number(count) {
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		t.chunk(strconv.Itoa(i) + padding)
	}
	return nil
}

func (t *turn) noiseBytes(arg string) error {
	line := strings.Repeat("noise ", 12) + "\n"
	for left := number(arg); left > 0 && t.ctx.Err() == nil; left -= len(line) {
		t.a.write([]byte(line))
	}
	return nil
}

func (t *turn) ignoreCancel(string) error {
	t.a.ignoreCancel()
	return nil
}
