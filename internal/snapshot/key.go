package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
)

// OpenKey reads the identity that objects are encrypted for from a file, and makes
// file and identity when there is none. Nobody but the server's user can read it.
func OpenKey(file string) (*age.X25519Identity, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of saved processes: %w", err)
	}
	id, err := age.ParseX25519Identity(strings.TrimSpace(string(b)))
	if err != nil { // the error of age may quote what it read
		return nil, fmt.Errorf("read the key of saved processes: %s holds no key", file)
	}
	return id, nil
}

func makeKey(file string) (*age.X25519Identity, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make the key of saved processes: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("make the key of saved processes: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".key-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("make the key of saved processes: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(id.String() + "\n")
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return nil, fmt.Errorf("make the key of saved processes: %w", err)
	}
	return id, nil
}
