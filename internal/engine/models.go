package engine

import (
	"cmp"
	"context"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/store"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// AdmitModelCall refuses a call of a model from the sandbox of epoch that must not
// be made. The codes are not_found, session_archived and workspace_expired.
func (e *Engine) AdmitModelCall(ctx context.Context, id sojourn.SessionID, epoch int64) error {
	facts, err := e.facts(ctx, id)
	if err != nil {
		return err
	}
	return facts.AdmitModelCall(epoch, e.Now())
}

// NoteModelCall writes a call of a model that has ended into the session's log. It
// was made and has to be paid for, so it is also noted when its sandbox is gone.
func (e *Engine) NoteModelCall(ctx context.Context, id sojourn.SessionID, epoch int64, c sojourn.ModelCall) error {
	return e.decide(ctx, id, func(_ *store.Tx, d *sojourn.Decision) error {
		d.NoteModelCall(epoch, c)
		return nil
	})
}

// Models are what the installation offers to runtimes through its gateway.
type Models interface {
	// Choose returns the model that a runtime gets which speaks an API: want, or the
	// first that there is. The error code is invalid when there is none.
	Choose(api, want string) (model string, err error)
	// Token is what the programs in a sandbox of a session show the gateway; epoch is
	// the one under which they were started.
	Token(id sojourn.SessionID, epoch int64) string
}

// modelURL is where the gateway is, seen from inside a sandbox.
const modelURL = "http://" + sandbox.EgressAddress + "/model"

// offerModel fills in what a runtime is told of models. One that needs a model and
// gets none is found unavailable by its harness.
func (e *Engine) offerModel(job *harness.Job, s sojourn.Session) {
	job.MCPServers = e.cfg.MCPServers
	job.Model = s.Model
	if e.cfg.Models == nil || job.Runtime.API == "" {
		return
	}
	model, err := e.cfg.Models.Choose(job.Runtime.API, cmp.Or(s.Model, job.Runtime.Model))
	if err != nil {
		e.log.Warn("no model for a runtime", "session", s.ID, "runtime", job.Runtime.ID, "error", err)
		job.Model = ""
		return
	}
	job.Model, job.ModelURL = model, modelURL
	job.Token = e.cfg.Models.Token(s.ID, job.ProcessEpoch)
}

// checkModel refuses a model that the session's runtime cannot get.
func (e *Engine) checkModel(row harness.Runtime, want string) error {
	if want == "" {
		return nil
	}
	if e.cfg.Models == nil {
		return sojourn.Errorf(sojourn.CodeInvalid, "model: this installation has no models.")
	}
	if row.API == "" {
		return nil // what it means is the runtime's own business
	}
	_, err := e.cfg.Models.Choose(row.API, want)
	return err
}
