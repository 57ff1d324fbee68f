package loop

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/model"
)

// stateVersion is the format of state; another one is not read.
const stateVersion = 1

// stage is how far a run has come.
type stage string

const (
	stageAsk   stage = "ask"   // the model may have been asked
	stageCall  stage = "call"  // the calls of its reply are being done
	stageEnded stage = "ended" // the outcome is known
)

// ending says why a turn is being ended from our side.
type ending string

const (
	byCaller   ending = "caller"
	byDeadline ending = "deadline"
)

// state is what a drive needs to be taken up again, and what the next run under
// the same epoch needs to go on.
type state struct {
	Version int    `json:"v"`
	Run     string `json:"run"`
	Epoch   int64  `json:"epoch"`
	Stage   stage  `json:"stage"`

	// The conversation, which lies in the sandbox.
	Pin pin `json:"pin"`
	// Usage is what the last reply said of the conversation's size. Grown is
	// how many bytes have come to it since.
	Usage model.Usage `json:"usage"`
	Grown int64       `json:"grown,omitempty"`

	// Servers are the processes of MCP servers that may run, Generation how
	// often they were started under this epoch.
	Servers    []string `json:"servers,omitempty"`
	Generation int      `json:"generation,omitempty"`
	// Allowed are the tools that a person has allowed for good.
	Allowed []string `json:"allowed,omitempty"`

	// The turn.
	Step    int    `json:"step"`              // replies that are in the conversation
	Attempt int    `json:"attempt,omitempty"` // of asking for the next one
	Said    bool   `json:"said,omitempty"`    // this attempt's text was shown, in part
	Shrunk  int    `json:"shrunk,omitempty"`  // compactions since the last reply
	Calls   []call `json:"calls,omitempty"`   // of the last reply
	Steered int64  `json:"steered,omitempty"` // the last input that was taken in
	Ending  ending `json:"ending,omitempty"`
	// Unsure says that a command which had to end may not have.
	Unsure  bool     `json:"unsure,omitempty"`
	Outcome *outcome `json:"outcome,omitempty"`
}

// progress is how far a call has come.
type progress string

const (
	callWaits   progress = "waits"
	callAsked   progress = "asked" // whether it may be done
	callAllowed progress = "allowed"
	callStarted progress = "started" // it may have had effects
	callDone    progress = "done"
)

// call is a call's place in the journal. What it is to do is in the
// conversation.
type call struct {
	Progress progress `json:"p"`
	Started  int64    `json:"at,omitempty"` // Unix milliseconds
	// Before and After are digests of the file that it changes; "" for none.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	Output string `json:"output,omitempty"`
	Failed bool   `json:"failed,omitempty"`
}

func (c *call) startedAt() time.Time { return time.UnixMilli(c.Started) }

// pin names a conversation as it stands: its segments First to Last, and their
// digest.
type pin struct {
	ID     string `json:"id"`
	First  int    `json:"first"`
	Last   int    `json:"last"`
	Digest string `json:"digest"` // hexadecimal SHA-256
}

// String is the pin as the agent's id of the conversation.
func (p pin) String() string {
	return p.ID + "." + strconv.Itoa(p.First) + "." + strconv.Itoa(p.Last) + "." + p.Digest
}

const maxSegments = 100_000

var idForm = regexp.MustCompile(`^[0-9a-f]{16,64}$`)

func (p pin) valid() bool {
	sum, err := hex.DecodeString(p.Digest)
	return idForm.MatchString(p.ID) && err == nil && len(sum) == 32 && 1 <= p.First && p.First <= p.Last && p.Last <= maxSegments
}

// parsePin reads what String made.
func parsePin(s string) (pin, error) {
	parts := strings.Split(s, ".")
	if len(parts) != 4 {
		return pin{}, errPin
	}
	first, err1 := strconv.Atoi(parts[1])
	last, err2 := strconv.Atoi(parts[2])
	p := pin{ID: parts[0], First: first, Last: last, Digest: parts[3]}
	if err1 != nil || err2 != nil || !p.valid() {
		return pin{}, errPin
	}
	return p, nil
}

// outcome is the stored form of a harness.Outcome.
type outcome = harness.Outcome

var (
	errPin   = errors.New("not the name of one of the loop's conversations")
	errState = errors.New("state is not usable")
)

// maxCalls bounds the calls of one reply; the model is told of those beyond.
const maxCalls = 128

// decodeState reads a stored state; nil stands for none. What it returns is
// within bounds.
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
	case s.Run == "":
		return nil, fmt.Errorf("%w: no run", errState)
	case s.Stage != stageAsk && s.Stage != stageCall && s.Stage != stageEnded:
		return nil, fmt.Errorf("%w: stage %q", errState, s.Stage)
	case s.Stage == stageEnded && s.Outcome == nil:
		return nil, fmt.Errorf("%w: ended without an outcome", errState)
	case s.Stage != stageEnded && !s.Pin.valid() || s.Pin != pin{} && !s.Pin.valid():
		return nil, fmt.Errorf("%w: conversation %q", errState, s.Pin.ID)
	case s.Step < 0 || s.Generation < 0 || len(s.Calls) > maxCalls:
		return nil, fmt.Errorf("%w: numbers", errState)
	}
	return &s, nil
}

// encode cannot fail: the state is plain data.
func (s *state) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("loop: encode a state: %v", err))
	}
	return b
}

// next is the state that another run begins with in the same sandbox.
func (s *state) next(run string, epoch int64) *state {
	return &state{
		Version: stateVersion, Run: run, Epoch: epoch, Stage: stageAsk,
		Pin: s.Pin, Usage: s.Usage, Grown: s.Grown,
		Servers: s.Servers, Generation: s.Generation, Allowed: s.Allowed,
	}
}
