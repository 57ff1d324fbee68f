package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// CreateSession is what a session is created from.
type CreateSession struct {
	Contract    string            `json:"contract,omitempty"` // "" means cloud, or exec for the runtime none
	Title       string            `json:"title,omitempty"`
	Runtime     string            `json:"runtime,omitempty"` // "" means the server's default
	Model       string            `json:"model,omitempty"`   // "" means the server's choice
	Metadata    map[string]string `json:"metadata,omitempty"`
	Budget      *BudgetLimits     `json:"budget,omitempty"`
	Sandbox     *Sandbox          `json:"sandbox,omitempty"`
	InitialTurn *TurnInput        `json:"initialTurn,omitempty"`

	// Rotation and what follows is of a session without an agent: contract exec,
	// runtime none.
	Rotation  *RotationTerms  `json:"rotation,omitempty"`
	ClientID  string          `json:"clientId,omitempty"`
	OnAbandon string          `json:"onAbandon,omitempty"` // pause or stop
	Context   *CarryoverPatch `json:"context,omitempty"`
}

// Created is a new session, with what its initial turn made.
type Created struct {
	Session Session `json:"session"`
	Turn    *Turn   `json:"turn,omitempty"`
	Run     *Run    `json:"run,omitempty"`
}

// CreateSession makes a session.
func (c *Client) CreateSession(ctx context.Context, in CreateSession) (Created, error) {
	var out Created
	return out, c.call(ctx, http.MethodPost, "/sessions", nil, in, &out)
}

// SessionQuery selects sessions, newest first.
type SessionQuery struct {
	Contract string // "" selects every contract
	Archived *bool  // nil selects both
	Cursor   string // the NextCursor of the page before
	Limit    int    // 1..200; 0 means 50
}

// SessionPage is one page of sessions.
type SessionPage struct {
	Sessions   []Session `json:"sessions"`
	NextCursor string    `json:"nextCursor,omitempty"` // "" on the last page
}

// Sessions returns one page of sessions.
func (c *Client) Sessions(ctx context.Context, q SessionQuery) (SessionPage, error) {
	v := page(q.Cursor, q.Limit)
	if q.Contract != "" {
		v.Set("contract", q.Contract)
	}
	if q.Archived != nil {
		v.Set("archived", strconv.FormatBool(*q.Archived))
	}
	var out SessionPage
	return out, c.call(ctx, http.MethodGet, "/sessions", v, nil, &out)
}

func page(cursor string, limit int) url.Values {
	v := url.Values{}
	if cursor != "" {
		v.Set("cursor", cursor)
	}
	if limit != 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	return v
}

// of is the path of a session, or of something below it.
func of(session string, below ...string) string {
	path := "/sessions/" + url.PathEscape(session)
	for _, b := range below {
		path += "/" + url.PathEscape(b)
	}
	return path
}

type sessionBody struct{ Session Session }

// Session returns a session.
func (c *Client) Session(ctx context.Context, id string) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodGet, of(id), nil, nil, &out)
	return out.Session, err
}

// ArchiveSession closes a session to commands for good.
func (c *Client) ArchiveSession(ctx context.Context, id string) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPost, of(id, "archive"), nil, nil, &out)
	return out.Session, err
}

// EnsureWorkspace brings a session's workspace back. The code workspace_starting
// asks to repeat the call.
func (c *Client) EnsureWorkspace(ctx context.Context, id string) (Session, error) {
	var out sessionBody
	err := c.call(ctx, http.MethodPut, of(id, "workspace"), nil, nil, &out)
	return out.Session, err
}

// Submitted is an accepted turn and the run that will execute it.
type Submitted struct {
	Turn Turn `json:"turn"`
	Run  Run  `json:"run"`
}

// SubmitTurn submits a turn. Once it returns without an error the run will reach
// exactly one end.
func (c *Client) SubmitTurn(ctx context.Context, session string, in TurnInput) (Submitted, error) {
	var out Submitted
	return out, c.call(ctx, http.MethodPost, of(session, "turns"), nil, in, &out)
}

