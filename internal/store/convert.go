package store

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// micros is how an instant is stored.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// instant reads what micros wrote.
func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// duration reads microseconds.
func duration(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// flag is how a bool is stored.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// encoded is how a structured value is stored: JSON, or "" for nothing.
func encoded[T any](v T, none bool) (string, error) {
	if none {
		return "", nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// decode reads what encoded wrote.
func decode(s string, into any) error {
	if s == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(s), into); err != nil {
		return fmt.Errorf("stored JSON: %w", err)
	}
	return nil
}

// raw reads stored JSON that is passed on as it is.
func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

func hashText(h [32]byte) string { return hex.EncodeToString(h[:]) }

func parseHash(s string) (h [32]byte, err error) {
	if n, err := hex.Decode(h[:], []byte(s)); err != nil || n != len(h) {
		return h, fmt.Errorf("stored hash of %d characters is damaged", len(s))
	}
	return h, nil
}

// page is the number of rows to read for a caller's limit.
func page(limit int) int {
	const most = 1000
	if limit <= 0 {
		return 100
	}
	return min(limit, most)
}
