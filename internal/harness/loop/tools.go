package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/sojourn-dev/sojourn/internal/model"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// tool is one row of what the model may call.
type tool struct {
	spec model.Tool
	kind string // in ACP: read, edit, search, execute, think or other
	// effects says that doing a call twice could differ from doing it once:
	// such a call is noted before it is started.
	effects bool
	// alone says that no other call may be done at the same time.
	alone bool
	// describe gives the title of a call, and the file that it is about.
	describe func(input json.RawMessage) (title, where string)
	// prepare looks at what a call with effects is about, and fills in
	// task.call. A result says that the call ends with that.
	prepare func(ctx context.Context, t *task) (*result, error)
	run     func(ctx context.Context, t *task) (result, error)
	// recover finds out what became of a call that was started. Without one it
	// is unknown.
	recover func(ctx context.Context, t *task) (result, error)
}

// task is one call on its way. It belongs to one helper at a time.
type task struct {
	tool  *tool
	index int
	name  string // of the call, and of its process
	input json.RawMessage
	call  call
	again bool   // it was started by an earlier drive
	drive *drive // for what does not change: link, job, ctx
	// What the tool reports beside its result.
	process bool // a process of the task's name may be with the keeper
	unsure  bool // that process may still run
}

// do does the call. The error is the link's or the drive's; whatever else goes
// wrong is a result.
func (t *task) do(ctx context.Context) (result, error) {
	f := t.tool.run
	if t.again && t.tool.effects {
		f = t.tool.recover
	}
	if f == nil {
		return refusal(saidUnknown), nil
	}
	r, err := f(ctx, t)
	switch {
	case err == nil:
		return r, nil
	case t.drive.ctx.Err() != nil:
		return r, context.Cause(t.drive.ctx)
	case ctx.Err() != nil:
		if t.tool.effects {
			return refusal(saidCancelled + " It may have had effects."), nil
		}
		return refusal(saidCancelled), nil
	case refused(err):
		return refusal("%s", why(err)), nil
	}
	return r, err
}

// read decodes a call's input. What is wrong with it is for the model to read.
func read[T any](input json.RawMessage) (T, *result) {
	var v T
	if err := json.Unmarshal(input, &v); err != nil {
		return v, new(refusal("The input does not fit: %s.", clip(strings.TrimPrefix(err.Error(), "json: "), 500)))
	}
	return v, nil
}

// toolset is what the model is offered.
type toolset struct {
	offered []model.Tool
	byName  map[string]*tool
}

func (s *toolset) add(t *tool) {
	if s.byName == nil {
		s.byName = map[string]*tool{}
	}
	if s.byName[t.spec.Name] != nil {
		return // two MCP servers whose names look the same to the model
	}
	s.byName[t.spec.Name] = t
	s.offered = append(s.offered, t.spec)
}

func (s *toolset) find(name string) *tool { return s.byName[name] }

func (s *toolset) names() string {
	names := make([]string, len(s.offered))
	for i, t := range s.offered {
		names[i] = t.Name
	}
	return clip(strings.Join(names, ", "), 2000)
}

