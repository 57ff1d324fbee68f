package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Time is an instant on the wire: ISO 8601 in UTC with milliseconds.
type Time string

// Schema documents the form.
func (Time) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time", Examples: []any{"2026-08-11T10:04:00.000Z"}}
}

// Instant projects t. The zero time becomes "", which "omitempty" leaves out.
func Instant(t time.Time) Time {
	if t.IsZero() {
		return ""
	}
	return Time(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}
