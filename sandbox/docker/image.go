package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/internal/local"
)

// maxReference is how long a reference of an image may be.
const maxReference = 512

// PullPolicy says when an image is fetched from its registry.
type PullPolicy string

// The pull policies.
const (
	PullMissing PullPolicy = ""       // when the engine has none of that name
	PullAlways  PullPolicy = "always" // before each sandbox
	PullNever   PullPolicy = "never"
)

// Progress tells how far the engine is with an image.
type Progress struct {
	Reference string // as it was asked for
	Layer     string // short digest; "" for the whole image
	Stage     string // in the engine's words: "Downloading", "Extracting"
	Bytes     int64  // of the stage; 0 when unknown
	Total     int64
	Digest    string // "sha256:…" of the manifest, set in the last call; "" for an image that was never in a registry
}

// images are the root file systems that sessions may name.
type images struct {
	engine   *engine
	allowed  []string
	pull     PullPolicy
	login    func(ctx context.Context, registry string) (user, password string, err error)
	progress func(Progress)
}

// image is one that the engine has.
type image struct {
	id  string   // what sandboxes are made from: a name could move to another image
	env []string // that it asks for
}

// ensure makes the engine have the image.
func (s *images) ensure(ctx context.Context, ref string) (image, error) {
	if !s.allows(ref) {
		return image{}, notAllowed(ref)
	}
	img, digest, err := s.look(ctx, ref)
	missing := cerrdefs.IsNotFound(err)
	switch {
	case s.pull == PullAlways, missing && s.pull != PullNever:
		if err := s.fetch(ctx, ref); err != nil {
			return image{}, fmt.Errorf("fetch image %s: %w", ref, err)
		}
		img, digest, err = s.look(ctx, ref)
	case missing:
		return image{}, fmt.Errorf("image %s is not in the engine, which may not fetch it: %w", ref, sandbox.ErrUnsupported)
	}
	if err != nil {
		return image{}, fmt.Errorf("look at image %s: %w", ref, err)
	}
	s.report(Progress{Reference: ref, Stage: "Ready", Digest: digest})
	return img, nil
}

// allows reports whether the operator lets sessions name the image. What stands for the
// "*" of a rule comes from a session and must be a reference: the engine's client makes a
// path of it, in which ".." and "?" would mean something else.
func (s *images) allows(ref string) bool {
	if len(ref) > maxReference {
		return false
	}
	_, malformed := reference.ParseNormalizedNamed(ref)
	return slices.ContainsFunc(s.allowed, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return ref == pattern || isPrefix && malformed == nil && strings.HasPrefix(ref, prefix)
	})
}

// look asks the engine for the image and the digest that registries know it by.
func (s *images) look(ctx context.Context, ref string) (image, string, error) {
	r, err := s.engine.ImageInspect(ctx, ref)
	if err != nil {
		return image{}, "", err
	}
	if r.Os != "" && r.Os != "linux" {
		return image{}, "", fmt.Errorf("it is for %.40q, not for linux: %w", r.Os, sandbox.ErrUnsupported)
	}
	img := image{id: r.ID}
	if r.Config != nil {
		img.env = r.Config.Env
	}
	return img, digestOf(ref, r.RepoDigests), nil
}

// environment is the keeper's, over that of the image. An engine adds what it finds in
// the image: an entry without "=" takes a variable away again, and for Podman, which does
// not know that, the variable is empty.
func (l *launcher) environment(c *local.Cell, image []string) []string {
	env := c.KeeperEnv(image...)
	kept := make(map[string]bool)
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		kept[name] = true
	}
	for _, e := range image {
		name, _, _ := strings.Cut(e, "=")
		if name == "" || kept[name] {
			continue
		}
		if l.engine.podman {
			name += "="
		}
		env = append(env, name)
	}
	return env
}

// Resolve returns the id of the image that a reference means now.
func (l *launcher) Resolve(ctx context.Context, ref string) (string, error) {
	img, err := l.images.ensure(ctx, ref)
	return img.id, err
}

func notAllowed(ref string) error {
	return fmt.Errorf("image %.100q is not one that the operator allows: %w", ref, sandbox.ErrUnsupported)
}

// digestOf picks the digest under which the repository of ref knows the image.
func digestOf(ref string, digests []string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ""
	}
	for _, d := range digests {
		n, err := reference.ParseNormalizedNamed(d)
		if err != nil || n.Name() != named.Name() {
			continue
		}
		if digested, ok := n.(reference.Digested); ok {
			return digested.Digest().String()
		}
	}
	return ""
}

// fetch lets the engine pull the image.
func (s *images) fetch(ctx context.Context, ref string) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrInvalidSpec, err)
	}
	var opts client.ImagePullOptions
	if s.login != nil {
		host := reference.Domain(named)
		user, password, err := s.login(ctx, host)
		if err != nil {
			return fmt.Errorf("credentials for %s: %w", host, err)
		}
		if user != "" {
			auth := registry.AuthConfig{Username: user, Password: password, ServerAddress: host}
			if opts.RegistryAuth, err = authconfig.Encode(auth); err != nil {
				return fmt.Errorf("credentials for %s cannot be sent", host)
			}
		}
	}
	r, err := s.engine.ImagePull(ctx, ref, opts)
	if err != nil {
		return err
	}
	for m, err := range r.JSONMessages(ctx) {
		if err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		s.reportMessage(ref, m)
	}
	return ctx.Err()
}

func (s *images) reportMessage(ref string, m jsonstream.Message) {
	p := Progress{Reference: ref, Layer: m.ID, Stage: m.Status}
	if m.Progress != nil {
		p.Bytes, p.Total = m.Progress.Current, m.Progress.Total
	}
	s.report(p)
}

func (s *images) report(p Progress) {
	if s.progress != nil {
		s.progress(p)
	}
}
