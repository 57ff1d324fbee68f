package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// describe shows a session to people.
func (s *shell) describe(v client.Session) {
	if v.Status != "" {
		s.describeBare(v)
		return
	}
	state := v.State + bracketed(v.CloseReason)
	if v.ArchivedAt != nil {
		state = "archived " + s.p.when(*v.ArchivedAt)
	}
	fields := []field{
		{"session", v.ID},
		{"title", terminal.Line(v.Title, 0)},
		{"state", terminal.Line(state, 0)},
		{"contract", terminal.Line(v.Contract, 0)},
		{"runtime", terminal.Line(v.Runtime, 0)},
		{"workspace", s.workspace(v.Workspace)},
		{"lease", s.lease(v.Lease)},
		{"checkpoint", s.checkpoint(v.Checkpoint)},
		{"next turn", continuation(v.Continuation)},
		{"active run", s.run(v.ActiveRun)},
	}
	if v.ActiveRun == nil {
		fields = append(fields, field{"last run", s.run(v.LastRun)})
	}
	fields = append(
		fields,
		field{"cost", costOf(v.Budget)},
		field{"turns", strconv.FormatInt(v.Turns, 10)},
		field{"events", strconv.FormatInt(v.LastSequence, 10)},
		field{"created", s.p.when(v.CreatedAt)},
		field{"changed", s.p.when(v.UpdatedAt)},
	)
	s.p.fields(append(fields, metadata(v)...))
	s.howToAnswer(v.ID, v.OpenInteractions)
}

func metadata(v client.Session) (fields []field) {
	for _, k := range slices.Sorted(maps.Keys(v.Metadata)) {
		fields = append(fields, field{"metadata", terminal.Line(k, 0) + "=" + terminal.Line(v.Metadata[k], 0)})
	}
	return fields
}

// describeBare shows a session without an agent to people.
func (s *shell) describeBare(v client.Session) {
	fields := []field{
		{"session", v.ID},
		{"title", terminal.Line(v.Title, 0)},
		{"status", s.status(v)},
		{"workspace", s.workspace(v.Workspace)},
		{"lease", s.lease(v.Lease)},
		{"checkpoint", s.bareCheckpoint(v.Checkpoint)},
		{"rotation", s.rotation(v)},
		{"client", s.client(v.Client)},
	}
	if r := v.Rotation; r != nil && r.Lost != nil {
		fields = append(fields, field{"lost", "what was written since " + s.p.when(r.Lost.Since) + ", with lease " + strconv.FormatInt(r.Lost.Epoch, 10)})
	}
	for _, line := range budgetLines(v.Budget) {
		fields = append(fields, field{"budget", line})
	}
	fields = append(fields, field{"executions", strconv.FormatInt(v.Executions, 10)})
	for _, x := range v.OpenExecutions {
		fields = append(fields, field{"now", outcome(x) + " for " + ran(x) + ": " + commandLine(x) + " (" + x.ID + ")"})
	}
	fields = append(
		fields,
		field{"events", strconv.FormatInt(v.LastSequence, 10)},
		field{"created", s.p.when(v.CreatedAt)},
		field{"changed", s.p.when(v.UpdatedAt)},
	)
	s.p.fields(append(fields, metadata(v)...))
	s.howToAnswer(v.ID, v.OpenInteractions)
}

// status says how a session without an agent stands, and why it has ended.
func (s *shell) status(v client.Session) string {
	text := terminal.Line(v.Status, 20)
	e := v.Ending
	switch {
	case e != nil:
		text += " " + s.p.when(e.At) + bracketed(strings.TrimSpace(strings.ReplaceAll(e.Reason, "_", " ")+" "+e.Limit))
		if e.Text != "" {
			text += ": " + terminal.Line(e.Text, 1000)
		}
	case v.PausedAt != nil:
		text += " since " + s.p.when(*v.PausedAt)
	case v.Rotation != nil && v.Rotation.BegunAt != nil:
		text += bracketed(v.Rotation.Why) + " since " + s.p.when(*v.Rotation.BegunAt)
	case v.StartedAt != nil:
		text += ", started " + s.p.when(*v.StartedAt)
	}
	return text
}

func (s *shell) bareCheckpoint(c *client.Checkpoint) string {
	if c == nil {
		return ""
	}
	text := terminal.Line(c.ID, 60) + ", " + strconv.FormatInt(c.Entries, 10) + " entries, " + size(c.Bytes)
	if c.ProcessBytes > 0 {
		text += ", with processes"
	}
	if c.SealedAt != nil {
		text += ", sealed " + s.p.when(*c.SealedAt)
	}
	return text
}

// rotation says how often the sandbox was replaced, and when it is next.
func (s *shell) rotation(v client.Session) string {
	r := v.Rotation
	if r == nil {
		return ""
	}
	text := strconv.FormatInt(r.Count, 10) + " so far"
	if r.LastAt != nil {
		text += ", the last " + s.p.when(*r.LastAt)
	}
	if r.NextAt != nil {
		text += ", the next " + s.p.when(*r.NextAt)
	}
	if r.Processes {
		text += "; processes are carried"
	}
	return text
}

func (s *shell) client(c *client.SessionClient) string {
	if c == nil {
		return ""
	}
	text := terminal.Line(c.ID, 0)
	switch {
	case c.LostAt != nil:
		text += ", lost " + s.p.when(*c.LostAt)
	case c.Attached && c.LastHeartbeatAt != nil:
		text += ", there " + s.p.when(*c.LastHeartbeatAt)
	case c.LastHeartbeatAt != nil:
		text += ", last there " + s.p.when(*c.LastHeartbeatAt)
	}
	if c.OnAbandon != "" {
		text += bracketed(c.OnAbandon + " when abandoned")
	}
	return strings.TrimPrefix(text, ", ")
}

// budgetLines says what was used of a budget, a line for each part.
func budgetLines(b *client.Budget) (lines []string) {
	if b == nil {
		return nil
	}
	part := func(name, used, limit string, some bool) {
		if limit != "" {
			limit = " of " + limit
		}
		if b.Reached == name {
			limit += "; the limit is reached"
		}
		if some || limit != "" {
			lines = append(lines, name+" "+used+limit)
		}
	}
	limit := ""
	if b.Limits.CostMicroCents > 0 {
		limit = money(b.Limits.CostMicroCents)
	}
	part("cost", money(b.CostMicroCents), limit, b.CostMicroCents > 0)
	limit = ""
	if b.Limits.Iterations > 0 {
		limit = strconv.FormatInt(b.Limits.Iterations, 10)
	}
	part("iterations", strconv.FormatInt(b.Iterations, 10), limit, b.Iterations > 0)
	limit = ""
	if b.Limits.DurationSeconds > 0 {
		limit = spanSeconds(b.Limits.DurationSeconds)
	}
	part("duration", spanSeconds(b.DurationSeconds), limit, b.DurationSeconds > 0)
	return lines
}
