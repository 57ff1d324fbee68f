package modeltest

import (
	"encoding/json"
	"path"
	"strings"
)

// tool is one that a request offers.
type tool struct {
	name     string
	schema   object // of its parameters; nil for a freeform tool
	freeform bool   // OpenAI "custom": takes text
	space    string // OpenAI "namespace" that it is in, such as that of an MCP server
}

// object is JSON that is read or written by names.
type object = map[string]any

func (t tool) property(names ...string) (string, object) {
	props := asObject(t.schema["properties"])
	for _, n := range names {
		if p, ok := props[n].(object); ok {
			return n, p
		}
	}
	return "", nil
}

func find(tools []tool, names ...string) *tool {
	for _, n := range names {
		for i := range tools {
			if strings.EqualFold(tools[i].name, n) {
				return &tools[i]
			}
		}
	}
	return nil
}

func names(tools []tool) string {
	var list []string
	for _, t := range tools {
		list = append(list, t.name)
	}
	return strings.Join(list, ",")
}

// call is a call of a tool in a reply.
type call struct {
	name     string
	args     object
	input    string // of a freeform tool
	freeform bool
	space    string
}

// json returns the arguments as text.
func (c call) json() string {
	if c.args == nil {
		return "{}"
	}
	text, err := json.Marshal(c.args)
	if err != nil {
		panic(err) // it came from JSON, or is strings
	}
	return string(text)
}

// newCall turns an action into a call of the tool that the agent offers for it; nil
// when there is none.
func newCall(verb, arg string, tools []tool) *call {
	switch verb {
	case "tool":
		return named(arg, tools)
	case "write":
		return write(arg, tools)
	}
	return run(arg, tools)
}

func named(arg string, tools []tool) *call {
	name, text, _ := strings.Cut(arg, " ")
	c := &call{name: name, args: object{}}
	if t := find(tools, name); t != nil {
		c.space = t.space
		if t.freeform {
			c.freeform, c.input = true, text
			return c
		}
	}
	_ = json.Unmarshal([]byte(text), &c.args) // a script's nonsense is no arguments
	return c
}

// write writes a file: with a tool for that, with a patch, or with a command.
func write(arg string, tools []tool) *call {
	file, text, _ := strings.Cut(arg, " ")
	text = strings.ReplaceAll(text, `\n`, "\n") + "\n"
	if t := find(tools, "write", "write_file", "WriteFile", "create_file"); t != nil {
		where, _ := t.property("file_path", "filePath", "path", "absolute_path")
		what, _ := t.property("content", "contents", "text")
		if where != "" && what != "" {
			return &call{name: t.name, space: t.space, args: fill(t, object{where: file, what: text})}
		}
	}
	if t := find(tools, "apply_patch"); t != nil && t.freeform {
		var patch strings.Builder
		patch.WriteString("*** Begin Patch\n*** Add File: " + file + "\n")
		for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			patch.WriteString("+" + line + "\n")
		}
		return &call{name: t.name, freeform: true, input: patch.String() + "*** End Patch"}
	}
	return run("mkdir -p "+inQuotes(path.Dir(file))+" && printf %s "+inQuotes(text)+" > "+inQuotes(file), tools)
}

// run runs a command.
func run(command string, tools []tool) *call {
	t := find(tools, "bash", "exec_command", "shell_command", "shell", "run_shell_command", "execute_command", "terminal", "local_shell")
	if t == nil {
		return nil
	}
	inShell := []string{"bash", "-lc", command}
	if t.name == "local_shell" && t.schema == nil {
		return &call{name: t.name, args: object{"command": inShell}}
	}
	name, property := t.property("command", "cmd")
	switch {
	case name == "":
		return nil
	case property["type"] == "array":
		return &call{name: t.name, space: t.space, args: fill(t, object{name: inShell})}
	}
	return &call{name: t.name, space: t.space, args: fill(t, object{name: command})}
}

// fill adds a plain value for every other parameter that is required.
func fill(t *tool, args object) object {
	required, _ := t.schema["required"].([]any)
	for _, r := range required {
		name := asText(r)
		if _, ok := args[name]; ok || name == "" {
			continue
		}
		_, p := t.property(name)
		if enum, ok := p["enum"].([]any); ok && len(enum) > 0 {
			args[name] = enum[0]
			continue
		}
		plain := object{"boolean": false, "number": 10000, "integer": 10000, "array": []any{}, "object": object{}}
		args[name] = "mock"
		if v, ok := plain[asText(p["type"])]; ok {
			args[name] = v
		}
	}
	return args
}

func inQuotes(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// texts returns the texts of a message's content: a string, or a list of parts.
func texts(content any) []string {
	if s, ok := content.(string); ok {
		return []string{s}
	}
	var out []string
	for _, p := range objects(content) {
		if s, ok := p["text"].(string); ok && p["thought"] != true {
			out = append(out, s)
		}
	}
	return out
}

func joined(content any) string { return strings.Join(texts(content), "\n") }

// result returns what a tool has answered, as text.
func result(v any) string {
	if t := joined(v); t != "" {
		return t
	}
	text, _ := json.Marshal(v) // it came from JSON
	return string(text)
}

func objects(v any) []object {
	var out []object
	list, _ := v.([]any)
	for _, x := range list {
		if o, ok := x.(object); ok {
			out = append(out, o)
		}
	}
	return out
}

func asText(v any) string { s, _ := v.(string); return s }

func asObject(v any) object { o, _ := v.(object); return o }
