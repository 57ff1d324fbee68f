package sojourn

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// Tool is something that callers can run by name.
type Tool struct {
	Session     SessionID
	Name        string
	Description string
	InputSchema json.RawMessage // a JSON Schema; nil for none
	Argv        []string        // gets the input on its stdin; or
	URL         string          // gets the input as the body of a POST
	Ask         bool            // each call waits for an approval
	UpdatedAt   time.Time
}

// The bounds of tools.
const (
	MaxTools       = 128 // of one session
	MaxToolBytes   = 64 << 10
	MaxToolName    = 64
	MaxToolURL     = 2048
	MaxDescription = 4096
)

// RegisterTool records a tool, in place of one of the same name. count is how many
// others there are.
func (d *Decision) RegisterTool(t Tool, others int) (Tool, error) {
	s := d.facts.Session
	if s.State == SessionClosed {
		return t, invalidState(s, "takes no more tools")
	}
	if err := t.validate(); err != nil {
		return t, err
	}
	if others >= MaxTools {
		return t, Errorf(CodeTooLarge, "A session has at most %d tools.", MaxTools)
	}
	t.Session, t.UpdatedAt = s.ID, d.now
	d.tools = append(d.tools, t)
	d.emit(EventToolRegistered, "", "", map[string]any{"name": t.Name, "requiresApproval": t.Ask})
	return t, nil
}

func (t Tool) validate() error {
	if !validToolName(t.Name) {
		return Errorf(CodeInvalid, "name: 1 to %d letters, digits and _-.", MaxToolName)
	}
	if len(t.Description) > MaxDescription || !utf8.ValidString(t.Description) {
		return Errorf(CodeInvalid, "description: must be text of at most %d bytes.", MaxDescription)
	}
	if len(t.InputSchema) > MaxToolBytes {
		return Errorf(CodeTooLarge, "inputSchema: at most %d bytes.", MaxToolBytes)
	}
	if len(t.InputSchema) > 0 && !json.Valid(t.InputSchema) {
		return Errorf(CodeInvalid, "inputSchema: must be JSON.")
	}
	if (len(t.Argv) == 0) == (t.URL == "") {
		return Errorf(CodeInvalid, "A tool has either a command or a url.")
	}
	if len(t.URL) > MaxToolURL {
		return Errorf(CodeInvalid, "url: at most %d bytes.", MaxToolURL)
	}
	if t.URL == "" {
		return checkArgv("command", t.Argv)
	}
	return nil
}

func validToolName(s string) bool {
	return s != "" && len(s) <= MaxToolName && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && r != '-' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
}
