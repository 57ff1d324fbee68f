package exec

import (
	"maps"
	"strings"

	"github.com/sojourn-dev/sojourn"
)

// ourStates are the states of a session that the contract has another word for.
var ourStates = map[string]string{
	string(sojourn.SessionNew):  "pending",
	string(sojourn.SessionOpen): "running",
}

// ourFields are the fields of a sandbox that the contract has another name for.
var ourFields = strings.NewReplacer(
	"sandbox.limits.memoryBytes:", "sandbox.memory:",
	"sandbox.limits.diskBytes:", "sandbox.disk:",
	"sandbox.limits.milliCPUs:", "sandbox.cpus (in thousandths):",
)

// words puts an error of the domain, which speaks to all contracts, into the words of
// this one.
func words(e sojourn.Error) sojourn.Error {
	switch e.Code {
	case sojourn.CodeInvalidState:
		theirs := e.Details["state"]
		if ours, ok := ourStates[theirs]; ok {
			e.Details = maps.Clone(e.Details)
			e.Details["state"] = ours
			e.Message = strings.Replace(e.Message, "A session that is "+theirs+" ", "A session that is "+ours+" ", 1)
		}
	case sojourn.CodeInvalid:
		if strings.HasPrefix(e.Message, "sandbox.") {
			e.Message = ourFields.Replace(e.Message)
		}
	case sojourn.CodeInteractionAnswered:
		e.Message = "The approval was resolved with another decision."
	case sojourn.CodeInteractionExpired:
		e.Message = "The approval can no longer be resolved"
		if reason := e.Details["reason"]; reason != "" {
			e.Message += " (" + reason + ")"
		}
		e.Message += "."
	case sojourn.CodeNotFound:
		e.Message = strings.Replace(e.Message, "no such interaction", "no such approval", 1)
	}
	return e
}
