package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/model"
)

func TestLoopFindsItsModel(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	providers := []config.Provider{
		{Name: "g", API: "gemini", BaseURL: "http://g", Models: []config.Model{{Name: "first"}}},
		{Name: "any", API: "anthropic", BaseURL: "http://a", Models: []config.Model{{Name: "claude-*"}, {Name: "sonnet", Upstream: "claude-sonnet", ContextTokens: 7}}},
		{Name: "o", API: "openai", BaseURL: "http://o/v1", Models: []config.Model{{Name: "fast"}}, Secret: config.Secret{ValueFile: key}},
		{Name: "c", API: "openai", BaseURL: "http://c/v1", ChatOnly: true, Models: []config.Model{{Name: "local"}}},
	}
	for name, want := range map[string]model.Endpoint{
		"":         {API: model.Anthropic, BaseURL: "http://a", Model: "claude-sonnet", ContextTokens: 7},
		"sonnet":   {API: model.Anthropic, BaseURL: "http://a", Model: "claude-sonnet", ContextTokens: 7},
		"claude-x": {API: model.Anthropic, BaseURL: "http://a", Model: "claude-x"},
		"fast":     {API: model.Responses, BaseURL: "http://o/v1", Model: "fast", Key: "s3cret"},
		"local":    {API: model.Chat, BaseURL: "http://c/v1", Model: "local"},
	} {
		got, err := loopEndpoint(providers, name)
		if err != nil || got.API != want.API || got.BaseURL != want.BaseURL || got.Model != want.Model ||
			got.Key != want.Key || got.ContextTokens != want.ContextTokens {
			t.Errorf("%q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"first", "none", "claude"} {
		if got, err := loopEndpoint(providers, name); err == nil {
			t.Errorf("%q was found at %s", name, got.BaseURL)
		}
	}
}

func TestLoopSaysHowCallsEnd(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		want   sojourn.ModelFailure
	}{
		{nil, 200, ""},
		{&model.StatusError{Status: 429}, 429, sojourn.ModelStatus},
		{&model.StatusError{Status: 200}, 200, sojourn.ModelErrorEvent},
		{context.Canceled, 0, sojourn.ModelCancelled},
		{model.ErrCut, 200, sojourn.ModelCut},
		{context.DeadlineExceeded, 0, sojourn.ModelTimeout},
		{errors.New("connection refused"), 0, sojourn.ModelUnreachable},
	} {
		if status, got, _ := outcomeOf(c.err); status != c.status || got != c.want {
			t.Errorf("%v: %d %q, want %d %q", c.err, status, got, c.status, c.want)
		}
	}
}
