package apitest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// awaitFor is how long a script waits for an event.
const awaitFor = time.Minute

// await follows a session's log to an event.
func (s *script) await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: await SESSION TYPE [PATH=VALUE]")
	}
	session, kind, path, want := args[0], args[1], "", ""
	if len(args) == 3 {
		path, want, _ = strings.Cut(args[2], "=")
	}
	ctx, cancel := context.WithTimeout(context.Background(), awaitFor)
	defer cancel()
	var passed []string
	err := s.follow(ctx, session, s.seen[session], func(seq int64, e any) bool {
		s.seen[session], s.last = seq, e
		got := text(s.at("type"))
		passed = append(passed, got)
		return got != kind || path != "" && !matches(text(s.at(path)), want)
	})
	if err != nil {
		ts.Fatalf("waiting for %s %s: %v; what came: %s", kind, want, err, strings.Join(passed, " "))
	}
}

// follow reads a session's stream until each returns false.
func (s *script) follow(ctx context.Context, session string, after int64, each func(seq int64, e any) bool) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+s.log.path(session), nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", s.scheme+" "+servertest.AdminKey)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-ID", strconv.FormatInt(after, 10))
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	lines := bufio.NewReaderSize(res.Body, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e map[string]any
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return err
		}
		seq, _ := e[s.log.number].(float64)
		if after++; int64(seq) != after {
			return errors.New("the log has a gap before " + strconv.FormatInt(int64(seq), 10))
		}
		if !each(after, e) {
			return nil
		}
	}
}

// printLog prints the types of a session's events.
func (s *script) printLog(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: log SESSION [REGEXP]")
	}
	shown := regexp.MustCompile("")
	if len(args) == 2 {
		shown = regexp.MustCompile(args[1])
	}
	for after := int64(0); ; {
		header := http.Header{"Authorization": {s.scheme + " " + servertest.AdminKey}}
		s.call(ts, http.MethodGet, s.log.path(args[0])+"?limit=1000&after="+strconv.FormatInt(after, 10), header, nil)
		events, _ := s.at("events")
		for _, e := range events.([]any) {
			after++
			e := e.(map[string]any)
			if seq := e[s.log.number].(float64); int64(seq) != after {
				ts.Fatalf("the log has a gap before %v", seq)
			}
			if kind := e["type"].(string); shown.MatchString(kind) {
				fmt.Fprintln(ts.Stdout(), kind)
			}
		}
		if _, more := s.at("nextAfter"); !more {
			return
		}
	}
}
