package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// bareData is all that the payloads of events of sessions without an agent may
// hold, beside what all may.
type bareData struct {
	StopReason, Detail, Limit            string
	ExecutionID, Tool, Outcome, Signal   string
	Command                              []string
	Detached, Hook                       bool
	ExitCode                             *int
	DurationMs, CostMicroCents           int64
	Reason, Error                        string
	Epoch, FromEpoch                     int64
	Attempt                              int
	Retrying                             bool
	Lost                                 *struct{ Since time.Time }
	Bytes                                int64
	Name, ApprovalID, Decision, ClientID string
	Comment                              string
	Paths                                []string
	More                                 int
	ExpiresAt, LastHeartbeatAt           time.Time
}

// ofBare says what an event of a session without an agent is about; "" for one
// that is about something else.
func ofBare(e client.Event) string {
	var d bareData
	unpack(e.Data, &d)
	switch kind := sojourn.EventType(e.Type); kind {
	case sojourn.EventSessionStarted, sojourn.EventSessionPaused, sojourn.EventSessionResumed:
		return strings.Replace(e.Type, ".", " ", 1)
	case sojourn.EventSessionCompleted, sojourn.EventSessionFailed, sojourn.EventSessionCancelled:
		text := strings.Replace(e.Type, ".", " ", 1) + bracketed(strings.TrimSpace(strings.ReplaceAll(d.StopReason, "_", " ")+" "+d.Limit))
		if d.Detail != "" {
			text += ": " + terminal.Line(d.Detail, 1000)
		}
		return text
	case sojourn.EventExecStarted, sojourn.EventExecCompleted, sojourn.EventExecRefused:
		return ofExecution(kind, d)
	case sojourn.EventRotationStarted, sojourn.EventRotationCompleted, sojourn.EventRotationFailed:
		return ofRotation(kind, d)
	case sojourn.EventContextUpdated:
		return fmt.Sprintf("context changed: %s", size(d.Bytes))
	case sojourn.EventToolRegistered:
		return "tool registered: " + terminal.Line(d.Name, 80)
	case sojourn.EventApprovalRequested:
		return "an execution waits for an approval: " + commandLine(client.Execution{Command: d.Command, Tool: d.Tool}) + bracketed("interaction "+d.ApprovalID)
	case sojourn.EventApprovalResolved:
		text := "approval: " + terminal.Line(d.Decision, 40)
		if d.Comment != "" {
			text += ": " + terminal.Line(d.Comment, lineRunes)
		}
		return text
	case sojourn.EventFileWritten:
		text := "files written: " + terminal.Line(strings.Join(d.Paths, ", "), lineRunes)
		if d.More > 0 {
			text += fmt.Sprintf(" and %d more", d.More)
		}
		return text + bracketed(size(d.Bytes))
	case sojourn.EventClientLost:
		return "the client stays away" + bracketed(d.ClientID)
	case sojourn.EventClientReattached:
		return "the client is back" + bracketed(d.ClientID)
	case sojourn.EventBudgetChanged:
		return "budget changed"
	}
	return ""
}

func ofExecution(kind sojourn.EventType, d bareData) string {
	what := "exec"
	switch {
	case d.Hook:
		what = "hook"
	case d.Detached:
		what = "detached exec"
	}
	switch kind {
	case sojourn.EventExecStarted:
		return what + " started: " + commandLine(client.Execution{Command: d.Command, Tool: d.Tool})
	case sojourn.EventExecRefused:
		return what + " refused" + bracketed(d.Reason)
	}
	end := strings.ReplaceAll(terminal.Line(d.Outcome, 40), "_", " ")
	switch {
	case d.ExitCode != nil:
		end = fmt.Sprintf("code %d", *d.ExitCode)
	case d.Signal != "":
		end = terminal.Line(d.Signal, 40)
	case d.Error != "":
		end += ": " + terminal.Line(d.Error, 1000)
	}
	if d.Reason != d.Outcome {
		end += bracketed(d.Reason)
	}
	text := what + " ended: " + end + " after " + span(time.Duration(d.DurationMs)*time.Millisecond)
	if d.CostMicroCents > 0 {
		text += ", cost " + money(d.CostMicroCents)
	}
	return text
}

func ofRotation(kind sojourn.EventType, d bareData) string {
	switch kind {
	case sojourn.EventRotationStarted:
		return fmt.Sprintf("rotation started: lease %d is replaced%s", d.Epoch, bracketed(d.Reason))
	case sojourn.EventRotationFailed:
		text := fmt.Sprintf("rotation: try %d has failed: %s", d.Attempt, terminal.Line(d.Error, 1000))
		if d.Retrying {
			text += "; another follows"
		}
		return text
	}
	text := fmt.Sprintf("rotation completed: lease %d goes on as lease %d after %s", d.FromEpoch, d.Epoch, span(time.Duration(d.DurationMs)*time.Millisecond))
	if d.Lost != nil {
		text += "; what was written since " + clock(d.Lost.Since) + " is lost"
	}
	return text
}
