package sojourn

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestCodeOfFindsTheFirstErrorInTheChain(t *testing.T) {
	refusal := Errorf(CodeRunActive, "Run %s has not finished.", "r1")
	for _, c := range []struct {
		name string
		err  error
		want Code
	}{
		{"nil", nil, ""},
		{"a refusal", refusal, CodeRunActive},
		{"a wrapped refusal", fmt.Errorf("submit: %w", refusal), CodeRunActive},
		{"a refusal caused by another", &Error{Code: CodeUnavailable, Cause: refusal}, CodeUnavailable},
		{"joined with a plain error", errors.Join(io.EOF, refusal), CodeRunActive},
		{"a plain error", io.EOF, CodeInternal},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%s: CodeOf = %q, want %q", c.name, got, c.want)
		}
	}
}

func TestErrorShowsCodeSentenceAndCause(t *testing.T) {
	err := &Error{Code: CodeOutOfSpace, Message: "The disk is full.", Cause: io.ErrShortWrite}
	if got, want := err.Error(), "out_of_space: The disk is full.: short write"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(err, io.ErrShortWrite) {
		t.Error("the cause is not in the chain")
	}
	err.Cause = nil
	if got, want := err.Error(), "out_of_space: The disk is full."; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

// TestCodesAndEventTypesAreWireWords: both leave the process, so their form is
// a promise.
func TestCodesAndEventTypesAreWireWords(t *testing.T) {
	const letters = "abcdefghijklmnopqrstuvwxyz_"
	for _, c := range Codes {
		if strings.Trim(string(c), letters) != "" {
			t.Errorf("code %q has other letters than %s", c, letters)
		}
	}
	for _, e := range EventTypes {
		noun, verb, ok := strings.Cut(string(e), ".")
		if !ok || strings.Trim(noun, letters) != "" || strings.Trim(verb, letters) != "" || noun == "" || verb == "" {
			t.Errorf("event type %q is not noun.verb", e)
		}
	}
}

func TestKeysMayDoWhatTheirKindAndScopesSay(t *testing.T) {
	scopes := []Scope{"sessions:read", "turns:submit"}
	for kind, want := range map[KeyKind]bool{
		KeyAdmin: true, KeyApp: true, KeyEnvironment: false, KeyRunner: false, "": false,
	} {
		if got := (Principal{Kind: kind, Scopes: scopes}).May("turns:submit"); got != want {
			t.Errorf("kind %q with the scope: May = %v, want %v", kind, got, want)
		}
		if got, want := (Principal{Kind: kind, Scopes: scopes}).May("sessions:delete"), kind == KeyAdmin; got != want {
			t.Errorf("kind %q without the scope: May = %v, want %v", kind, got, want)
		}
	}
}
