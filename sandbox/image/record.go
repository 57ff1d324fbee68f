package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names in the store's directory. The tree is called "root" and nothing beside it starts
// with that word, so that no comparison of paths by their beginnings can take a neighbour
// for a part of it.
const (
	treeName     = "root"
	recordName   = "image.json"
	verifiedName = "verified"
	usersName    = "users"
	refsName     = "refs"
	locksName    = "locks"
	layersName   = "layers" // kept for layers that are no images
	ownedPrefix  = "sha256-"
	plainPrefix  = "plain-" // without owners
	damagedName  = "damaged-"
)

// record is what the store knows of an image that is there.
type record struct {
	Version   int       `json:"version"`
	Digest    string    `json:"digest"`
	Reference string    `json:"reference"` // as it was first asked for
	Platform  string    `json:"platform"`
	Env       []string  `json:"env,omitempty"`
	MadeAt    time.Time `json:"madeAt"`
	Tree      sums      `json:"tree"`
	// Points are the mount points that were added later. The sums leave them out.
	Points []string `json:"points,omitempty"`
}

const recordVersion = 1

// entryDir is the directory of an image.
func (s *Store) entryDir(digest string) string {
	prefix := ownedPrefix
	if !s.owners {
		prefix = plainPrefix
	}
	return filepath.Join(s.cfg.Dir, prefix+strings.TrimPrefix(digest, digestPrefix))
}

// digestOfEntry is the inverse of entryDir.
func (s *Store) digestOfEntry(name string) (string, bool) {
	prefix := ownedPrefix
	if !s.owners {
		prefix = plainPrefix
	}
	rest, ok := strings.CutPrefix(name, prefix)
	return digestPrefix + rest, ok && validDigest(digestPrefix+rest)
}

func (s *Store) readRecord(digest string) (record, error) {
	var r record
	if err := readJSON(filepath.Join(s.entryDir(digest), recordName), &r); err != nil {
		return record{}, err
	}
	if r.Version != recordVersion || r.Digest != digest {
		return record{}, fmt.Errorf("%w: its record is of another image or version", ErrCorrupt)
	}
	return r, nil
}

// meaning is what a reference meant when it was last asked for.
type meaning struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	At        time.Time `json:"at"`
	Stamp     string    `json:"stamp,omitempty"` // of a file of the host
}

func (s *Store) refPath(r reference) string {
	key := digestOf([]byte(r.text + "\x00" + s.platform.String()))
	return filepath.Join(s.cfg.Dir, refsName, strings.TrimPrefix(key, digestPrefix)+".json")
}

// meaningOf returns what a reference meant; the zero value is unknown.
func (s *Store) meaningOf(r reference) meaning {
	var m meaning
	if readJSON(s.refPath(r), &m) != nil || m.Reference != r.text || !validDigest(m.Digest) {
		return meaning{}
	}
	return m
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// writeJSON writes a small file in one step.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(f.Name())))
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
