package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// maxDecisions is how many of the proxy's decisions are told on one line.
const maxDecisions = 5

// ofSandbox says what an event about processes, limits or the network is about;
// "" for one that is about something else.
func ofSandbox(t sojourn.EventType, d eventData) string {
	switch t {
	case sojourn.EventWorkspaceDraining:
		text := fmt.Sprintf("workspace draining: lease %d%s; its files are being saved", d.Epoch, bracketed(d.Reason))
		if string(d.Processes) == "true" {
			text += ", and its processes"
		}
		return text
	case sojourn.EventWorkspaceResumed:
		return fmt.Sprintf("processes go on: those of lease %d, in lease %d", d.FromEpoch, d.Epoch)
	case sojourn.EventWorkspaceColdStart:
		return "processes are lost, files and conversation are not: " + terminal.Line(d.Detail, 500)
	case sojourn.EventWorkspaceLimit:
		var felt []string
		for _, name := range slices.Sorted(maps.Keys(d.Limits)) {
			felt = append(felt, fmt.Sprintf("%s (%d times in all)", terminal.Line(name, 40), d.Limits[name]))
		}
		return "limit reached: " + strings.Join(felt, ", ")
	case sojourn.EventWorkspaceSilent:
		return "workspace unresponsive: " + terminal.Line(d.Detail, 500)
	case sojourn.EventNetworkChanged:
		if d.Mode == string(sojourn.NetworkAllow) {
			return "network: may reach " + terminal.Line(strings.Join(d.Allow, ", "), 500)
		}
		return "network: " + terminal.Line(d.Mode, 40)
	case sojourn.EventBudgetWarning:
		return fmt.Sprintf("budget: %d percent are used", d.Percent)
	case sojourn.EventBudgetReached:
		return "budget: the " + terminal.Line(d.Limit, 40) + " limit is reached; no more work is admitted"
	case sojourn.EventNetworkDecided:
		return "network: " + decisions(d.Decisions)
	}
	return ""
}

// decisions tells what the proxy let through and refused.
func decisions(list []sojourn.NetworkDecision) string {
	var told []string
	for _, n := range list[:min(len(list), maxDecisions)] {
		verb := "refused"
		if n.Allowed {
			verb = "allowed"
		}
		times := ""
		if n.Count > 1 {
			times = fmt.Sprintf(" %d times", n.Count)
		}
		told = append(told, fmt.Sprintf("%s %s:%d%s%s", verb, terminal.Line(n.Host, 120), n.Port, times, bracketed(n.Reason)))
	}
	if more := len(list) - len(told); more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(told, "; ")
}
