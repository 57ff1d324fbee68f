package modeltest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Turn is one message of a conversation, the same for all APIs.
type Turn struct {
	Role    string   `json:"role"` // user, assistant or tool
	Text    string   `json:"text,omitempty"`
	Calls   []string `json:"calls,omitempty"`   // names of the tools that were called
	Results []string `json:"results,omitempty"` // what tools have answered

	parts []string // the parts of the text, where the message has several
}

// script returns the part of a message that says what to do: the last one with
// directives, or else the last one that is not context which an agent has added.
func (t Turn) script() string {
	for i := len(t.parts) - 1; i >= 0; i-- {
		added := strings.HasPrefix(strings.TrimSpace(t.parts[i]), "<")
		if directive.MatchString(t.parts[i]) || i == len(t.parts)-1 && !added {
			return t.parts[i]
		}
	}
	return t.Text
}

// reply is what the model answers.
type reply struct {
	think, text string
	call        *call
	delay       time.Duration // before the first byte
	pace        time.Duration // between events
	usage       []int64       // input, output, cached and reasoning tokens; none is an estimate

	status     int    // an error in place of the reply
	retryAfter string // seconds, with it
	cut        bool   // the connection ends in the middle of the stream
	short      bool   // the stream ends without its last event
	fail       string // an error event in the stream
}

var directive = regexp.MustCompile(`(?m)^[ \t]*@mock[ \t]+(\w+)[ \t]?(.*)$`)

// contexts begin what agents add in the user's name.
var contexts = []string{
	"<environment_context", "<user_instructions", "<system-reminder", "<session_context", "<permissions",
	"# AGENTS.md", "This is the Gemini CLI", "This is Qwen",
}

// fromUser reports whether a message starts a turn.
func fromUser(t Turn) bool {
	if t.Role != "user" || len(t.Results) > 0 {
		return false
	}
	s := strings.TrimSpace(t.Text)
	if directive.MatchString(s) {
		return true
	}
	for _, c := range contexts {
		if strings.HasPrefix(s, c) {
			return false
		}
	}
	return s != ""
}

// UserTurns returns the texts of the turns that a person has started.
func UserTurns(history []Turn) []string {
	var out []string
	for _, t := range history {
		if fromUser(t) {
			out = append(out, strings.TrimSpace(t.Text))
		}
	}
	return out
}

// plan computes the reply to a conversation.
func plan(history []Turn, tools []tool) reply {
	last := -1
	for i, t := range history {
		if fromUser(t) {
			last = i
		}
	}
	if last < 0 {
		return reply{text: "mock: no user message"}
	}
	done := 0 // calls that this turn has made
	for _, t := range history[last+1:] {
		done += len(t.Calls)
	}
	script := history[last].script()
	lines := directive.FindAllStringSubmatch(script, -1)
	if len(lines) == 0 {
		return reply{text: fmt.Sprintf("mock reply %d to: %s", len(UserTurns(history)), firstLine(script))}
	}
	var r reply
	calls := 0
	for _, l := range lines {
		verb, arg := l[1], strings.TrimRight(l[2], "\r")
		makesCall := verb == "write" || verb == "run" || verb == "tool"
		if calls < done { // of a reply that was given before
			if makesCall {
				calls++
			}
			continue
		}
		if makesCall {
			if r.call = newCall(verb, arg, tools); r.call == nil {
				r.text += fmt.Sprintf("[mock: no tool for %q among %s]", verb, names(tools))
			}
			return r
		}
		r.follow(verb, arg, history, last)
	}
	return r
}

// follow adds what a directive says to the reply.
func (r *reply) follow(verb, arg string, history []Turn, last int) {
	switch verb {
	case "say":
		if r.text != "" {
			r.text += "\n"
		}
		r.text += arg
	case "think":
		r.think += arg
	case "history":
		turns, _ := json.Marshal(UserTurns(history)) // strings
		r.text += "HISTORY " + string(turns)
	case "lasttool":
		for i := len(history) - 1; i > last; i-- {
			if len(history[i].Results) > 0 {
				r.text += "RESULT " + strings.Join(history[i].Results, "|")
				return
			}
		}
	case "delay":
		r.delay += millis(arg)
	case "pace":
		r.pace = millis(arg)
	case "usage":
		for field := range strings.FieldsSeq(arg) {
			r.usage = append(r.usage, int64(number(field)))
		}
	case "error":
		r.status = number(arg)
	case "retry":
		r.retryAfter = arg
	case "cut":
		r.cut = true
	case "short":
		r.short = true
	case "fail":
		r.fail = arg
	}
}

// tokens returns what the reply to a request of that size has used.
func (r reply) tokens(body []byte) (u used) {
	u.input = int64(len(body) / 4)
	u.output = 1 + int64(len(r.text)+len(r.think))/4
	if r.call != nil {
		u.output += int64(len(r.call.name)+len(r.call.input)+len(r.call.json())) / 4
	}
	for i, to := range []*int64{&u.input, &u.output, &u.cached, &u.reasoning} {
		if i < len(r.usage) {
			*to = r.usage[i]
		}
	}
	return u
}

// used is in tokens. Input holds what was cached, output what was reasoned.
type used struct{ input, output, cached, reasoning int64 }

func number(s string) int { n, _ := strconv.Atoi(strings.TrimSpace(s)); return n } // a script's nonsense is 0

func millis(s string) time.Duration { return time.Duration(number(s)) * time.Millisecond }

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s[:min(len(s), 200)]
}
