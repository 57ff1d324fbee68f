package acp

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sojourn-dev/sojourn/internal/harness"
)

// stateVersion is the format of state; another one is not read.
const stateVersion = 1

// stage is how far a run has come.
type stage string

const (
	stagePrompt stage = "prompt" // the prompt may have been given
	stageEnded  stage = "ended"  // the outcome is known
)

// state is what a drive needs to be taken up again, and what the next run under
// the same epoch needs to go on with the same agent.
type state struct {
	Version int    `json:"v"`
	Run     string `json:"run"`
	Epoch   int64  `json:"epoch"`
	Stage   stage  `json:"stage"`

	// The agent: its process, and what it said of itself.
	Process      string `json:"process"`
	Generation   int    `json:"generation"` // of the process under this epoch
	Agent        string `json:"agent,omitempty"`
	Image        bool   `json:"image,omitempty"`
	Embedded     bool   `json:"embedded,omitempty"`
	Conversation string `json:"conversation"`
	// Unfit says that the agent must not be used for another turn.
	Unfit bool `json:"unfit,omitempty"`

	Cursor cursor `json:"cursor"`
	// Requests counts the requests that the agent has made; it names them.
	Requests int64 `json:"requests,omitempty"`

	// The turn.
	Sent    bool       `json:"sent,omitempty"`   // the prompt has arrived
	Ending  ending     `json:"ending,omitempty"` // why session/cancel may have been sent
	Reply   *reply     `json:"reply,omitempty"`  // the answer to the prompt
	Open    []open     `json:"open,omitempty"`
	Out     []outgoing `json:"out,omitempty"` // replies that may not have arrived
	Budget  budget     `json:"budget"`
	Tail    string     `json:"tail,omitempty"` // of stderr
	Outcome *outcome   `json:"outcome,omitempty"`
}

// cursor is a position in the agent's output. Everything before it has been
// accounted for: all chunks up to Seq, and of the next one the first Off bytes.
// End is how many bytes of output came up to and including Seq, so that a gap
// shows. Partial are the bytes of an unfinished line that came before it.
type cursor struct {
	Seq     int64  `json:"seq"`
	Off     int    `json:"off,omitempty"`
	End     int64  `json:"end,omitempty"`
	Partial []byte `json:"partial,omitempty"`
	// ErrSeq is the last chunk of stderr that was accounted for. It runs ahead
	// of Seq while a long line holds the cursor back.
	ErrSeq     int64  `json:"errSeq,omitempty"`
	ErrPartial []byte `json:"errPartial,omitempty"`
}

// open is a permission request that waits for its answer.
type open struct {
	Number int64           `json:"n"`
	ID     json.RawMessage `json:"id"`
}

// ref names the question outside.
func (o open) ref() string { return fmt.Sprintf("permission-%d", o.Number) }

// outgoing is a message on its way to the agent.
type outgoing struct {
	WriteID string `json:"writeId"`
	Data    []byte `json:"data"`
}

// budget counts what a run's noise has cost.
type budget struct {
	Events int   `json:"events,omitempty"`
	Bytes  int   `json:"bytes,omitempty"`
	Noise  int64 `json:"noise,omitempty"` // bytes of stdout outside the protocol
	Full   bool  `json:"full,omitempty"`  // the last agent.log said so
}

// reply is the answer to the prompt.
type reply struct {
	Stop  string `json:"stop,omitempty"`  // the reason, as the agent gave it
	Error string `json:"error,omitempty"` // of an error, in the agent's words
}

// newReply reads the answer to a prompt. One without a readable reason is still
// the end of the turn.
func newReply(m message) *reply {
	if m.err != nil {
		return &reply{Error: m.err.text()}
	}
	var r struct {
		StopReason string `json:"stopReason"`
	}
	if json.Unmarshal(m.result, &r) != nil {
		return &reply{}
	}
	return &reply{Stop: clip(r.StopReason, maxStopReasonBytes)}
}

// outcome is the stored form of a harness.Outcome.
type outcome = harness.Outcome

// errState says that a stored state makes no sense.
var errState = errors.New("state is not usable")

// decodeState reads a stored state; nil stands for none. Whoever wrote it, what
// it returns is within bounds.
func decodeState(data []byte) (*state, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", errState, err)
	}
	switch {
	case s.Version != stateVersion:
		return nil, fmt.Errorf("%w: version %d", errState, s.Version)
	case s.Run == "" || s.Process == "" || s.Generation < 1:
		return nil, fmt.Errorf("%w: no process", errState)
	case s.Stage != stagePrompt && s.Stage != stageEnded:
		return nil, fmt.Errorf("%w: stage %q", errState, s.Stage)
	case s.Stage == stageEnded && s.Outcome == nil:
		return nil, fmt.Errorf("%w: ended without an outcome", errState)
	case s.Cursor.Seq < 0 || s.Cursor.Off < 0 || s.Cursor.ErrSeq < 0 || s.Requests < 0:
		return nil, fmt.Errorf("%w: negative position", errState)
	}
	for _, o := range s.Open {
		if present(o.ID) == nil || !validID(o.ID) {
			return nil, fmt.Errorf("%w: question without an id", errState)
		}
	}
	return &s, nil
}

// encode cannot fail: the raw parts were parsed before.
func (s *state) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("acp: encode a state: %v", err))
	}
	return b
}

// next is the state that another run begins with when the agent goes on.
func (s *state) next(run string) *state {
	n := *s
	n.Run, n.Stage, n.Outcome = run, stagePrompt, nil
	n.Reply = nil
	n.Sent, n.Ending, n.Open, n.Budget, n.Tail = false, "", nil, budget{}, ""
	return &n
}
