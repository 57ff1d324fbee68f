// Package config reads the server's configuration file.
//
// The file is YAML; sample.yaml says what is in it. Everything in it has a
// default, so that a server needs none. A key that nobody knows is an error that
// names it: what was misspelt would silently mean the default.
//
// Secrets are named and not written down: a field that ends in File or Env says
// where the secret is, and [Secret.Read] fetches it.
package config