// builtin are the tools that every session has. Names, descriptions and schemas
// are part of every request: a change makes the model's server read all
// conversations anew.
func builtin() []*tool {
	return []*tool{
		{
			spec: model.Tool{
				Name: "shell",
				Description: "Runs a command with bash (or sh) and returns its output, both streams together, and its exit status. " +
					"Each call is a shell of its own; a program that is to go on running has to be put into the background with its output redirected.",
				Schema: schema(`"command"`, `"command":{"type":"string"},`+
					`"cwd":{"type":"string","description":"directory to run in; default `+sandbox.WorkspacePath+`"},`+
					`"timeout_seconds":{"type":"integer","description":"default 120, at most 3600"}`),
			},
			kind: "execute", effects: true, describe: describeShell, prepare: prepareShell, run: runShell, recover: followShell,
		},
		{
			spec: model.Tool{
				Name:        "read",
				Description: "Reads a text file. Each line is preceded by its number and a tab.",
				Schema: schema(`"path"`, `"path":{"type":"string"},`+
					`"offset":{"type":"integer","description":"first line, from 1"},"limit":{"type":"integer","description":"number of lines, at most 2000"}`),
			},
			kind: "read", describe: describePath("Read"), run: runRead,
		},
		{
			spec: model.Tool{
				Name:        "write",
				Description: "Writes a text file, with its directories, in place of what was there.",
				Schema:      schema(`"path","content"`, `"path":{"type":"string"},"content":{"type":"string"}`),
			},
			kind: "edit", effects: true, alone: true, describe: describePath("Write"), prepare: prepareChange, run: runChange, recover: recoverChange,
		},
		{
			spec: model.Tool{
				Name: "edit",
				Description: "Replaces text in a file. old_text has to be there exactly, with all its spaces, " +
					"and only once unless replace_all is set.",
				Schema: schema(`"path","old_text","new_text"`, `"path":{"type":"string"},"old_text":{"type":"string"},`+
					`"new_text":{"type":"string"},"replace_all":{"type":"boolean"}`),
			},
			kind: "edit", effects: true, alone: true, describe: describePath("Edit"), prepare: prepareChange, run: runChange, recover: recoverChange,
		},
		{
			spec: model.Tool{
				Name:        "list",
				Description: "Lists a directory. Directories end with a slash.",
				Schema:      schema(``, `"path":{"type":"string","description":"default `+sandbox.WorkspacePath+`"}`),
			},
			kind: "search", describe: describePath("List"), run: runList,
		},
		{
			spec: model.Tool{
				Name: "search",
				Description: "Finds the lines that match a regular expression (RE2 syntax) in the text files below a directory. " +
					"Files over 1 MiB, and the directories .git and node_modules, are passed over.",
				Schema: schema(`"pattern"`, `"pattern":{"type":"string"},`+
					`"path":{"type":"string","description":"directory or file; default `+sandbox.WorkspacePath+`"},`+
					`"glob":{"type":"string","description":"only files whose names match, such as *.go"},"ignore_case":{"type":"boolean"}`),
			},
			kind: "search", describe: describeSearch, run: runSearch,
		},
		{
			spec: model.Tool{
				Name:        "plan",
				Description: "Shows the person the plan of the work, whole, each time that it changes.",
				Schema: schema(`"entries"`, `"entries":{"type":"array","items":{"type":"object","properties":{"content":{"type":"string"},`+
					`"status":{"type":"string","enum":["pending","in_progress","completed"]},`+
					`"priority":{"type":"string","enum":["high","medium","low"]}},"required":["content","status"]}}`),
			},
			kind: "think", alone: true, describe: func(json.RawMessage) (string, string) { return "Update the plan", "" }, run: runPlan,
		},
	}
}

// schema is the JSON Schema of an object.
func schema(required, properties string) json.RawMessage {
	return json.RawMessage(`{"type":"object","properties":{` + properties + `},"required":[` + required + `],"additionalProperties":false}`)
}

// describePath describes a call that is about one file.
func describePath(verb string) func(json.RawMessage) (string, string) {
	return func(in json.RawMessage) (string, string) {
		var v struct {
			Path string `json:"path"`
		}
		_ = json.Unmarshal(in, &v) // what does not fit is said when the call is done
		where := resolve(v.Path)
		return verb + " " + strings.TrimPrefix(where, sandbox.WorkspacePath+"/"), where
	}
}

// resolve is the absolute path that a model means.
func resolve(p string) string {
	switch {
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(sandbox.HomePath, p[1:])
	case path.IsAbs(p):
		return path.Clean(p)
	}
	return path.Join(sandbox.WorkspacePath, p)
}

// runPlan shows a plan.
func runPlan(_ context.Context, t *task) (result, error) {
	type planned struct {
		Content  string `json:"content"`
		Priority string `json:"priority"`
		Status   string `json:"status"`
	}
	v, wrong := read[struct {
		Entries []planned `json:"entries"`
	}](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	const most = 200
	if len(v.Entries) > most {
		return refusal("A plan has at most %d entries.", most), nil
	}
	done := 0
	for i := range v.Entries {
		e := &v.Entries[i]
		e.Content, e.Priority, e.Status = clip(e.Content, 1000), or(e.Priority, "medium"), or(e.Status, "pending")
		if e.Status == "completed" {
			done++
		}
	}
	entries, _ := json.Marshal(v.Entries) // plain data
	return result{output: fmt.Sprintf("The plan has %d entries, %d of them completed.", len(v.Entries), done), plan: entries}, nil
}