// Turns returns the turns of a session, oldest first.
func (c *Client) Turns(ctx context.Context, session string) ([]Turn, error) {
	return all(func(cursor string) ([]Turn, string, error) {
		var out struct {
			Turns      []Turn
			NextCursor string
		}
		err := c.call(ctx, http.MethodGet, of(session, "turns"), page(cursor, 0), nil, &out)
		return out.Turns, out.NextCursor, err
	})
}

// Runs returns the runs of a session, oldest first.
func (c *Client) Runs(ctx context.Context, session string) ([]Run, error) {
	return all(func(cursor string) ([]Run, string, error) {
		var out struct {
			Runs       []Run
			NextCursor string
		}
		err := c.call(ctx, http.MethodGet, of(session, "runs"), page(cursor, 0), nil, &out)
		return out.Runs, out.NextCursor, err
	})
}

// all reads every page of a list.
func all[T any](read func(cursor string) ([]T, string, error)) (list []T, err error) {
	for cursor := ""; ; {
		part, next, err := read(cursor)
		if err != nil {
			return nil, err
		}
		list = append(list, part...)
		if cursor = next; cursor == "" {
			return list, nil
		}
	}
}

type runBody struct{ Run Run }

// Run returns a run.
func (c *Client) Run(ctx context.Context, session, run string) (Run, error) {
	var out runBody
	err := c.call(ctx, http.MethodGet, of(session, "runs", run), nil, nil, &out)
	return out.Run, err
}

// CancelRun asks a run to end. The run that it returns may not have ended yet.
func (c *Client) CancelRun(ctx context.Context, session, run string) (Run, error) {
	var out runBody
	err := c.call(ctx, http.MethodPost, of(session, "runs", run, "cancel"), nil, nil, &out)
	return out.Run, err
}

// Interactions returns the interactions of a session, oldest first: those in
// state, or all for "".
func (c *Client) Interactions(ctx context.Context, session, state string) ([]Interaction, error) {
	v := url.Values{}
	if state != "" {
		v.Set("state", state)
	}
	var out struct{ Interactions []Interaction }
	err := c.call(ctx, http.MethodGet, of(session, "interactions"), v, nil, &out)
	return out.Interactions, err
}

// AnswerInteraction answers a question.
func (c *Client) AnswerInteraction(ctx context.Context, session, id string, a Answer) (Interaction, error) {
	var out struct{ Interaction Interaction }
	err := c.call(ctx, http.MethodPut, of(session, "interactions", id, "answer"), nil, a, &out)
	return out.Interaction, err
}

// Events returns up to limit events behind after (1..1000, 0 means 100), and
// whether there are more.
func (c *Client) Events(ctx context.Context, session string, after int64, limit int) (events []Event, more bool, err error) {
	v := page("", limit)
	v.Set("after", strconv.FormatInt(after, 10))
	var out struct {
		Events    []Event
		NextAfter *int64
	}
	err = c.call(ctx, http.MethodGet, of(session, "events"), v, nil, &out)
	return out.Events, out.NextAfter != nil, err
}

// CreateKey is what a key is made from.
type CreateKey struct {
	Kind   string   `json:"kind"` // admin, app, environment or runner
	Name   string   `json:"name,omitempty"`
	Scopes []string `json:"scopes,omitempty"` // of an app key
}

// CreatedKey is a new key with its secret, which is shown this once.
type CreatedKey struct {
	Key    Key    `json:"key"`
	Secret string `json:"secret"`
}

// CreateKey makes an API key.
func (c *Client) CreateKey(ctx context.Context, in CreateKey) (CreatedKey, error) {
	var out CreatedKey
	return out, c.call(ctx, http.MethodPost, "/keys", nil, in, &out)
}

// Keys returns the keys of the project, oldest first, revoked ones too.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	var out struct{ Keys []Key }
	err := c.call(ctx, http.MethodGet, "/keys", nil, nil, &out)
	return out.Keys, err
}

// RevokeKey ends a key for good, and every stream that it opened.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/keys/"+url.PathEscape(id), nil, nil, nil)
}

// Status returns what the server is and can do.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var out struct{ Status Status }
	err := c.call(ctx, http.MethodGet, "/status", nil, nil, &out)
	return out.Status, err
}
