package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	interactionColumns = `id, session, run, kind, state, ref, request, options, opened_at, ended_at, answer, reason, exec, expires_at`

	upsertInteraction = `INSERT INTO interactions (` + interactionColumns + `)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
	ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at,
	answer = excluded.answer, reason = excluded.reason`

	selectInteraction = `SELECT ` + interactionColumns + ` FROM interactions WHERE id = $1`

	selectInteractions = `SELECT ` + interactionColumns + ` FROM interactions
	WHERE session = $1 AND ($2 = '' OR state = $2) ORDER BY opened_at, id`

	selectInteractionOf = `SELECT ` + interactionColumns + ` FROM interactions
	WHERE session = $1 AND run = $2 AND ref = $3 ORDER BY opened_at DESC, id DESC LIMIT 1`

	selectOpenInteractions = `SELECT ` + interactionColumns + ` FROM interactions
	WHERE session = $1 AND state = 'open' ORDER BY opened_at, id`
)

func scanInteraction(row scanner) (i sojourn.Interaction, err error) {
	var request, options, answer string
	var opened, ended, expires int64
	err = row.Scan(&i.ID, &i.Session, &i.Run, &i.Kind, &i.State, &i.Ref, &request, &options,
		&opened, &ended, &answer, &i.Reason, &i.Exec, &expires)
	if err != nil {
		return i, err
	}
	i.Request, i.OpenedAt, i.EndedAt, i.ExpiresAt = raw(request), instant(opened), instant(ended), instant(expires)
	if err := decode(options, &i.Options); err != nil {
		return i, err
	}
	return i, decode(answer, &i.Answer)
}

func (t *Tx) putInteraction(i sojourn.Interaction) error {
	options, err := encoded(i.Options, i.Options == nil)
	if err != nil {
		return t.fail("encode options", err)
	}
	answer, err := encoded(i.Answer, i.Answer == nil)
	if err != nil {
		return t.fail("encode answer", err)
	}
	_, err = t.exec("write interaction", upsertInteraction, i.ID, i.Session, i.Run, i.Kind, i.State, i.Ref,
		string(i.Request), options, micros(i.OpenedAt), micros(i.EndedAt), answer, i.Reason, i.Exec, micros(i.ExpiresAt))
	return err
}

// Interaction returns an interaction.
func (t *Tx) Interaction(id sojourn.InteractionID) (sojourn.Interaction, error) {
	return one(t, "interaction", scanInteraction, selectInteraction, id)
}

// Interactions returns those of a session in a state ("" for all), oldest first.
func (t *Tx) Interactions(session sojourn.SessionID, state sojourn.InteractionState) ([]sojourn.Interaction, error) {
	return collect(t, "interactions", scanInteraction, selectInteractions, session, state)
}

func (t *Tx) openInteractions(session sojourn.SessionID) ([]sojourn.Interaction, error) {
	return collect(t, "interactions", scanInteraction, selectOpenInteractions, session)
}

// InteractionOf returns the latest question with that ref in a run.
func (t *Tx) InteractionOf(session sojourn.SessionID, run sojourn.RunID, ref string) (sojourn.Interaction, error) {
	return one(t, "interaction", scanInteraction, selectInteractionOf, session, run, ref)
}
