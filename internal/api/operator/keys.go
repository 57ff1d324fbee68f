package operator

import (
	"context"
	"net/http"
	"slices"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/auth"
)

// CreateKeyBody is what a key is made from.
type CreateKeyBody struct {
	Kind   string   `json:"kind" enum:"admin,app,environment,runner"`
	Name   string   `json:"name,omitempty" maxLength:"200" doc:"For people."`
	Scopes []string `json:"scopes,omitempty" maxItems:"64" doc:"What an app key may do; no other kind has scopes."`
}

type createKeyInput struct{ Body CreateKeyBody }

// CreatedKeyBody is a new key with its secret.
type CreatedKeyBody struct {
	Key    Key    `json:"key"`
	Secret string `json:"secret" doc:"Shown this once."`
}

type createKeyOutput struct{ Body CreatedKeyBody }

// KeysBody lists keys, oldest first, revoked ones too.
type KeysBody struct {
	Keys []Key `json:"keys"`
}

type keysOutput struct{ Body KeysBody }

// KeyBody is an answer with one key.
type KeyBody struct {
	Key Key `json:"key"`
}

type keyOutput struct{ Body KeyBody }

type keyInput struct {
	KeyID string `path:"keyId"`
}

func (h *handler) apiKeys(s *api.Service) {
	const path = "/operator/v1/keys"
	api.Register(s, api.Operation{
		ID: "createKey", Method: http.MethodPost, Path: path, Status: http.StatusCreated, Summary: "Make an API key",
	}, h.createKey)
	api.Register(s, api.Operation{
		ID: "listKeys", Method: http.MethodGet, Path: path, Summary: "List the keys of the project",
	}, h.listKeys)
	api.Register(s, api.Operation{
		ID: "revokeKey", Method: http.MethodDelete, Path: path + "/{keyId}", Summary: "Revoke a key",
		Description: "Its calls fail from now on and its open streams end. Revoking a revoked key changes nothing.",
	}, h.revokeKey)
}

func (h *handler) createKey(ctx context.Context, in *createKeyInput) (*createKeyOutput, error) {
	n := auth.New{Project: api.Caller(ctx).Project, Kind: sojourn.KeyKind(in.Body.Kind), Name: in.Body.Name}
	for i, s := range in.Body.Scopes {
		scope := sojourn.Scope(s)
		if h.config.Scopes != nil && !slices.Contains(h.config.Scopes, scope) {
			return nil, sojourn.Errorf(sojourn.CodeInvalid, "scopes[%d]: no contract has the scope %q.", i, s)
		}
		n.Scopes = append(n.Scopes, scope)
	}
	key, secret, err := h.keys.Create(ctx, n)
	if err != nil {
		return nil, err
	}
	return &createKeyOutput{Body: CreatedKeyBody{Key: apiKey(key), Secret: secret}}, nil
}

func (h *handler) listKeys(ctx context.Context, _ *struct{}) (*keysOutput, error) {
	keys, err := h.keys.List(ctx, api.Caller(ctx).Project)
	if err != nil {
		return nil, err
	}
	out := &keysOutput{Body: KeysBody{Keys: []Key{}}}
	for _, k := range keys {
		out.Body.Keys = append(out.Body.Keys, apiKey(k))
	}
	return out, nil
}

func (h *handler) revokeKey(ctx context.Context, in *keyInput) (*keyOutput, error) {
	k, err := h.keys.Revoke(ctx, api.Caller(ctx).Project, sojourn.KeyID(in.KeyID))
	if err != nil {
		return nil, err
	}
	return &keyOutput{Body: KeyBody{apiKey(k)}}, nil
}
