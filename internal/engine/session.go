package engine

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// rememberFor is how long an idempotency key is remembered.
const rememberFor = 24 * time.Hour

// remembered is what an idempotency record holds: the ids that the command
// made. A repeated command is answered with their present state.
type remembered struct {
	Session sojourn.SessionID `json:"session"`
	Turn    sojourn.TurnID    `json:"turn,omitempty"`
	Run     sojourn.RunID     `json:"run,omitempty"`
	Exec    sojourn.ExecID    `json:"exec,omitempty"`
}

// once runs f unless a command with the same key has been carried out; then it
// returns what that one made. The error code is idempotency_conflict when that
// was another command.
func once(tx *store.Tx, project sojourn.ProjectID, i sojourn.Idempotency, f func() (remembered, error)) (remembered, error) {
	if i.Key == "" {
		return f()
	}
	k := store.IdempotencyKey{Project: project, Key: i.Key}
	prior, err := tx.Remember(k, i.Hash, tx.Now().Add(rememberFor))
	if err != nil {
		return remembered{}, err
	}
	if prior != nil {
		var r remembered
		if err := json.Unmarshal(prior.Body, &r); err != nil {
			return r, fmt.Errorf("decode an idempotency record: %w", err)
		}
		return r, nil
	}
	r, err := f()
	if err != nil {
		return r, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return r, fmt.Errorf("encode an idempotency record: %w", err)
	}
	return r, tx.StoreReply(k, 0, body)
}

// CreateSession makes a session; with an initial turn it also submits that, in
// the same change. Nothing is provisioned for the session itself.
func (e *Engine) CreateSession(ctx context.Context, in Create) (Created, error) {
	if in.Runtime == "" {
		in.Runtime = e.cfg.Runtimes[0].ID
	}
	row, ok := e.runtime(in.Runtime)
	if !ok && in.Runtime != sojourn.RuntimeNone {
		return Created{}, sojourn.Errorf(sojourn.CodeInvalid, "runtime: %q is not one of the configured runtimes.", bounded(in.Runtime, 100))
	}
	if err := e.checkModel(row, in.Model); err != nil {
		return Created{}, err
	}
	if err := in.Sandbox.Validate(); err != nil {
		return Created{}, err
	}
	if err := e.checkSandbox(in.Sandbox); err != nil {
		return Created{}, err
	}
	if in.Rotation.Processes {
		if err := e.checkProcesses("rotation.includeProcessState"); err != nil {
			return Created{}, err
		}
	}
	ids := remembered{Session: newID[sojourn.SessionID]()}
	if in.InitialTurn != nil {
		ids.Turn, ids.Run = newID[sojourn.TurnID](), newID[sojourn.RunID]()
	}
	var out Created
	err := e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		made, err := once(tx, in.Project, in.Idempotency, func() (remembered, error) {
			if err := clientFree(tx, in.Project, in.Presence.Client); err != nil {
				return ids, err
			}
			d, err := sojourn.Create(tx.Now(), sojourn.NewSession{
				ID: ids.Session, Project: in.Project, Contract: in.Contract,
				Title: in.Title, Runtime: in.Runtime, Model: in.Model, Metadata: in.Metadata, Sandbox: in.Sandbox, Limits: in.Limits,
				Rotation: in.Rotation, Presence: in.Presence, Carryover: in.Carryover,
			})
			if err != nil {
				return ids, err
			}
			if in.InitialTurn != nil {
				if err := d.Submit(ids.Turn, ids.Run, in.InitialTurn); err != nil {
					return ids, err
				}
			}
			return ids, tx.Apply(d.Change())
		})
		if err != nil {
			return err
		}
		out, err = readCreated(tx, made)
		return err
	})
	return out, err
}

func readCreated(tx *store.Tx, ids remembered) (out Created, err error) {
	if out.Facts, err = tx.Facts(ids.Session); err != nil || ids.Run == "" {
		return out, err
	}
	turn, err := tx.Turn(ids.Turn)
	if err != nil {
		return out, err
	}
	run, err := tx.Run(ids.Run)
	out.Turn, out.Run = &turn, &run
	return out, err
}

// seen reads the facts of a session as ref may see it. Foreign sessions are not
// found.
func seen(tx *store.Tx, ref Ref) (sojourn.Facts, error) {
	f, err := tx.Facts(ref.ID)
	if err != nil {
		return f, err
	}
	if err := ref.check(f.Session); err != nil {
		return sojourn.Facts{}, err
	}
	return f, nil
}

// check refuses a session that ref may not see, as one that there is not.
func (r Ref) check(s sojourn.Session) error {
	if s.Project != r.Project || r.Contract != "" && s.Contract != r.Contract || !s.DeletedAt.IsZero() {
		return sojourn.Errorf(sojourn.CodeNotFound, "There is no such session.")
	}
	return nil
}

// view reads something of a session that ref may see.
func (e *Engine) view(ctx context.Context, ref Ref, f func(*store.Tx, sojourn.Facts) error) error {
	return e.cfg.Store.View(ctx, func(tx *store.Tx) error {
		facts, err := seen(tx, ref)
		if err != nil {
			return err
		}
		return f(tx, facts)
	})
}

// update decides on a session that ref may see.
func (e *Engine) update(ctx context.Context, ref Ref, f func(*store.Tx, *sojourn.Decision) error) (facts sojourn.Facts, err error) {
	err = e.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		before, err := seen(tx, ref)
		if err != nil {
			return err
		}
		if err := e.apply(tx, before, f); err != nil {
			return err
		}
		facts, err = tx.Facts(ref.ID)
		return err
	})
	return facts, err
}

