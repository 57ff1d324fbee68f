package auth_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/auth"
	"github.com/sojourn-dev/sojourn/internal/store/sqlite"
)

func open(t *testing.T) *auth.Keys {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return auth.Open(db)
}

func create(t *testing.T, k *auth.Keys, n auth.New) (sojourn.Key, string) {
	t.Helper()
	key, secret, err := k.Create(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return key, secret
}

func TestSecretHasTheDocumentedForm(t *testing.T) {
	k := open(t)
	for _, kind := range sojourn.KeyKinds {
		n := auth.New{Kind: kind}
		if kind == sojourn.KeyApp {
			n.Scopes = []sojourn.Scope{"a:b"}
		}
		key, secret := create(t, k, n)
		if want := regexp.MustCompile(`^sjn_` + string(kind) + `_[A-Za-z0-9_-]{43}$`); !want.MatchString(secret) {
			t.Errorf("secret of kind %s is %q, want it to match %v", kind, secret, want)
		}
		if !strings.HasSuffix(secret, key.Hint) || len(key.Hint) != 4 {
			t.Errorf("hint is %q of %q, want the last four characters", key.Hint, secret)
		}
		if key.Project != sojourn.DefaultProject {
			t.Errorf("project is %q, want the default", key.Project)
		}
	}
}

func TestAuthenticateKnowsValidKeysOnly(t *testing.T) {
	k := open(t)
	key, secret := create(t, k, auth.New{Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{"a:b"}})
	for header, valid := range map[string]bool{
		"Bearer " + secret:                     true,
		"bearer  " + secret + " ":              true,
		"ApiKey " + secret:                     true,
		"APIKEY " + secret:                     true,
		"":                                     false,
		secret:                                 false,
		"Bearer":                               false,
		"Bearer ":                              false,
		"Basic " + secret:                      false,
		"Bearer " + secret + "x":               false,
		"Bearer " + secret[:50]:                false,
		"Bearer " + secret + " x":              false,
		"Bearer \x00" + secret:                 false,
		"Bearer " + key.Hint:                   false,
		"Bearer " + string(key.ID):             false,
		"Bearer " + strings.Repeat("a", 1<<20): false,
	} {
		who, err := k.Authenticate(t.Context(), header)
		switch {
		case valid && (err != nil || who.Key != key.ID || who.Kind != sojourn.KeyApp || !who.May("a:b") || who.May("a:c")):
			t.Errorf("Authenticate(%.60q) is %+v, %v, want the key", header, who, err)
		case !valid && (sojourn.CodeOf(err) != sojourn.CodeUnauthenticated || who.Key != ""):
			t.Errorf("Authenticate(%.60q) is %+v, %v, want unauthenticated", header, who, err)
		case !valid && strings.Contains(err.Error(), secret[:20]):
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func TestRevokeEndsAKeyForGood(t *testing.T) {
	k := open(t)
	key, secret := create(t, k, auth.New{Kind: sojourn.KeyAdmin})
	other, otherSecret := create(t, k, auth.New{Kind: sojourn.KeyAdmin})
	life, otherLife := k.Watch(key.ID), k.Watch(other.ID)
	if _, err := k.Revoke(t.Context(), "elsewhere", key.ID); sojourn.CodeOf(err) != sojourn.CodeNotFound {
		t.Errorf("revoking another project's key: %v, want not_found", err)
	}
	if err := k.Valid(t.Context(), key.ID); err != nil || life.Err() != nil {
		t.Fatalf("before: %v, %v, want a living key", err, life.Err())
	}
	first, err := k.Revoke(t.Context(), sojourn.DefaultProject, key.ID)
	if err != nil || first.RevokedAt.IsZero() {
		t.Fatalf("Revoke: %+v, %v", first, err)
	}
	again, err := k.Revoke(t.Context(), sojourn.DefaultProject, key.ID)
	if err != nil || !again.RevokedAt.Equal(first.RevokedAt) {
		t.Errorf("revoking again: %+v, %v, want no change to %v", again, err, first.RevokedAt)
	}
	if _, err := k.Authenticate(t.Context(), "Bearer "+secret); sojourn.CodeOf(err) != sojourn.CodeUnauthenticated {
		t.Errorf("a revoked key: %v, want unauthenticated", err)
	}
	if life.Err() == nil || k.Watch(key.ID).Err() == nil {
		t.Error("the life of a revoked key has not ended for all who watch it")
	}
	if _, err := k.Authenticate(t.Context(), "Bearer "+otherSecret); err != nil || otherLife.Err() != nil {
		t.Errorf("the other key: %v, %v, want it alive", err, otherLife.Err())
	}
}

func TestValidFindsKeysThatAnotherProcessRevoked(t *testing.T) {
	db, err := sqlite.Open(t.Context(), sqlite.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	here, there := auth.Open(db), auth.Open(db)
	key, _ := create(t, here, auth.New{Kind: sojourn.KeyAdmin})
	life := here.Watch(key.ID)
	if _, err := there.Revoke(t.Context(), key.Project, key.ID); err != nil {
		t.Fatal(err)
	}
	if life.Err() != nil {
		t.Fatal("the other process is this one")
	}
	if err := here.Valid(t.Context(), key.ID); sojourn.CodeOf(err) != sojourn.CodeUnauthenticated {
		t.Errorf("Valid: %v, want unauthenticated", err)
	}
	if life.Err() == nil {
		t.Error("Valid found the revocation and did not end the key's life")
	}
}

func TestCreateRefusesWhatAKeyCannotBe(t *testing.T) {
	k := open(t)
	scopes := []sojourn.Scope{"a:b"}
	for name, n := range map[string]auth.New{
		"no kind":               {},
		"unknown kind":          {Kind: "root"},
		"app without scopes":    {Kind: sojourn.KeyApp},
		"admin with scopes":     {Kind: sojourn.KeyAdmin, Scopes: scopes},
		"empty scope":           {Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{""}},
		"long scope":            {Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{sojourn.Scope(strings.Repeat("s", 129))}},
		"too many scopes":       {Kind: sojourn.KeyApp, Scopes: make([]sojourn.Scope, 65)},
		"long name":             {Kind: sojourn.KeyAdmin, Name: strings.Repeat("n", 201)},
		"name with a line end":  {Kind: sojourn.KeyAdmin, Name: "a\nb"},
		"name that is no UTF-8": {Kind: sojourn.KeyAdmin, Name: "a\xff"},
	} {
		if _, secret, err := k.Create(t.Context(), n); sojourn.CodeOf(err) != sojourn.CodeInvalid || secret != "" {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	keys, err := k.List(t.Context(), sojourn.DefaultProject)
	if err != nil || len(keys) != 0 {
		t.Errorf("keys are %v, %v, want none", keys, err)
	}
}

func TestListShowsAProjectsKeysWithoutSecrets(t *testing.T) {
	k := open(t)
	_, secret := create(t, k, auth.New{Kind: sojourn.KeyAdmin, Project: "p", Name: "one"})
	create(t, k, auth.New{Kind: sojourn.KeyAdmin, Project: "q"})
	keys, err := k.List(t.Context(), "p")
	if err != nil || len(keys) != 1 || keys[0].Name != "one" {
		t.Fatalf("keys are %+v, %v, want one", keys, err)
	}
	if got := keys[0]; strings.Contains(string(got.Hash[:])+string(got.ID)+got.Name, secret[10:]) {
		t.Errorf("key %+v holds its secret", got)
	}
}

func TestEnsureAdminMakesTheFirstKeyOnce(t *testing.T) {
	k := open(t)
	secret, created, err := k.EnsureAdmin(t.Context(), "")
	if err != nil || !created {
		t.Fatalf("first: %v, %v, want a new key", created, err)
	}
	if who, err := k.Authenticate(t.Context(), "Bearer "+secret); err != nil || who.Kind != sojourn.KeyAdmin {
		t.Errorf("the first key is %+v, %v, want an admin's", who, err)
	}
	if again, created, err := k.EnsureAdmin(t.Context(), ""); err != nil || created || again != "" {
		t.Errorf("second: %q, %v, %v, want nothing new", again, created, err)
	}
}

func TestEnsureAdminMakesAKeyWhereAllAreRevoked(t *testing.T) {
	k := open(t)
	key, _ := create(t, k, auth.New{Kind: sojourn.KeyAdmin})
	if _, err := k.Revoke(t.Context(), key.Project, key.ID); err != nil {
		t.Fatal(err)
	}
	if _, created, err := k.EnsureAdmin(t.Context(), ""); err != nil || !created {
		t.Errorf("%v, %v, want a new key", created, err)
	}
}

func TestEnsureAdminTakesTheOperatorsChoice(t *testing.T) {
	const chosen = "correct-horse-battery"
	k := open(t)
	create(t, k, auth.New{Kind: sojourn.KeyAdmin})
	for i := range 3 {
		secret, created, err := k.EnsureAdmin(t.Context(), chosen)
		if err != nil || secret != "" || created != (i == 0) {
			t.Fatalf("start %d: %q, %v, %v, want the key once and no secret", i, secret, created, err)
		}
	}
	who, err := k.Authenticate(t.Context(), "Bearer "+chosen)
	if err != nil || who.Kind != sojourn.KeyAdmin {
		t.Fatalf("the chosen key is %+v, %v", who, err)
	}
	if _, err := k.Revoke(t.Context(), who.Project, who.Key); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.EnsureAdmin(t.Context(), chosen); sojourn.CodeOf(err) != sojourn.CodeInvalid {
		t.Errorf("a chosen key that was revoked: %v, want invalid", err)
	}
	_, appSecret := create(t, k, auth.New{Kind: sojourn.KeyApp, Scopes: []sojourn.Scope{"a:b"}})
	for _, bad := range []string{"short", "fifteen-letters", "with a space inside", "umlaut-äöü-0123456789", strings.Repeat("a", 513), appSecret} {
		if _, _, err := k.EnsureAdmin(t.Context(), bad); sojourn.CodeOf(err) != sojourn.CodeInvalid {
			t.Errorf("chosen %.20q: %v, want invalid", bad, err)
		}
	}
}

// broken is a store that is down.
type broken struct{}

func (broken) Update(context.Context, func(auth.Tx) error) error { return errors.New("disk gone") }
func (broken) View(context.Context, func(auth.Tx) error) error   { return errors.New("disk gone") }

func TestABrokenStoreIsNotARefusal(t *testing.T) {
	k := auth.Open(broken{})
	if _, err := k.Authenticate(t.Context(), "Bearer abc"); sojourn.CodeOf(err) != sojourn.CodeInternal {
		t.Errorf("Authenticate: %v, want internal", err)
	}
	if err := k.Valid(t.Context(), "k"); sojourn.CodeOf(err) != sojourn.CodeInternal || k.Watch("k").Err() != nil {
		t.Errorf("Valid: %v, want internal, and the key's life to go on", err)
	}
}

func FuzzAuthenticate(f *testing.F) {
	for _, s := range []string{"Bearer x", "ApiKey sjn_app_abc", "", "Bearer", " Bearer x", "Bearer \t", "Bearer \xff"} {
		f.Add(s)
	}
	k := auth.Open(nothing{})
	f.Fuzz(func(t *testing.T, header string) {
		if _, err := k.Authenticate(t.Context(), header); sojourn.CodeOf(err) != sojourn.CodeUnauthenticated {
			t.Errorf("Authenticate(%q): %v, want unauthenticated", header, err)
		}
	})
}

// nothing is a store without rows.
type nothing struct{ auth.Tx }

func (n nothing) Update(_ context.Context, fn func(auth.Tx) error) error { return fn(n) }
func (n nothing) View(_ context.Context, fn func(auth.Tx) error) error   { return fn(n) }
func (nothing) KeyByHash([32]byte) (sojourn.Key, error) {
	return sojourn.Key{}, sojourn.Errorf(sojourn.CodeNotFound, "There is no such key.")
}
