package sojourn

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// MaxCarryoverBytes bounds a carryover as JSON.
const MaxCarryoverBytes = 256 << 10

// WorkspacePath is where a session's files are inside its sandbox.
const WorkspacePath = "/workspace"

// Carryover is what execs start from in every sandbox of a session.
type Carryover struct {
	Session   SessionID
	Dir       string            // absolute, in the workspace; "" is the workspace
	Env       map[string]string // variables
	Custom    map[string]json.RawMessage
	UpdatedAt time.Time // zero for one that was never written
}

// CarryoverPatch changes a carryover as a JSON merge patch does (RFC 7396).
type CarryoverPatch struct {
	Dir    *string            // nil leaves it; "" is the workspace again
	Env    map[string]*string // a nil value deletes
	NoEnv  bool               // forget every variable first
	Custom map[string]json.RawMessage
	// NoCustom forgets the custom state first.
	NoCustom bool
}

// Patch returns the carryover as p leaves it. The code is invalid or too_large.
func (c Carryover) Patch(p CarryoverPatch) (Carryover, error) {
	if p.Dir != nil {
		dir, err := WorkspaceDir(*p.Dir)
		if err != nil {
			return c, err
		}
		c.Dir = dir
	}
	env := map[string]string{}
	if !p.NoEnv {
		maps.Copy(env, c.Env)
	}
	for k, v := range p.Env {
		if v == nil {
			delete(env, k)
			continue
		}
		env[k] = *v
	}
	if err := CheckEnv("env", env); err != nil {
		return c, err
	}
	custom := map[string]json.RawMessage{}
	if !p.NoCustom {
		maps.Copy(custom, c.Custom)
	}
	for k, v := range p.Custom {
		if err := checkNesting("context", v); err != nil {
			return c, err
		}
		if merged, keep := mergePatch(custom[k], v); keep {
			custom[k] = merged
		} else {
			delete(custom, k)
		}
	}
	c.Env, c.Custom = env, custom
	if c.Bytes() > MaxCarryoverBytes {
		return c, Errorf(CodeTooLarge, "The context of a session is bounded to %d bytes.", MaxCarryoverBytes)
	}
	return c, nil
}

// Bytes returns its size as JSON.
func (c Carryover) Bytes() int {
	b, err := json.Marshal(struct {
		D string
		E map[string]string
		C map[string]json.RawMessage
	}{c.Dir, c.Env, c.Custom})
	if err != nil {
		return MaxCarryoverBytes + 1
	}
	return len(b)
}

// maxNesting bounds how deep a value of a carryover is: merging looks at every
// level of it as a whole.
const maxNesting = 64

// checkNesting refuses text that is not one JSON value, or nested too deep.
func checkNesting(field string, v json.RawMessage) error {
	if !json.Valid(v) {
		return Errorf(CodeInvalid, "%s: must be JSON.", field)
	}
	depth, quoted := 0, false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return Errorf(CodeInvalid, "%s: nested more than %d deep.", field, maxNesting)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// mergePatch applies an RFC 7396 patch to one value; keep is false for null.
func mergePatch(old, patch json.RawMessage) (merged json.RawMessage, keep bool) {
	text := strings.TrimSpace(string(patch))
	if text == "null" {
		return nil, false
	}
	if !strings.HasPrefix(text, "{") {
		return patch, true
	}
	var target, change map[string]json.RawMessage
	if json.Unmarshal(patch, &change) != nil {
		return patch, true
	}
	if json.Unmarshal(old, &target) != nil || target == nil {
		target = map[string]json.RawMessage{}
	}
	for k, v := range change {
		if m, keep := mergePatch(target[k], v); keep {
			target[k] = m
		} else {
			delete(target, k)
		}
	}
	b, err := json.Marshal(target)
	if err != nil {
		return patch, true
	}
	return b, true
}

// WorkspaceDir resolves a directory that a caller names beneath the workspace. The
// code is invalid for one that is elsewhere.
func WorkspaceDir(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	if strings.ContainsRune(dir, 0) || len(dir) > 4096 {
		return "", Errorf(CodeInvalid, "workingDir: must be a path of at most 4,096 bytes.")
	}
	if !path.IsAbs(dir) {
		dir = path.Join(WorkspacePath, dir)
	}
	dir = path.Clean(dir)
	if dir != WorkspacePath && !strings.HasPrefix(dir, WorkspacePath+"/") {
		return "", Errorf(CodeInvalid, "workingDir: must be %s or beneath it: nothing else survives a rotation.", WorkspacePath)
	}
	return dir, nil
}

// CheckEnv refuses variables that no process can be given. The code is invalid or
// too_large.
func CheckEnv(field string, env map[string]string) error {
	total := 0
	for _, k := range slices.Sorted(maps.Keys(env)) {
		v := env[k]
		total += len(k) + len(v) + 2
		switch {
		case !validEnvName(k):
			return Errorf(CodeInvalid, "%s: %q is no name of a variable: letters, digits and _, not first a digit.", field, clipped(k))
		case strings.ContainsRune(v, 0):
			return Errorf(CodeInvalid, "%s: the value of %s contains a NUL.", field, k)
		}
	}
	if total > MaxExecArgBytes {
		return Errorf(CodeTooLarge, "%s: at most %d bytes.", field, MaxExecArgBytes)
	}
	return nil
}

func validEnvName(s string) bool {
	for i, r := range s {
		switch {
		case r == '_', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z':
		case r >= '0' && r <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != "" && len(s) <= 256
}

func clipped(s string) string {
	if len(s) > 80 {
		s = s[:80]
	}
	return strings.ToValidUTF8(s, "?")
}

// UpdateCarryover changes what execs start from. old was read in the same
// transaction.
func (d *Decision) UpdateCarryover(old Carryover, p CarryoverPatch) (Carryover, error) {
	s := d.facts.Session
	if s.State == SessionClosed {
		return old, invalidState(s, "takes no more changes")
	}
	next, err := old.Patch(p)
	if err != nil {
		return old, err
	}
	next.Session, next.UpdatedAt = s.ID, d.now
	d.carryover = &next
	d.emit(EventContextUpdated, "", "", map[string]any{"bytes": next.Bytes()})
	return next, nil
}
