package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Credential lets the server into a registry.
type Credential struct {
	Registry string // its host, with a port if it has one
	Username string
	// PasswordFile is the path of a file with the password or token; space around it
	// is left out. It is read each time that it is used.
	PasswordFile string
}

// maxSecretFile bounds files with passwords.
const maxSecretFile = 1 << 20

// keys knows the credentials of the configuration. None of them is ever in a log or an
// error.
type keys struct {
	list         []Credential
	dockerConfig string // the path of a file in Docker's form; "" is none
	log          *slog.Logger
}

// of returns what the server shows a registry.
func (k keys) of(host string) (authn.Authenticator, error) {
	for _, c := range k.list {
		if canonicalHost(c.Registry) != canonicalHost(host) {
			continue
		}
		b, err := readSecret(c.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("password for registry %s: %w", host, err)
		}
		return &authn.Basic{Username: c.Username, Password: strings.TrimSpace(string(b))}, nil
	}
	if k.dockerConfig == "" {
		return authn.Anonymous, nil
	}
	return k.fromDocker(host)
}

// fromDocker looks a registry up in a configuration file of Docker's. Helper programs that
// such a file can name are not run.
func (k keys) fromDocker(host string) (authn.Authenticator, error) {
	b, err := readSecret(k.dockerConfig)
	if err != nil {
		return nil, fmt.Errorf("credentials of Docker: %w", err)
	}
	var config struct {
		Auths       map[string]authn.AuthConfig `json:"auths"`
		CredsStore  string                      `json:"credsStore"`
		CredHelpers map[string]string           `json:"credHelpers"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		// The error of the decoder could quote the file.
		return nil, fmt.Errorf("credentials of Docker: %s is not in its form", k.dockerConfig)
	}
	for server, auth := range config.Auths {
		if canonicalHost(server) == canonicalHost(host) && auth != (authn.AuthConfig{}) {
			return authn.FromConfig(auth), nil
		}
	}
	if config.CredsStore != "" || config.CredHelpers[host] != "" {
		k.log.Warn("the credentials file names a helper program, which is not run: put the password into a file", "registry", host)
	}
	return authn.Anonymous, nil
}

func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSecretFile {
		return nil, errors.New("the file is too large")
	}
	return b, nil
}
