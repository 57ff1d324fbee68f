package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// show prints one event as a line of the narration. It is called by the
// follower, while the story's own lines come from the teller: each is one write.
func (d *demoRun) show(e demoEvent) {
	line := strings.TrimPrefix(e.Type, "wamp.")
	if more := eventDetail(e); more != "" {
		line += "  " + more
	}
	fmt.Fprintf(d.out, "%5.1fs  [%3d] %s\n", time.Since(d.began).Seconds(), e.Sequence, line)
}

// eventDetail is what is worth reading of an event, on one line.
func eventDetail(e demoEvent) string {
	if text := strings.TrimSpace(chunkText(e)); text != "" {
		return "agent: " + terminal.Line(text, 100)
	}
	var d struct {
		Update struct {
			Kind   string `json:"sessionUpdate"`
			Title  string
			Status string
		}
		StopReason   string
		ExpiresAt    string
		Conversation string
		Workspace    string
		Reason       string
		State        string
		Code         string
	}
	if json.Unmarshal(e.Data, &d) != nil {
		return ""
	}
	var parts []string
	for _, p := range []string{d.Update.Kind, d.Update.Title, d.Update.Status, d.StopReason, d.Code, d.Reason, d.State} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if d.Conversation != "" {
		parts = append(parts, "conversation "+d.Conversation+", files "+d.Workspace)
	}
	if d.ExpiresAt != "" {
		parts = append(parts, "until "+d.ExpiresAt)
	}
	return terminal.Line(strings.Join(parts, " "), 100)
}
