package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// shell is one call of a client command: whom it asks and where it writes.
type shell struct {
	stdio
	p        *printer
	c        *client.Client
	config   client.Config // of c
	url      string        // of the server, safe to print
	patience time.Duration // how long to wait for a server that went away
}

// newShell reads the settings. Nothing is asked of the server yet.
func newShell(std stdio, o settings) (*shell, error) {
	address := orEnv(o.url, "SOJOURN_URL", defaultURL)
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usagef("the address of the server (--url, SOJOURN_URL) must be like %s; it is %q", defaultURL, terminal.Visible(address, ""))
	}
	s := &shell{
		stdio: std, p: newPrinter(std.out, o.json), url: terminal.Visible(u.Redacted(), ""),
		config: client.Config{URL: address, Key: orEnv(o.key, "SOJOURN_KEY", "")},
	}
	if s.c, err = client.New(s.config); err != nil {
		return nil, usagef("%s", terminal.Visible(err.Error(), ""))
	}
	return s, nil
}

// wait sets how long to wait for a server that went away.
func (s *shell) wait(patience time.Duration) error {
	s.patience = max(patience, time.Nanosecond) // zero would ask for the client's default
	s.config.Patience = s.patience
	var err error
	s.c, err = client.New(s.config)
	return err
}

// failure gives what a call came back with its exit code and a sentence for
// people. An error of the context stays what it is.
func (s *shell) failure(err error) error {
	var coded *exitError
	if err == nil || errors.As(err, &coded) || errors.Is(err, context.Canceled) {
		return err
	}
	refused, answered := errors.AsType[*client.Error](err)
	switch {
	case answered:
		return &exitError{codeOf(refused.Status), errors.New(sentenceOf(refused))}
	case errors.Is(err, client.ErrLost):
		return &exitError{exitUnreachable, fmt.Errorf("the server at %s went away before it answered: whether it did what was asked is unknown", s.url)}
	case unreachable(err):
		return &exitError{exitUnreachable, fmt.Errorf("no server answers at %s (%w); start one with: sojourn serve, or name another with --url or SOJOURN_URL", s.url, cause(err))}
	default:
		return errors.New(terminal.Visible(err.Error(), ""))
	}
}

// codeOf is the exit code for a status of the server.
func codeOf(status int) int {
	switch status {
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict:
		return exitRefused
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return exitUsage
	default:
		return exitFailure
	}
}

// unreachable reports whether err means that no server answered.
func unreachable(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	_, call := errors.AsType[*url.Error](err)
	return network || call || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// cause is the part of a connection's error that is worth reading.
func cause(err error) error {
	if e, ok := errors.AsType[*os.SyscallError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return errors.New(terminal.Visible(e.Error(), ""))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return errors.New(terminal.Visible(e.Err.Error(), ""))
	}
	return errors.New(terminal.Visible(err.Error(), ""))
}

// sentenceOf says what the server refused and what can be done about it.
func sentenceOf(e *client.Error) string {
	text := terminal.Line(e.Message, 2000)
	switch e.Status {
	case http.StatusUnauthorized:
		text += " Set SOJOURN_KEY or --key to a valid key."
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if e.RetryAfter > 0 {
			text += " Try again in " + span(e.RetryAfter) + "."
		}
	}
	text += " (" + terminal.Line(e.Code, 80)
	if e.RequestID != "" && e.Status >= http.StatusInternalServerError {
		text += ", request " + terminal.Line(e.RequestID, 80)
	}
	return text + ")"
}
