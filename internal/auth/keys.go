package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Tx is what this package needs of a transaction.
type Tx interface {
	Now() time.Time
	PutKey(sojourn.Key) error
	Key(sojourn.KeyID) (sojourn.Key, error)        // or not_found
	KeyByHash([32]byte) (sojourn.Key, error)       // or not_found
	Keys(sojourn.ProjectID) ([]sojourn.Key, error) // oldest first, revoked ones too
	AnyKey() (bool, error)                         // whether one is not revoked
}

// DB runs transactions, as [Tx] or what has its methods.
type DB[T Tx] interface {
	Update(ctx context.Context, fn func(T) error) error
	View(ctx context.Context, fn func(T) error) error
}

// Keys are the API keys of an installation. Make one with [Open].
type Keys struct {
	update, view func(context.Context, func(Tx) error) error

	mu      sync.Mutex
	watched map[sojourn.KeyID]*watched
}

// Open makes Keys on a database, which the caller keeps open.
func Open[T Tx](db DB[T]) *Keys {
	return &Keys{
		update: func(ctx context.Context, fn func(Tx) error) error {
			return db.Update(ctx, func(tx T) error { return fn(tx) })
		},
		view: func(ctx context.Context, fn func(Tx) error) error {
			return db.View(ctx, func(tx T) error { return fn(tx) })
		},
		watched: map[sojourn.KeyID]*watched{},
	}
}

// refused is the one answer to every secret that is not a valid key's.
func refused() error {
	return sojourn.Errorf(sojourn.CodeUnauthenticated, "Send a valid key in the Authorization header: the word Bearer, a space, and the key.")
}

// Authenticate returns who presents header, the value of an Authorization
// header. The only refusal is unauthenticated.
func (k *Keys) Authenticate(ctx context.Context, header string) (sojourn.Principal, error) {
	secret, ok := secretOf(header)
	if !ok {
		return sojourn.Principal{}, refused()
	}
	var key sojourn.Key
	err := k.view(ctx, func(tx Tx) (err error) {
		key, err = tx.KeyByHash(hashOf(secret))
		return err
	})
	switch {
	case sojourn.CodeOf(err) == sojourn.CodeNotFound, err == nil && !key.RevokedAt.IsZero():
		return sojourn.Principal{}, refused()
	case err != nil:
		return sojourn.Principal{}, fmt.Errorf("look up the presented key: %w", err)
	}
	return sojourn.Principal{Key: key.ID, Project: key.Project, Kind: key.Kind, Scopes: key.Scopes}, nil
}

// Valid returns nil while the key may still be used, and unauthenticated once
// it was revoked, by this process or by another one on the same store.
func (k *Keys) Valid(ctx context.Context, id sojourn.KeyID) error {
	var key sojourn.Key
	err := k.view(ctx, func(tx Tx) (err error) {
		key, err = tx.Key(id)
		return err
	})
	switch {
	case sojourn.CodeOf(err) == sojourn.CodeNotFound, err == nil && !key.RevokedAt.IsZero():
		k.end(id)
		return refused()
	case err != nil:
		return fmt.Errorf("look up key %s: %w", id, err)
	}
	return nil
}

// Create makes a key and returns it with its secret, which is shown this once.
func (k *Keys) Create(ctx context.Context, n New) (sojourn.Key, string, error) {
	if err := n.check(); err != nil {
		return sojourn.Key{}, "", err
	}
	secret := newSecret(n.Kind)
	key := n.key(secret)
	err := k.update(ctx, func(tx Tx) error {
		key.CreatedAt = tx.Now()
		return tx.PutKey(key)
	})
	if err != nil {
		return sojourn.Key{}, "", fmt.Errorf("create a key: %w", err)
	}
	return key, secret, nil
}

func (n New) key(secret string) sojourn.Key {
	if n.Project == "" {
		n.Project = sojourn.DefaultProject
	}
	return sojourn.Key{
		ID: newKeyID(), Project: n.Project, Kind: n.Kind, Name: n.Name, Scopes: slices.Clone(n.Scopes),
		Hash: hashOf(secret), Hint: hintOf(secret),
	}
}

