package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/sojourn-dev/sojourn"
)

// The bounds of keys.
const (
	MaxNameBytes   = 200
	MaxScopes      = 64
	MaxScopeBytes  = 128
	maxSecretBytes = 512
	minChosenBytes = 16 // of a secret that the operator chose
	hintBytes      = 4
)

// newSecret makes the secret of a new key of a kind.
func newSecret(kind sojourn.KeyKind) string {
	var b [32]byte
	rand.Read(b[:]) // never fails: the process ends instead
	return "sjn_" + string(kind) + "_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// hashOf returns what is stored of a secret.
func hashOf(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// hintOf returns the end of a secret, by which people tell keys apart.
func hintOf(secret string) string { return secret[max(0, len(secret)-hintBytes):] }

func newKeyID() sojourn.KeyID { return sojourn.KeyID("key_" + uuid.NewString()) }

// New is what a key is made from.
type New struct {
	Project sojourn.ProjectID // "" means the default project
	Kind    sojourn.KeyKind
	Name    string          // for people; may be empty
	Scopes  []sojourn.Scope // of an app key, at least one; of no other kind
}

func (n New) check() error {
	switch {
	case !slices.Contains(sojourn.KeyKinds, n.Kind):
		return sojourn.Errorf(sojourn.CodeInvalid, "kind: must be admin, app, environment or runner.")
	case len(n.Name) > MaxNameBytes || strings.ContainsFunc(n.Name, isControl):
		return sojourn.Errorf(sojourn.CodeInvalid, "name: at most %d bytes of plain text.", MaxNameBytes)
	case n.Kind == sojourn.KeyApp && len(n.Scopes) == 0:
		return sojourn.Errorf(sojourn.CodeInvalid, "scopes: an app key needs at least one; without any it may do nothing.")
	case n.Kind != sojourn.KeyApp && len(n.Scopes) > 0:
		return sojourn.Errorf(sojourn.CodeInvalid, "scopes: only an app key has scopes.")
	case len(n.Scopes) > MaxScopes:
		return sojourn.Errorf(sojourn.CodeInvalid, "scopes: at most %d.", MaxScopes)
	}
	for _, s := range n.Scopes {
		if s == "" || len(s) > MaxScopeBytes || strings.ContainsFunc(string(s), isControl) {
			return sojourn.Errorf(sojourn.CodeInvalid, "scopes: each is a name of 1 to %d bytes.", MaxScopeBytes)
		}
	}
	return nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f || r == '�' }

// secretOf takes the secret out of an Authorization header: the scheme Bearer
// or ApiKey in any case, one space or more, then the secret.
func secretOf(header string) (string, bool) {
	scheme, secret, found := strings.Cut(header, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") && !strings.EqualFold(scheme, "ApiKey") {
		return "", false
	}
	secret = strings.Trim(secret, " ")
	if secret == "" || len(secret) > maxSecretBytes || strings.ContainsFunc(secret, notVisible) {
		return "", false
	}
	return secret, true
}

// notVisible reports whether r cannot be part of a secret, which is visible
// ASCII: anything else would not survive an HTTP header.
func notVisible(r rune) bool { return r <= ' ' || r > '~' }
