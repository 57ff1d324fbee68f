package loop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	maxReadLines = 2000
	maxLineBytes = 2000
	maxListed    = 1000
)

// runRead reads a part of a text file.
func runRead(ctx context.Context, t *task) (result, error) {
	in, wrong := read[struct {
		Path   string `json:"path"`
		Offset int    `json:"offset"`
		Limit  int    `json:"limit"`
	}](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	name := resolve(in.Path)
	data, err := t.drive.link.ReadFile(ctx, name)
	if refused(err) {
		return refusal("%s cannot be read: %s", name, why(err)), nil
	}
	if err != nil {
		return result{}, err
	}
	if isBinary(data) {
		return refusal("%s is not a text file (%d bytes).", name, len(data)), nil
	}
	if len(data) == 0 {
		return result{output: "[the file is empty]"}, nil
	}
	return result{output: numbered(data, max(in.Offset, 1), in.Limit)}, nil
}

// numbered is the part of a text from line first on, as much as a result holds.
func numbered(data []byte, first, limit int) string {
	if limit <= 0 || limit > maxReadLines {
		limit = maxReadLines
	}
	var out strings.Builder
	total, shown := 0, 0
	for line := range bytes.SplitSeq(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		total++
		if total < first || shown >= limit || out.Len() > maxOutputBytes-2*maxLineBytes {
			continue
		}
		shown++
		fmt.Fprintf(&out, "%d\t%s\n", total, cut(string(bytes.TrimSuffix(line, []byte("\r"))), maxLineBytes))
	}
	switch last := first + shown - 1; {
	case shown == 0:
		fmt.Fprintf(&out, "[the file has only %d lines]", total)
	case last < total:
		fmt.Fprintf(&out, "[lines %d to %d of %d]", first, last, total)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// cut shortens a line.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + fmt.Sprintf(" [… %d bytes left out]", len(s)-n)
}

func isBinary(data []byte) bool {
	head := data[:min(len(data), 8<<10)]
	return bytes.IndexByte(head, 0) >= 0
}

// why is the far side's refusal in few words.
func why(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file or directory."
	case errors.Is(err, fs.ErrPermission):
		return "permission denied."
	case errors.Is(err, link.ErrLimit):
		return "it is too large."
	}
	return clip(err.Error(), 500)
}

// runList lists a directory.
func runList(ctx context.Context, t *task) (result, error) {
	in, wrong := read[struct {
		Path string `json:"path"`
	}](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	name := resolve(in.Path)
	entries, err := t.drive.link.ReadDirectory(ctx, name)
	if refused(err) {
		return refusal("%s cannot be listed: %s", name, why(err)), nil
	}
	if err != nil {
		return result{}, err
	}
	var out strings.Builder
	for _, e := range entries[:min(len(entries), maxListed)] {
		out.WriteString(cut(e.Name, 255))
		if e.IsDirectory {
			out.WriteByte('/')
		}
		out.WriteByte('\n')
	}
	if len(entries) > maxListed {
		fmt.Fprintf(&out, "[%d more]", len(entries)-maxListed)
	}
	return result{output: or(strings.TrimSuffix(out.String(), "\n"), "[the directory is empty]")}, nil
}

// changeInput is the input of write and of edit.
type changeInput struct {
	Path    string  `json:"path"`
	Content *string `json:"content"`
	Old     *string `json:"old_text"`
	New     *string `json:"new_text"`
	All     bool    `json:"replace_all"`
}

// apply makes the new content of a file from its old one; nil is a file that is
// not there.
func (in changeInput) apply(old []byte) ([]byte, *result) {
	if in.Content != nil {
		return []byte(*in.Content), nil
	}
	if in.Old == nil || in.New == nil {
		return nil, new(refusal("The input lacks the text: content, or old_text and new_text."))
	}
	if old == nil {
		return nil, new(refusal("There is no such file."))
	}
	if *in.Old == "" || *in.Old == *in.New {
		return nil, new(refusal("old_text has to be something, and something else than new_text."))
	}
	switch n := bytes.Count(old, []byte(*in.Old)); {
	case n == 0:
		return nil, new(refusal("old_text is not in the file. It has to be there exactly, with all its spaces and line ends."))
	case n > 1 && !in.All:
		return nil, new(refusal("old_text is in the file %d times. Give more of what is around the place, or set replace_all.", n))
	}
	return bytes.ReplaceAll(old, []byte(*in.Old), []byte(*in.New)), nil
}

// digest tells contents apart; that of no file is "none".
func digest(data []byte) string {
	if data == nil {
		return "none"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// current is the file of a change as it is now, nil if it is not there.
func (t *task) current(ctx context.Context, name string) ([]byte, error) {
	data, err := t.drive.link.ReadFile(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && data == nil {
		data = []byte{}
	}
	return data, err
}

// prepareChange notes what the file is and what it is to be, so that after a
// crash it shows which of them it is.
func prepareChange(ctx context.Context, t *task) (*result, error) {
	in, wrong := read[changeInput](t.input)
	if wrong != nil {
		return wrong, nil
	}
	name := resolve(in.Path)
	if in.Path == "" {
		return new(refusal("The input lacks the path.")), nil
	}
	if name == stateDir || strings.HasPrefix(name, stateDir+"/") {
		return new(refusal("The files of the conversation cannot be changed.")), nil
	}
	old, err := t.current(ctx, name)
	if refused(err) {
		return new(refusal("%s cannot be changed: %s", name, why(err))), nil
	}
	if err != nil {
		return nil, err
	}
	after, wrong := in.apply(old)
	if wrong != nil {
		return wrong, nil
	}
	if len(after) > link.MaxFileBytes {
		return new(refusal("%s would have %d bytes, at most %d can be written.", name, len(after), link.MaxFileBytes)), nil
	}
	t.call.Before, t.call.After = digest(old), digest(after)
	return nil, nil
}

// runChange changes the file, if it is still what it was.
func runChange(ctx context.Context, t *task) (result, error) {
	in, wrong := read[changeInput](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	name := resolve(in.Path)
	old, err := t.current(ctx, name)
	if err != nil {
		return result{}, err
	}
	if digest(old) != t.call.Before {
		return refusal("%s was changed by something else at this moment. Read it again.", name), nil
	}
	after, wrong := in.apply(old)
	if wrong != nil {
		return *wrong, nil
	}
	// Once begun, a change is not broken off by the end of the turn.
	d := t.drive
	if old == nil {
		if err := d.link.CreateDirectory(d.ctx, path.Dir(name), true); refused(err) {
			return refusal("The directory of %s cannot be made: %s", name, why(err)), nil
		} else if err != nil {
			return result{}, err
		}
	}
	if err := d.link.WriteFile(d.ctx, name, after); refused(err) {
		return refusal("%s cannot be written: %s", name, why(err)), nil
	} else if err != nil {
		return result{}, err
	}
	return changed(name, old, after), nil
}

// recoverChange finds out whether a change took place. One that did not is made
// now: that is the first time.
func recoverChange(ctx context.Context, t *task) (result, error) {
	in, wrong := read[changeInput](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	name := resolve(in.Path)
	now, err := t.current(ctx, name)
	switch {
	case refused(err):
		return refusal(saidUnknown), nil
	case err != nil:
		return result{}, err
	case digest(now) == t.call.After:
		return result{output: fmt.Sprintf("Wrote %s: %d bytes.", name, len(now))}, nil
	case digest(now) == t.call.Before:
		return runChange(ctx, t)
	}
	return refusal(saidUnknown), nil
}

// changed tells of a change that was made.
func changed(name string, old, after []byte) result {
	r := result{output: fmt.Sprintf("Wrote %s: %d bytes.", name, len(after))}
	if len(old) <= maxShownBytes && len(after) <= maxShownBytes && utf8.Valid(old) && utf8.Valid(after) {
		s := shown{Type: "diff", Path: name, NewText: new(string(after))}
		if old != nil {
			s.OldText = new(string(old))
		}
		r.shown = []shown{s}
	}
	return r
}
