package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/gateway"
	"github.com/sojourn-dev/sojourn/internal/server"
)

// openWay joins the proxy with the model gateway, if there are models.
func (s *setup) openWay() (*server.Way, error) {
	key, err := tokenKey(filepath.Join(s.data, "keys", "tokens.key"))
	if err != nil {
		return nil, err
	}
	if len(s.cfg.Models.Providers) == 0 {
		return server.NewWay(s.egress, nil, key), nil
	}
	c := gateway.Config{CountChatUsage: s.cfg.Models.CountChatUsage, Log: s.log}
	for _, p := range s.cfg.Models.Providers {
		provider, err := providerOf(p)
		if err != nil {
			return nil, fmt.Errorf("configuration: models: %s: %w", p.Name, err)
		}
		c.Providers = append(c.Providers, provider)
	}
	g, err := gateway.New(c)
	if err != nil {
		return nil, fmt.Errorf("configuration: models: %w", err)
	}
	return server.NewWay(s.egress, g, key), nil
}

// mcpServers are the servers of tools that every agent gets.
func (s *setup) mcpServers() (list []json.RawMessage) {
	for _, m := range s.cfg.MCPServers {
		list = append(list, m.ACP())
	}
	return list
}

func providerOf(p config.Provider) (gateway.Provider, error) {
	out := gateway.Provider{Name: p.Name, API: gateway.API(p.API), BaseURL: p.BaseURL, Headers: p.Headers}
	if p.HasKey() {
		var err error
		if out.Key, err = p.Secret.Read(); err != nil {
			return out, err
		}
	}
	for _, m := range p.Models {
		model := gateway.Model{Name: m.Name, Upstream: m.Upstream}
		if c := m.Price; c != nil {
			model.Price = new(priceOf(*c))
		}
		out.Models = append(out.Models, model)
	}
	return out, nil
}

func priceOf(c config.Price) gateway.Price {
	return gateway.Price{
		Input: sojourn.Money(c.Input), Cached: sojourn.Money(c.Cached),
		CacheWrite: sojourn.Money(c.CacheWrite), Output: sojourn.Money(c.Output),
	}
}

// tokenKeyBytes is how long the key of tokens is.
const tokenKeyBytes = 32

// tokenKey reads the key that the tokens of sandboxes are made from, and makes it
// when there is none. Agents that are running know their tokens, so that it must
// outlive the server.
func tokenKey(file string) ([]byte, error) {
	key, err := os.ReadFile(file)
	switch {
	case err == nil && len(key) == tokenKeyBytes:
		return key, nil
	case err == nil:
		return nil, fmt.Errorf("read the key of tokens: %s does not hold one", file)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the key of tokens: %w", err)
	}
	key = make([]byte, tokenKeyBytes)
	rand.Read(key) // never fails
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("make the key of tokens: %w", err)
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, key, 0o600); err != nil {
		return nil, fmt.Errorf("make the key of tokens: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return nil, fmt.Errorf("make the key of tokens: %w", err)
	}
	return key, nil
}