// List returns the keys of a project, oldest first, revoked ones too.
func (k *Keys) List(ctx context.Context, p sojourn.ProjectID) ([]sojourn.Key, error) {
	var keys []sojourn.Key
	err := k.view(ctx, func(tx Tx) (err error) {
		keys, err = tx.Keys(p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the keys of project %s: %w", p, err)
	}
	return keys, nil
}

// Revoke ends a key of a project for good and returns it. Its open streams end
// at once in this process, and within one heartbeat in others. Revoking a
// revoked key changes nothing. A key of another project is not_found.
func (k *Keys) Revoke(ctx context.Context, p sojourn.ProjectID, id sojourn.KeyID) (sojourn.Key, error) {
	var key sojourn.Key
	err := k.update(ctx, func(tx Tx) (err error) {
		if key, err = tx.Key(id); err != nil {
			return err
		}
		if key.Project != p {
			return sojourn.Errorf(sojourn.CodeNotFound, "There is no such key.")
		}
		if !key.RevokedAt.IsZero() {
			return nil
		}
		key.RevokedAt = tx.Now()
		return tx.PutKey(key)
	})
	if err != nil {
		return sojourn.Key{}, fmt.Errorf("revoke key %s: %w", id, err)
	}
	k.end(id)
	return key, nil
}

// watched is the life of a key as this process knows it.
type watched struct {
	ctx context.Context
	end context.CancelFunc
}

// Watch returns a context that ends when the key is revoked by this process, or
// found to be by [Keys.Valid]. One context is kept for each key that was ever
// watched.
func (k *Keys) Watch(id sojourn.KeyID) context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.watched[id]
	if w == nil {
		w = &watched{}
		w.ctx, w.end = context.WithCancel(context.Background())
		k.watched[id] = w
	}
	return w.ctx
}

// end ends the context of a revoked key, also for those who watch later.
func (k *Keys) end(id sojourn.KeyID) {
	k.Watch(id)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watched[id].end()
}

// EnsureAdmin makes sure that the installation can be administered. With a
// chosen secret (the SOJOURN_ADMIN_KEY of the operator) it makes the admin key
// with that secret unless it exists, and returns no secret. Without one it makes
// an admin key only where no valid key exists, and returns its secret: the
// caller prints it, and nobody can read it again.
func (k *Keys) EnsureAdmin(ctx context.Context, chosen string) (secret string, created bool, err error) {
	name := "first admin key"
	if chosen != "" {
		if len(chosen) < minChosenBytes || len(chosen) > maxSecretBytes || strings.ContainsFunc(chosen, notVisible) {
			return "", false, sojourn.Errorf(sojourn.CodeInvalid,
				"The chosen admin key must have %d to %d visible ASCII characters and no space.", minChosenBytes, maxSecretBytes)
		}
		secret, name = chosen, "chosen by the operator"
	} else {
		secret = newSecret(sojourn.KeyAdmin)
	}
	key := New{Kind: sojourn.KeyAdmin, Name: name}.key(secret)
	err = k.update(ctx, func(tx Tx) error {
		created = false // the closure may run again
		if needed, err := adminNeeded(tx, chosen, key.Hash); err != nil || !needed {
			return err
		}
		created = true
		key.CreatedAt = tx.Now()
		return tx.PutKey(key)
	})
	if err != nil {
		return "", false, fmt.Errorf("ensure an admin key: %w", err)
	}
	if !created || chosen != "" {
		secret = ""
	}
	return secret, created, nil
}

// adminNeeded reports whether EnsureAdmin has to make a key.
func adminNeeded(tx Tx, chosen string, hash [32]byte) (bool, error) {
	if chosen == "" {
		any, err := tx.AnyKey()
		return !any, err
	}
	switch key, err := tx.KeyByHash(hash); {
	case sojourn.CodeOf(err) == sojourn.CodeNotFound:
		return true, nil
	case err != nil:
		return false, err
	case !key.RevokedAt.IsZero():
		return false, sojourn.Errorf(sojourn.CodeInvalid, "The chosen admin key was revoked: choose another one.")
	case key.Kind != sojourn.KeyAdmin:
		return false, sojourn.Errorf(sojourn.CodeInvalid, "The chosen admin key is already a key of kind %s: choose another one.", key.Kind)
	}
	return false, nil
}
