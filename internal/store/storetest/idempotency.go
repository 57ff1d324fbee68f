package storetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

func testIdempotencyRace(t *testing.T, open Open) {
	s := open(t, nil)
	name, hash := store.IdempotencyKey{Project: "p", Key: "k"}, sha256.Sum256([]byte("create"))
	errEarly := errors.New("the first attempts fail")
	var attempts atomic.Int64
	var g errgroup.Group
	replies := make([]string, 100)
	for i := range replies {
		g.Go(func() error {
			command := func() error {
				return s.Update(t.Context(), func(tx *store.Tx) error {
					prior, err := tx.Remember(name, hash, tx.Now().Add(time.Hour))
					if err != nil {
						return err
					}
					if prior != nil {
						replies[i] = fmt.Sprint(prior.Status, string(prior.Body))
						return nil
					}
					d, err := sojourn.Create(tx.Now(), sojourn.NewSession{ID: sojourn.SessionID(fmt.Sprint("s", i))})
					if err != nil {
						return err
					}
					if err := tx.Apply(d.Change()); err != nil {
						return err
					}
					body := fmt.Sprint("made by ", i)
					if err := tx.StoreReply(name, 201, []byte(body)); err != nil {
						return err
					}
					if attempts.Add(1) <= 3 {
						return errEarly
					}
					replies[i] = fmt.Sprint(201, body)
					return nil
				})
			}
			for range 5 { // a failed attempt can be repeated
				if err := command(); err == nil {
					return nil
				} else if !errors.Is(err, errEarly) {
					return err
				}
			}
			return errors.New("every attempt has failed")
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, reply := range replies {
		if reply != replies[0] || reply == "" {
			t.Errorf("caller %d got %q, caller 0 %q", i, reply, replies[0])
		}
	}
	sessions := read(t, s, func(tx *store.Tx) ([]sojourn.Facts, error) { return tx.Sessions(store.SessionQuery{}) })
	same(t, "sessions", len(sessions), 1)
}

func testIdempotency(t *testing.T, open Open) {
	s := open(t, nil)
	name, one, two := store.IdempotencyKey{Project: "p", Key: "k"}, [32]byte{1}, [32]byte{2}
	remember := func(k store.IdempotencyKey, hash [32]byte, lasts time.Duration) (prior *store.Remembered, err error) {
		err = s.Update(t.Context(), func(tx *store.Tx) error {
			prior, err = tx.Remember(k, hash, tx.Now().Add(lasts))
			if err == nil && prior == nil {
				err = tx.StoreReply(k, 200, []byte{hash[0], 0, 255})
			}
			return err
		})
		return prior, err
	}
	if prior, err := remember(name, one, time.Hour); prior != nil || err != nil {
		t.Errorf("first: %v, %v", prior, err)
	}
	prior, err := remember(name, one, time.Hour)
	if err != nil || prior == nil || prior.Status != 200 || string(prior.Body) != "\x01\x00\xff" {
		t.Errorf("repeated: %+v, %v", prior, err)
	}
	if _, err := remember(name, two, time.Hour); sojourn.CodeOf(err) != sojourn.CodeIdempotencyConflict {
		t.Errorf("another command: %v, want idempotency_conflict", err)
	}
	other := store.IdempotencyKey{Project: "q", Key: "k"}
	if prior, err := remember(other, two, -time.Second); prior != nil || err != nil {
		t.Errorf("another project: %v, %v", prior, err)
	}
	if prior, err := remember(other, one, time.Hour); prior != nil || err != nil {
		t.Errorf("after it has run out: %v, %v", prior, err)
	}
	if prior, err := remember(other, one, time.Hour); prior == nil || err != nil {
		t.Errorf("after it was taken over: %v, %v", prior, err)
	}
	remember(store.IdempotencyKey{Project: "p", Key: "old"}, one, -time.Second)
	var forgotten int64
	update(t, s, func(tx *store.Tx) (err error) {
		forgotten, err = tx.ForgetExpired()
		return err
	})
	same(t, "forgotten", forgotten, int64(1))
	err = s.Update(t.Context(), func(tx *store.Tx) error {
		return tx.StoreReply(store.IdempotencyKey{Key: "never"}, 200, nil)
	})
	if err == nil {
		t.Error("a reply was stored for nothing")
	}
}

func testKeys(t *testing.T, open Open) {
	s := open(t, nil)
	same(t, "any key", read(t, s, (*store.Tx).AnyKey), false)
	k := key("k")
	k.RevokedAt = time.Time{}
	update(t, s, func(tx *store.Tx) error { return tx.PutKey(k) })
	same(t, "any key", read(t, s, (*store.Tx).AnyKey), true)
	find := func() sojourn.Key {
		return read(t, s, func(tx *store.Tx) (sojourn.Key, error) { return tx.KeyByHash(k.Hash) })
	}
	same(t, "key", find(), k)
	k.Name, k.Scopes, k.RevokedAt = "renamed", nil, k.CreatedAt.Add(time.Hour)
	update(t, s, func(tx *store.Tx) error { return tx.PutKey(k) })
	same(t, "key", find(), k)
	same(t, "any key", read(t, s, (*store.Tx).AnyKey), false)
	twin := key("twin")
	twin.Hash = k.Hash
	err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.PutKey(twin) })
	if !errors.Is(err, store.ErrConstraint) {
		t.Errorf("a second key with the hash: %v, want ErrConstraint", err)
	}
}
