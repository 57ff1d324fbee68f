package sojourn

import (
	"strings"
	"time"
	"unicode/utf8"
)

// The numbers of presence (contract B leaves them open).
const (
	HeartbeatEvery = 30 * time.Second
	// MissedHeartbeats are how many make a client lost.
	MissedHeartbeats = 3
	MaxClientBytes   = 256
)

// AbandonMode says what becomes of a session whose client is lost.
type AbandonMode string

// The abandon modes.
const (
	AbandonKeep  AbandonMode = ""
	AbandonPause AbandonMode = "pause"
	AbandonStop  AbandonMode = "stop"
)

// Presence is the last sign of life of a session's caller, under its own handle.
type Presence struct {
	Client    string      `json:"client,omitempty"` // unique among the sessions of a project that are not closed; "" for none
	OnAbandon AbandonMode `json:"onAbandon,omitempty"`
	SeenAt    time.Time   `json:"seenAt,omitzero"` // the last heartbeat; zero before the first
	LostAt    time.Time   `json:"lostAt,omitzero"` // zero unless heartbeats stay away
}

// Due returns when the next heartbeat is expected; zero before the first.
func (p Presence) Due() time.Time {
	if p.SeenAt.IsZero() {
		return time.Time{}
	}
	return p.SeenAt.Add(HeartbeatEvery)
}

// Attached reports whether a client is known to be there.
func (p Presence) Attached(now time.Time) bool {
	return !p.SeenAt.IsZero() && p.LostAt.IsZero() && now.Before(p.SeenAt.Add(MissedHeartbeats*HeartbeatEvery))
}

func (p Presence) validate() error {
	if len(p.Client) > MaxClientBytes || !utf8.ValidString(p.Client) || strings.ContainsFunc(p.Client, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return Errorf(CodeInvalid, "clientId: must be text of at most %d bytes, without control characters.", MaxClientBytes)
	}
	switch p.OnAbandon {
	case AbandonKeep, AbandonPause, AbandonStop:
		return nil
	}
	return Errorf(CodeInvalid, "onAbandon: pause or stop.")
}

// Seen records a sign of life of the session's client.
func (d *Decision) Seen() error {
	s := &d.facts.Session
	if s.State == SessionClosed {
		return nil
	}
	s.Presence.SeenAt = d.now
	if !s.Presence.LostAt.IsZero() {
		s.Presence.LostAt = time.Time{}
		d.emit(EventClientReattached, "", "", map[string]any{"clientId": s.Presence.Client})
	}
	s.UpdatedAt = d.now
	d.order(WorkPresence, string(s.ID), d.now.Add(MissedHeartbeats*HeartbeatEvery))
	return nil
}

// Reattach records that a client came back under its handle.
func (d *Decision) Reattach() error {
	s := &d.facts.Session
	if s.State == SessionClosed {
		return Errorf(CodeNotFound, "There is no live session of this client.")
	}
	s.Presence.SeenAt, s.Presence.LostAt = d.now, time.Time{}
	d.emit(EventClientReattached, "", "", map[string]any{"clientId": s.Presence.Client})
	d.order(WorkPresence, string(s.ID), d.now.Add(MissedHeartbeats*HeartbeatEvery))
	return nil
}

// CheckPresence records that the client is lost when its heartbeats stay away,
// and does what the session asks for then. It returns when to look again; zero
// when there is nothing to wait for.
func (d *Decision) CheckPresence() (time.Time, error) {
	s := &d.facts.Session
	p := &s.Presence
	if s.State == SessionClosed || p.SeenAt.IsZero() || !p.LostAt.IsZero() {
		return time.Time{}, nil
	}
	if due := p.SeenAt.Add(MissedHeartbeats * HeartbeatEvery); d.now.Before(due) {
		return due, nil
	}
	p.LostAt = d.now
	d.emit(EventClientLost, "", "", map[string]any{"clientId": p.Client, "lastHeartbeatAt": instant(p.SeenAt)})
	switch {
	case p.OnAbandon == AbandonPause && s.State == SessionOpen:
		return time.Time{}, d.Pause()
	case p.OnAbandon == AbandonStop:
		return time.Time{}, d.Close(CloseCompleted, StopAbandoned, "")
	}
	return time.Time{}, nil
}
