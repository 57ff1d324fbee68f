package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/acp"
	"github.com/sojourn-dev/sojourn/internal/harness/loop"
	"github.com/sojourn-dev/sojourn/internal/model"
	"github.com/sojourn-dev/sojourn/internal/server"
)

// loopMeter has the calls of the built-in loop admitted and written down like those
// that agents make through the gateway.
type loopMeter struct {
	models []config.Provider
	server atomic.Pointer[server.Server] // set before the first run is driven
}

var _ loop.Meter = (*loopMeter)(nil)

// Admit implements loop.Meter.
func (m *loopMeter) Admit(ctx context.Context, job harness.Job) error {
	return m.server.Load().Engine.AdmitModelCall(ctx, job.Session, job.Epoch)
}

// Report implements loop.Meter.
func (m *loopMeter) Report(ctx context.Context, job harness.Job, c loop.ModelCall) error {
	call := sojourn.ModelCall{
		Model: job.Model, InputTokens: c.Usage.Input, CachedTokens: c.Usage.Cached, CacheWriteTokens: c.Usage.CacheWrite,
		OutputTokens: c.Usage.Output, ReasoningTokens: c.Usage.Reasoning,
		Started: time.Now().Add(-c.Duration), Duration: c.Duration, Unpriced: true,
	}
	if p, row, ok := findModel(m.models, job.Model); ok {
		call.API, call.Provider, call.Model = p.API, p.Name, row.Name
		if row.Price != nil {
			call.Unpriced = false
			call.CostMicroCents = priceOf(*row.Price).Cost(call)
		}
	}
	call.Status, call.Failure, call.Error = outcomeOf(c.Err)
	return m.server.Load().Engine.NoteModelCall(ctx, job.Session, job.Epoch, call)
}

// maxCallError bounds what an event says of a failed call.
const maxCallError = 500

// outcomeOf says how a call ended.
func outcomeOf(err error) (status int, failure sojourn.ModelFailure, text string) {
	if err == nil {
		return 200, "", ""
	}
	text = err.Error()
	if len(text) > maxCallError {
		text = text[:maxCallError]
	}
	no, answered := errors.AsType[*model.StatusError](err)
	switch {
	case answered && no.Status == 200:
		return no.Status, sojourn.ModelErrorEvent, text
	case answered:
		return no.Status, sojourn.ModelStatus, text
	case errors.Is(err, context.Canceled):
		return 0, sojourn.ModelCancelled, "The turn was cancelled."
	case errors.Is(err, context.DeadlineExceeded):
		return 0, sojourn.ModelTimeout, text
	case errors.Is(err, model.ErrCut):
		return 200, sojourn.ModelCut, text
	}
	return 0, sojourn.ModelUnreachable, text
}

// findModel returns the provider that the loop asks for a model, by the name that
// sessions use; "" is the first that it can talk to.
func findModel(providers []config.Provider, name string) (config.Provider, config.Model, bool) {
	for _, p := range providers {
		if p.API == harness.APIGemini {
			continue // the loop does not speak it
		}
		for _, m := range p.Models {
			if name == m.Name || name == "" && !strings.ContainsAny(m.Name, `*?[\`) {
				return p, m, true
			}
			if matches, err := path.Match(m.Name, name); name != "" && err == nil && matches {
				m.Name = name
				return p, m, true
			}
		}
	}
	return config.Provider{}, config.Model{}, false
}

// loopEndpoint is where the loop asks a model.
func loopEndpoint(providers []config.Provider, name string) (model.Endpoint, error) {
	p, m, ok := findModel(providers, name)
	if !ok {
		return model.Endpoint{}, fmt.Errorf("there is no model %q that the built-in loop can talk to", name)
	}
	e := model.Endpoint{
		API: model.Anthropic, BaseURL: p.BaseURL, Model: m.Upstream, Headers: p.Headers,
		ContextTokens: m.ContextTokens, MaxOutputTokens: m.MaxOutputTokens,
	}
	if e.Model == "" {
		e.Model = m.Name
	}
	if p.API == harness.APIOpenAI {
		e.API = model.Responses
		if p.ChatOnly {
			e.API = model.Chat
		}
	}
	if p.HasKey() {
		var err error
		if e.Key, err = p.Secret.Read(); err != nil {
			return e, err
		}
	}
	return e, nil
}

// harnesses are what drives the agents of the configuration.
func (s *setup) harnesses() (harness.Harness, error) {
	mux := harness.Mux{harness.HarnessACP: &acp.Harness{Version: buildVersion()}}
	providers := s.cfg.Models.Providers
	if len(providers) == 0 {
		return mux, nil
	}
	l, err := loop.New(loop.Config{
		Models: func(name string) (model.Endpoint, error) { return loopEndpoint(providers, name) },
		Meter:  &s.meter,
	})
	if err != nil {
		return nil, err
	}
	s.meter.models = providers
	mux[harness.HarnessLoop] = l
	return mux, nil
}
