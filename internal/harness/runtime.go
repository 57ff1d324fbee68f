package harness

import (
	"time"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Runtime is one row of the table of agent programs. Command, the values of Env and
// of Settings, and the contents of Files are templates: see [Runtime.Fill].
type Runtime struct {
	ID    string
	Label string
	// Harness names the harness that drives it, see [Mux]; "" means ACP.
	Harness string
	Command []string          // argv inside the sandbox
	Env     map[string]string // added to the environment
	// Files are settings written at each start, by path below the home. None of
	// them is part of the conversation.
	Files map[string]string
	// API is the kind of model that the runtime talks to: APIAnthropic, APIOpenAI or
	// APIGemini; "" when it needs none from us.
	API string
	// Model is the one that sessions get which name none; "" when there is none.
	Model string
	// Approvals says whether the agent asks before it acts; "" means ApprovalsNever.
	// Approval is the word for each, which stands for {{approval}} in the templates.
	Approvals Approvals
	Approval  map[Approvals]string
	// State are the globs below the home that are the conversation.
	State []string
	// Resume are the calls that continue a conversation, in order of
	// preference: "resume", "load". What the agent does not advertise is
	// passed over.
	Resume []string
	// Settings are applied at each start, after new, resume or load.
	Settings []Setting
	// Stop is how the agent is ended in order.
	Stop Stop
	// Rest is how long the state must have been unchanged after a turn, RestMost
	// when it is taken as it is; 0 means 250 ms and 3 s.
	Rest, RestMost time.Duration
	// Exact says that a restored conversation is the same to the model.
	Exact bool
	// Replays says that loading a conversation with turns always sends
	// updates, so that a silent load is a lost conversation.
	Replays bool
	// Synced says that the state is on disk before a turn is answered, so
	// that nobody needs to wait for it to rest.
	Synced bool
	// Quirks are what people should know of it, a sentence each.
	Quirks []string

	// Layers are mounted into sandboxes that run it, and Path are directories that
	// come first in its PATH: where it was installed to.
	Layers []sandbox.Mount
	Path   []string
	// Install is the command line that installs it; "" when there is none.
	Install string
	// Unavailable says why a sandbox without an image of its own cannot run it, as
	// far as that is known beforehand; "" when it can.
	Unavailable string
}

// The APIs of models, as the model gateway names them.
const (
	APIAnthropic = "anthropic"
	APIOpenAI    = "openai"
	APIGemini    = "gemini"
)

// Approvals says when an agent asks before it acts.
type Approvals string

// The kinds of approvals.
const (
	// ApprovalsNever lets the agent act: the sandbox is the wall.
	ApprovalsNever Approvals = "never"
	// ApprovalsAsk makes it ask as its makers thought fit. Each question is an
	// interaction that waits for an answer.
	ApprovalsAsk Approvals = "ask"
)

// Stop is how an agent is ended in order: by the end of its input, or by SIGTERM.
type Stop struct {
	// EOF closes its standard input first, and sends SIGTERM when it has not ended
	// Grace later.
	EOF bool
	// Grace is how long it may take for each step; 0 leaves that to the harness.
	Grace time.Duration
}

// Setting is a mode or config option to apply at each start.
type Setting struct {
	Method string // "session/set_mode" or "session/set_config_option"; "" for the built-in loop
	ID     string // of the config option; "" for a mode
	Value  string
}
