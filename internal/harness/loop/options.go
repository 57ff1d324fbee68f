package loop

import (
	"slices"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// instructions are the system prompt. It must not change from turn to turn: the
// model's server keeps what it has read by its beginning.
const instructions = `You are an agent that works for a person in a sandbox: a Linux system of its own, in which you may do whatever the work needs. The work lies in ` + sandbox.WorkspacePath + `; relative paths begin there.

Do what is asked, wholly, and nothing beside it. Look before you change: read the files that matter, follow the habits that you find in them. Use the tools; several calls that do not depend on each other can be made at once. After a change, check it: build, run, test. When a call fails, find out why before you try again. When the outcome of a call is given as unknown, find out what it has done before you do it again.

For work of several steps keep a plan with the tool for that. Write to the person in their language, briefly and exactly: what you did, what came of it, what is open. Do not claim what you have not seen.`

// options are what a runtime's row says of the loop.
type options struct {
	model string // to take when the session names none
	ask   bool   // calls with effects need a person's consent
	more  string // the setting "instructions": added to ours
}

func readOptions(job harness.Job) options {
	o := options{model: job.Runtime.Model, ask: job.Runtime.Approvals == harness.ApprovalsAsk}
	for _, s := range job.Runtime.Settings {
		if s.ID == "instructions" {
			o.more = s.Value
		}
	}
	return o
}

// system is the system prompt.
func (o options) system(base string) string {
	if o.more == "" {
		return base
	}
	return base + "\n\n" + o.more
}

// needsConsent reports whether a person has to allow a call of t.
func (d *drive) needsConsent(t *tool) bool {
	return d.opts.ask && t.effects && !slices.Contains(d.st.Allowed, t.spec.Name)
}
