package store

import (
	"github.com/sojourn-dev/sojourn"
)

const (
	keyColumns = `id, project, kind, name, scopes, hash, hint, created_at, revoked_at`

	// What a key is and whose never changes.
	upsertKey = `INSERT INTO keys (` + keyColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
	ON CONFLICT (id) DO UPDATE SET name = excluded.name, scopes = excluded.scopes, revoked_at = excluded.revoked_at`

	selectKey       = `SELECT ` + keyColumns + ` FROM keys WHERE id = $1`
	selectKeyByHash = `SELECT ` + keyColumns + ` FROM keys WHERE hash = $1`
	selectKeys      = `SELECT ` + keyColumns + ` FROM keys WHERE project = $1 ORDER BY created_at, id`
	countValidKeys  = `SELECT COUNT(*) FROM keys WHERE revoked_at = 0`
)

func scanKey(row scanner) (k sojourn.Key, err error) {
	var scopes, hash string
	var created, revoked int64
	err = row.Scan(&k.ID, &k.Project, &k.Kind, &k.Name, &scopes, &hash, &k.Hint, &created, &revoked)
	if err != nil {
		return k, err
	}
	k.CreatedAt, k.RevokedAt = instant(created), instant(revoked)
	if k.Hash, err = parseHash(hash); err != nil {
		return k, err
	}
	return k, decode(scopes, &k.Scopes)
}

// PutKey stores a new key, or the new name, scopes and revocation of a known one.
func (t *Tx) PutKey(k sojourn.Key) error {
	scopes, err := encoded(k.Scopes, k.Scopes == nil)
	if err != nil {
		return t.fail("encode scopes", err)
	}
	_, err = t.exec("write key", upsertKey, k.ID, k.Project, k.Kind, k.Name, scopes, hashText(k.Hash), k.Hint,
		micros(k.CreatedAt), micros(k.RevokedAt))
	return err
}

// Key returns a key, revoked or not.
func (t *Tx) Key(id sojourn.KeyID) (sojourn.Key, error) {
	return one(t, "key", scanKey, selectKey, id)
}

// KeyByHash returns the key whose secret has the hash, revoked or not.
func (t *Tx) KeyByHash(hash [32]byte) (sojourn.Key, error) {
	return one(t, "key", scanKey, selectKeyByHash, hashText(hash))
}

// Keys returns all keys of a project, oldest first.
func (t *Tx) Keys(project sojourn.ProjectID) ([]sojourn.Key, error) {
	return collect(t, "keys", scanKey, selectKeys, project)
}

// AnyKey reports whether the installation has a key that is not revoked.
func (t *Tx) AnyKey() (bool, error) {
	n, err := one(t, "keys", func(row scanner) (n int64, err error) {
		return n, row.Scan(&n)
	}, countValidKeys)
	return n > 0, err
}
