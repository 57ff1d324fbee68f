package image

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// kind is where an image comes from.
type kind string

const (
	kindRegistry kind = "registry"
	kindArchive  kind = "oci-archive"
	kindLayout   kind = "oci"
	kindRootfs   kind = "rootfs"
	kindDir      kind = "dir"
)

// reference is a parsed reference.
type reference struct {
	text string
	kind kind
	// path and image are of those on disk: an absolute path, and which of several
	// images in it, "" if there is one.
	path, image string
	remote      name.Reference
}

// parse understands a reference. Its error wraps sandbox.ErrInvalidSpec.
func parse(text string, insecure []string) (reference, error) {
	if text == "" || len(text) > maxName || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return reference{}, fmt.Errorf("%w: image reference %.100q", sandbox.ErrInvalidSpec, text)
	}
	for _, k := range []kind{kindArchive, kindLayout, kindRootfs, kindDir} {
		rest, ok := strings.CutPrefix(text, string(k)+":")
		if !ok {
			continue
		}
		r := reference{text: text, kind: k, path: rest}
		if k == kindArchive || k == kindLayout {
			r.path, r.image, _ = strings.Cut(rest, "#")
		}
		if !filepath.IsAbs(r.path) || filepath.Clean(r.path) != r.path {
			return reference{}, fmt.Errorf("%w: image reference %.100q needs an absolute, clean path", sandbox.ErrInvalidSpec, text)
		}
		return r, nil
	}
	ref, err := name.ParseReference(text, name.WeakValidation)
	if err != nil {
		return reference{}, fmt.Errorf("%w: image reference %.100q: %w", sandbox.ErrInvalidSpec, text, err)
	}
	for _, host := range insecure {
		if canonicalHost(host) == ref.Context().RegistryStr() {
			if ref, err = name.ParseReference(text, name.WeakValidation, name.Insecure); err != nil {
				return reference{}, fmt.Errorf("%w: image reference %.100q: %w", sandbox.ErrInvalidSpec, text, err)
			}
		}
	}
	// Servers may take "acme/../evil" for another repository than rules do.
	if repository := "/" + ref.Context().RepositoryStr(); path.Clean(repository) != repository {
		return reference{}, fmt.Errorf("%w: image reference %.100q needs a clean path", sandbox.ErrInvalidSpec, text)
	}
	return reference{text: text, kind: kindRegistry, remote: ref}, nil
}

// pinned is the digest that the reference itself names, or "".
func (r reference) pinned() string {
	if d, ok := r.remote.(name.Digest); ok {
		return d.DigestStr()
	}
	return ""
}

// canonicalHost is the one name of a registry that goes by several.
func canonicalHost(host string) string {
	host = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(host, "https://"), "http://"), "/")
	for _, suffix := range []string{"/v1", "/v2"} {
		host = strings.TrimSuffix(host, suffix)
	}
	if host == "docker.io" || host == "registry-1.docker.io" || host == "" {
		return name.DefaultRegistry
	}
	return host
}

// allowed reports whether the rules let a session name this image. A rule is a reference
// that must be meant exactly, a repository with all that is in it, or a path of a registry
// that ends in "/*" with all below it; "*" is every registry. Images on this host are only
// allowed exactly.
func allowed(r reference, rules []string) bool {
	for _, rule := range rules {
		if rule == r.text || r.kind == kindRegistry && allowsRemote(rule, r.remote) {
			return true
		}
	}
	return false
}

func allowsRemote(rule string, ref name.Reference) bool {
	repository := ref.Context().Name() // with the host, and "library/" where that is meant
	if rule == "*" {
		return true
	}
	if prefix, ok := strings.CutSuffix(rule, "/*"); ok {
		host, rest, _ := strings.Cut(prefix, "/")
		below := path.Join(canonicalHost(host), rest) + "/"
		return strings.HasPrefix(repository, below)
	}
	want, err := name.ParseReference(rule, name.WeakValidation)
	if err != nil {
		return false
	}
	if want.Context().Name() != repository {
		return false
	}
	// A rule without a tag or digest is the whole repository.
	if rest := strings.TrimPrefix(rule, "/"); !strings.ContainsAny(path.Base(rest), ":@") {
		return true
	}
	return want.Identifier() == ref.Identifier()
}

// checkRules reports a rule that could allow nothing.
func checkRules(rules []string, insecure []string) error {
	for _, rule := range rules {
		base := strings.TrimSuffix(rule, "/*")
		if rule == "*" {
			continue
		}
		if base != rule {
			base += "/any"
		}
		if _, err := parse(base, insecure); err != nil {
			return fmt.Errorf("rule %q: %w", rule, err)
		}
	}
	return nil
}
