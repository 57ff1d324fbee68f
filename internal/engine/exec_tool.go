package engine

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// maxToolInput bounds the input of a tool, so that checking it against its schema
// takes no time worth a word.
const maxToolInput = 1 << 20

// callTool turns the call of a tool into what is run: the tool's program with the
// input on its stdin, or a request to its URL with the input as its body.
func (e *Engine) callTool(tx *store.Tx, session sojourn.SessionID, in ExecRequest, n *sojourn.NewExec) error {
	if len(in.Spec.Argv) > 0 || len(in.Input) > 0 || in.Spec.Stdin == sojourn.StdinStream {
		return sojourn.Errorf(sojourn.CodeInvalid, "tool: it is called with an input, in place of a command and its stdin.")
	}
	tool, err := tx.Tool(session, in.Tool)
	if err != nil {
		return err
	}
	input := bytes.TrimSpace(in.ToolInput)
	if len(input) == 0 {
		input = []byte("{}")
	}
	if len(input) > maxToolInput {
		return sojourn.Errorf(sojourn.CodeTooLarge, "input: at most %d bytes.", maxToolInput)
	}
	if err := checkToolInput(tool.InputSchema, input); err != nil {
		return err
	}
	n.Spec.Tool, n.Spec.Ask = tool.Name, tool.Ask || in.Spec.Ask
	n.Spec.Argv, n.Spec.Stdin, n.Input = tool.Argv, sojourn.StdinGiven, input
	if tool.URL != "" {
		n.Spec.Argv = []string{link.ProgramFetch, tool.URL}
	} else if strings.HasPrefix(tool.Argv[0], link.ProgramPrefix) {
		return sojourn.Errorf(sojourn.CodeInvalid, "tool: its command begins with %q, which belongs to the server.", link.ProgramPrefix)
	}
	n.Request = askedFor(n.Spec, input)
	return nil
}

// checkToolInput refuses an input that is no JSON, or that a tool's schema does not
// admit; a tool without one takes any.
func checkToolInput(schema json.RawMessage, input []byte) error {
	var value any
	if err := json.Unmarshal(input, &value); err != nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "input: this is no JSON value: %s.", bounded(err.Error(), 200))
	}
	if len(schema) == 0 {
		return nil
	}
	s, err := parseSchema(schema)
	if err != nil {
		return err
	}
	return s.check(value)
}
