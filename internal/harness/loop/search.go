package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/sojourn-dev/sojourn/sandbox"
)

const (
	maxSearchFile    = 1 << 20
	maxSearchBytes   = 64 << 20
	maxSearchEntries = 20_000
	maxMatches       = 200
	maxMatchBytes    = 300
	searchers        = 6 // files that are read at once
)

type searchInput struct {
	Pattern    string `json:"pattern"`
	Path       string `json:"path"`
	Glob       string `json:"glob"`
	IgnoreCase bool   `json:"ignore_case"`
}

func describeSearch(in json.RawMessage) (string, string) {
	var v searchInput
	_ = json.Unmarshal(in, &v) // what does not fit is said when the call is done
	return "Search for " + v.Pattern, resolve(v.Path)
}

// runSearch looks through files on the server's side of the link: images need
// not have a grep, and all of them give the same answer.
func runSearch(ctx context.Context, t *task) (result, error) {
	in, wrong := read[searchInput](t.input)
	if wrong != nil {
		return *wrong, nil
	}
	expr := in.Pattern
	if in.IgnoreCase {
		expr = "(?i)" + expr
	}
	re, err := regexp.Compile(expr)
	if err != nil || len(in.Pattern) > 4<<10 {
		return refusal("The pattern is not a regular expression in RE2 syntax: %s", clip(fmt.Sprint(err), 300)), nil
	}
	if _, err := path.Match(in.Glob, ""); err != nil {
		return refusal("The glob %q is malformed.", clip(in.Glob, 100)), nil
	}
	s := search{task: t, re: re, glob: in.Glob}
	if err := s.find(ctx, resolve(in.Path)); err != nil {
		if refused(err) {
			return refusal("%s cannot be searched: %s", resolve(in.Path), why(err)), nil
		}
		return result{}, err
	}
	if err := s.look(ctx); err != nil {
		return result{}, err
	}
	return result{output: s.report()}, nil
}

// search is one search: first the files, then what is in them.
type search struct {
	*task
	re    *regexp.Regexp
	glob  string
	files []string
	found [][]string // by file
	notes []string
}

// find lists the files below root, in order.
func (s *search) find(ctx context.Context, root string) error {
	m, err := s.drive.link.GetMetadata(ctx, root)
	if err != nil {
		return err
	}
	if m.IsFile {
		s.files = []string{root}
		return nil
	}
	todo, entries := []string{root}, 0
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		list, err := s.drive.link.ReadDirectory(ctx, dir)
		if refused(err) && dir != root {
			continue
		}
		if err != nil {
			return err
		}
		if entries += len(list); entries > maxSearchEntries {
			s.notes = append(s.notes, fmt.Sprintf("only the first %d names were looked at", maxSearchEntries))
			return nil
		}
		var below []string
		for _, e := range list {
			if strings.ContainsRune(e.Name, '/') || e.Name == "." || e.Name == ".." {
				continue // no name of a directory entry
			}
			full := path.Join(dir, e.Name)
			switch ok, _ := path.Match(s.glob, e.Name); {
			case e.IsDirectory && e.Name != ".git" && e.Name != "node_modules" && full != stateDir:
				below = append([]string{full}, below...)
			case e.IsFile && (s.glob == "" || ok):
				s.files = append(s.files, full)
			}
		}
		todo = append(todo, below...)
	}
	return nil
}

// look reads the files, some at once, until there are enough matches.
func (s *search) look(ctx context.Context) error {
	s.found = make([][]string, len(s.files))
	var (
		mu             sync.Mutex
		wg             sync.WaitGroup
		next           int
		matches, total int
		failure        error
	)
	worker := func() {
		for {
			mu.Lock()
			i, stop := next, failure != nil || matches >= maxMatches || total >= maxSearchBytes || next >= len(s.files)
			next++
			mu.Unlock()
			if stop {
				return
			}
			lines, size, err := s.scan(ctx, s.files[i])
			mu.Lock()
			s.found[i] = lines
			matches, total = matches+len(lines), total+size
			if err != nil && !refused(err) {
				failure = err
			}
			mu.Unlock()
		}
	}
	for range min(searchers, len(s.files)) {
		wg.Go(worker)
	}
	wg.Wait()
	if total >= maxSearchBytes {
		s.notes = append(s.notes, fmt.Sprintf("only the first %d MiB were looked at", maxSearchBytes>>20))
	}
	return failure
}

// scan returns the matching lines of a file, each with its place.
func (s *search) scan(ctx context.Context, name string) (lines []string, size int, err error) {
	m, err := s.drive.link.GetMetadata(ctx, name)
	if err != nil || !m.IsFile || m.Size > maxSearchFile {
		return nil, 0, err
	}
	data, err := s.drive.link.ReadFile(ctx, name)
	literal, _ := s.re.LiteralPrefix() // what every match begins with
	if err != nil || isBinary(data) || !bytes.Contains(data, []byte(literal)) {
		return nil, len(data), err
	}
	n := 0
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		n++
		line = bytes.TrimSuffix(line, []byte("\r"))
		if s.re.Match(line) {
			shown := strings.TrimPrefix(name, sandbox.WorkspacePath+"/")
			lines = append(lines, fmt.Sprintf("%s:%d:%s", shown, n, cut(string(line), maxMatchBytes)))
			if len(lines) >= maxMatches {
				break
			}
		}
	}
	return lines, len(data), nil
}

func (s *search) report() string {
	var out strings.Builder
	n := 0
	for _, lines := range s.found {
		for _, l := range lines {
			if n++; n > maxMatches || out.Len() > maxOutputBytes-2*maxMatchBytes-1000 {
				s.notes = append(s.notes, "there may be more matches")
				return out.String() + "[" + strings.Join(s.notes, "; ") + "]"
			}
			out.WriteString(l + "\n")
		}
	}
	if n >= maxMatches {
		s.notes = append(s.notes, "there may be more matches")
	}
	if n == 0 {
		out.WriteString("[no matches]\n")
	}
	if len(s.notes) > 0 {
		out.WriteString("[" + strings.Join(s.notes, "; ") + "]\n")
	}
	return strings.TrimSuffix(out.String(), "\n")
}