// Session returns the facts of a session.
func (e *Engine) Session(ctx context.Context, ref Ref) (facts sojourn.Facts, err error) {
	err = e.view(ctx, ref, func(_ *store.Tx, f sojourn.Facts) error {
		facts = f
		return nil
	})
	return facts, err
}

// Sessions returns one page of sessions, newest first.
func (e *Engine) Sessions(ctx context.Context, q SessionQuery) (page SessionPage, err error) {
	after, err := parseSessionCursor(q.After)
	if err != nil {
		return page, err
	}
	if q.Limit == 0 {
		q.Limit = 50
	}
	if q.Limit < 1 || q.Limit > 200 {
		return page, sojourn.Errorf(sojourn.CodeInvalid, "limit: between 1 and 200.")
	}
	err = e.cfg.Store.View(ctx, func(tx *store.Tx) (err error) {
		page.Sessions, err = tx.Sessions(store.SessionQuery{
			Project: q.Project, Contract: q.Contract, Archived: q.Archived, After: after, Limit: q.Limit + 1,
		})
		return err
	})
	if len(page.Sessions) > q.Limit {
		page.Sessions = page.Sessions[:q.Limit]
		last := page.Sessions[q.Limit-1].Session
		page.Next = sessionCursor(store.SessionCursor{CreatedAt: last.CreatedAt, ID: last.ID})
	}
	return page, err
}

func sessionCursor(c store.SessionCursor) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.CreatedAt.UnixMicro(), 10) + " " + string(c.ID)))
}

func parseSessionCursor(s string) (c store.SessionCursor, err error) {
	if s == "" {
		return c, nil
	}
	bad := sojourn.Errorf(sojourn.CodeInvalidCursor, "cursor: use one that a page gave out.")
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) > 200 {
		return c, bad
	}
	at, id, ok := strings.Cut(string(raw), " ")
	micros, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil || id == "" {
		return c, bad
	}
	return store.SessionCursor{CreatedAt: time.UnixMicro(micros).UTC(), ID: sojourn.SessionID(id)}, nil
}

// Archive closes a session to commands for good and gives its lease back.
func (e *Engine) Archive(ctx context.Context, ref Ref) (sojourn.Facts, error) {
	return e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
		if d.Facts().Session.Bare() { // its execs and files are not given up like that
			return sojourn.Errorf(sojourn.CodeInvalid, "The session has no agent: stop, cancel or delete it.")
		}
		return d.Archive()
	})
}

// EnsureWorkspace gives a session a workspace again: it returns once one is
// attached, unchanged when one is, or after wait with the code
// workspace_starting while the making goes on. A session whose previous work
// cannot be carried is refused with resume_unavailable rather than given an
// empty workspace.
func (e *Engine) EnsureWorkspace(ctx context.Context, ref Ref, wait time.Duration) (sojourn.Facts, error) {
	facts, err := e.update(ctx, ref, func(_ *store.Tx, d *sojourn.Decision) error {
		if err := d.AdmitsWorkspace(); err != nil {
			return err
		}
		if l := d.Facts().Lease; l != nil {
			d.TouchLease(l.Epoch)
		}
		return nil
	})
	if err != nil || e.live(facts.Lease, e.Now()) != nil && !facts.Session.Rotating() {
		return facts, err
	}
	starting := &sojourn.Error{
		Code: sojourn.CodeWorkspaceStarting, RetryAfter: 2 * time.Second, Message: "A sandbox is coming up. Retry.",
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, starting)
	defer cancel()
	if facts.Session.Bare() {
		return e.awaitBench(ctx, ref)
	}
	if _, err := e.ensure(ctx, ref.ID); err != nil {
		return facts, err
	}
	return e.Session(context.WithoutCancel(ctx), ref)
}

// Capabilities returns what the installation can do now.
func (e *Engine) Capabilities(context.Context) (Capabilities, error) {
	c := Capabilities{
		Compute: e.cfg.Driver != nil, ComputeReason: e.cfg.DriverReason,
		WorkspaceMaxBytes: e.cfg.WorkspaceMaxBytes, ConversationMaxBytes: e.cfg.ConversationMaxBytes,
		Ceiling: e.cfg.Terms.Ceiling, Hold: e.cfg.Terms.Hold, TurnDeadline: e.cfg.TurnDeadline,
	}
	if e.cfg.Driver != nil {
		c.Driver, c.Isolation = e.cfg.Driver.Name(), string(e.cfg.Driver.Capabilities().Isolation)
	}
	for i, r := range e.cfg.Runtimes {
		why := e.whyNot(r)
		c.Runtimes = append(c.Runtimes, RuntimeStatus{
			ID: r.ID, Label: r.Label, Available: why == "", Reason: why, Exact: r.Exact, Default: i == 0,
		})
	}
	return c, nil
}

// whyNot says why a run could not use a runtime, as far as that is known before a
// sandbox is there; "" when it could.
func (e *Engine) whyNot(r harness.Runtime) string {
	if r.Unavailable != "" && e.cfg.Sandbox.Image == "" {
		return r.Unavailable
	}
	if !r.NeedsModel() {
		return ""
	}
	if e.cfg.Models == nil {
		return harness.ErrNoModel.Error()
	}
	if _, err := e.cfg.Models.Choose(r.API, ""); err != nil {
		return messageOf(err)
	}
	return ""
}
