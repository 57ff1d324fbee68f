package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Root is what a sandbox finds at "/": the skeleton of the host, or an image.
type Root struct {
	Dir string
	// Binds are the directories of the host that must be mounted read-only at the
	// same paths. An image has none.
	Binds []string
	// Env is the environment that the image asks for.
	Env []string
	// Digest names the content of an image; "" is the skeleton.
	Digest string
}

// IsImage reports whether the root is an image, which a sandbox may change for itself.
func (r Root) IsImage() bool { return r.Digest != "" }

// Roots finds the root directories of a driver's sandboxes.
type Roots struct {
	*Skeletons
	images sandbox.Images // nil when there are none
}

// NewRoots returns the roots of a driver: skeletons below dir, and images.
func NewRoots(dir string, images sandbox.Images) *Roots {
	return &Roots{Skeletons: NewSkeletons(dir), images: images}
}

// Find returns the root for the sandbox that spec describes. An image is in the record
// of the cell when Find returns, so that it is kept for as long as the cell is there.
func (r *Roots) Find(ctx context.Context, c *Cell, spec sandbox.Spec) (Root, error) {
	root, err := r.Look(ctx, spec)
	if err != nil || !root.IsImage() {
		return root, err
	}
	c.Record.Image = root.Digest
	if err := c.save(); err != nil {
		return Root{}, err
	}
	if len(spec.Layers) > 0 {
		if p, ok := r.images.(sandbox.MountPointer); ok {
			image := sandbox.Image{Reference: spec.Image, Digest: root.Digest, Dir: root.Dir, Env: root.Env}
			if err := p.AddMountPoints(ctx, image, spec.Layers); err != nil {
				return Root{}, err
			}
		}
	}
	return root, nil
}

// Look returns the root that a sandbox for spec would get now. Nothing keeps an image
// there for it.
func (r *Roots) Look(ctx context.Context, spec sandbox.Spec) (Root, error) {
	if spec.Image == "" {
		s, err := r.For(spec.Layers)
		return Root{Dir: s.Dir, Binds: s.Binds}, err
	}
	if r.images == nil {
		return Root{}, fmt.Errorf("image %.100q: %w", spec.Image, sandbox.ErrUnsupported)
	}
	image, err := r.images.Ensure(ctx, spec.Image)
	if err != nil {
		return Root{}, err
	}
	if !filepath.IsAbs(image.Dir) || image.Digest == "" {
		return Root{}, fmt.Errorf("image %.100q has no directory or no digest", spec.Image)
	}
	return Root{Dir: image.Dir, Env: image.Env, Digest: image.Digest}, nil
}

// Resolve returns the digest of the image that a reference means now.
func (r *Roots) Resolve(ctx context.Context, reference string) (string, error) {
	if r.images == nil {
		return "", fmt.Errorf("image %.100q: %w", reference, sandbox.ErrUnsupported)
	}
	image, err := r.images.Ensure(ctx, reference)
	return image.Digest, err
}

// ImagesInUse returns the digests of the images that cells of the directory name.
func (m *Machine) ImagesInUse() (map[string]bool, error) {
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	used := make(map[string]bool)
	for _, e := range entries {
		r, err := readRecord(filepath.Join(m.root, e.Name()))
		if unreadable(err) { // else its image could be removed
			return nil, fmt.Errorf("list images in use: %w", err)
		}
		if err == nil && r.Image != "" {
			used[r.Image] = true
		}
	}
	return used, nil
}

// The variables of an image that never reach a sandbox: ours, and the ones that say
// where its home is. Everything else of ours is a default that an image may change,
// because programs of images rely on their own PATH.
const ownPrefix = "SOJOURN_"

// mergeEnv returns our environment, over that of an image where ours must win.
func mergeEnv(ours, image []string) []string {
	defaults := map[string]bool{"PATH": true, "LANG": true, "TERM": true}
	fixed := make(map[string]bool)
	for _, v := range ours {
		if name, _, _ := strings.Cut(v, "="); !defaults[name] {
			fixed[name] = true
		}
	}
	env, at := []string(nil), make(map[string]int)
	add := func(v string) {
		name, _, _ := strings.Cut(v, "=")
		if i, ok := at[name]; ok {
			env[i] = v
			return
		}
		at[name] = len(env)
		env = append(env, v)
	}
	for _, v := range ours {
		add(v)
	}
	for _, v := range image {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" || fixed[name] || strings.HasPrefix(name, ownPrefix) || strings.ContainsRune(v, 0) {
			continue
		}
		add(v)
	}
	return env
}
