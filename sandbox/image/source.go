package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Bounds of what describes an image.
const (
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	maxLayers   = 500
	maxIndexes  = 4 // indexes in indexes
	maxEnv      = 256
	maxEnvBytes = 128 << 10
)

// source is an image that was found and has not been unpacked.
type source struct {
	digest  string // names the image in the store
	env     []string
	layers  []layer
	isPlain bool // it is an archive of a root, in which no name means anything
}

// layer is a part of a source: a tar stream, compressed or not.
type layer struct {
	// size and digest are of the stream as it comes: checked, unless they are -1 and "".
	size   int64
	digest string
	// diffID is the digest of the archive in the stream; "" is unknown.
	diffID string
	// remote says that the stream comes over a network and may break off.
	remote bool
	// open begins the stream; try counts from 0.
	open func(ctx context.Context, try int) (io.ReadCloser, error)
}

// parsePlatform reads "os/architecture[/variant]"; "" is that of this machine.
func parsePlatform(s string) (v1.Platform, error) {
	if s == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS == "" || p.Architecture == "" || p.OSVersion != "" {
		return v1.Platform{}, fmt.Errorf("platform %q is not like linux/arm64 or linux/arm/v7", s)
	}
	return *p, nil
}

// choose returns the image of a list that is for the platform: the first one, and if no
// variant is asked for, one without comes before others. An index is never chosen when an
// image is there.
func choose(list []v1.Descriptor, want v1.Platform) (v1.Descriptor, error) {
	var fits []v1.Descriptor
	var have []string
	for _, d := range list {
		p := d.Platform
		switch {
		case p == nil:
			fits = append(fits, d) // it does not say, and is looked at later
		case p.OS == want.OS && p.Architecture == want.Architecture && (want.Variant == "" || p.Variant == want.Variant):
			fits = append(fits, d)
		case p.OS != "unknown": // else it is no image, but about one
			have = append(have, p.String())
		}
	}
	if len(fits) == 0 {
		slices.Sort(have)
		return v1.Descriptor{}, fmt.Errorf("%w: it is not there for %s, only for %s", ErrPlatform, want.String(), strings.Join(slices.Compact(have), ", "))
	}
	rank := func(d v1.Descriptor) int {
		switch {
		case d.Platform == nil:
			return 2
		case want.Variant == "" && d.Platform.Variant != "":
			return 1
		}
		return 0
	}
	slices.SortStableFunc(fits, func(a, b v1.Descriptor) int { return rank(a) - rank(b) })
	return fits[0], nil
}

// fetch returns what a descriptor describes, checked against it.
type fetch func(d v1.Descriptor, limit int64) ([]byte, error)

// manifestOf follows a manifest or index to the manifest of the image for the platform.
func manifestOf(get fetch, d v1.Descriptor, raw []byte, want v1.Platform) (v1.Descriptor, *v1.Manifest, error) {
	for range maxIndexes {
		switch {
		case isIndex(d.MediaType, raw):
			index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
			if err != nil {
				return d, nil, fmt.Errorf("%w: index: %w", ErrCorrupt, err)
			}
			if d, err = choose(index.Manifests, want); err != nil {
				return d, nil, err
			}
			if raw, err = get(d, maxManifest); err != nil {
				return d, nil, err
			}
		case d.MediaType == types.DockerManifestSchema1 || d.MediaType == types.DockerManifestSchema1Signed:
			return d, nil, fmt.Errorf("%w: an image of the first version of the format", ErrCorrupt)
		default:
			m, err := v1.ParseManifest(bytes.NewReader(raw))
			if err != nil {
				return d, nil, fmt.Errorf("%w: manifest: %w", ErrCorrupt, err)
			}
			return d, m, nil
		}
	}
	return d, nil, fmt.Errorf("%w: more than %d indexes in each other", ErrCorrupt, maxIndexes)
}

// isIndex reports whether a manifest lists others. Some say so in themselves only.
func isIndex(m types.MediaType, raw []byte) bool {
	return m.IsIndex() || !m.IsImage() && bytes.Contains(raw[:min(len(raw), maxManifest)], []byte(`"manifests"`))
}

// newSource describes the image of a manifest. open begins the stream of a blob.
func newSource(get fetch, d v1.Descriptor, m *v1.Manifest, want v1.Platform, remote bool,
	open func(ctx context.Context, blob v1.Descriptor, try int) (io.ReadCloser, error),
) (*source, error) {
	if len(m.Layers) > maxLayers {
		return nil, fmt.Errorf("%w: %d layers", ErrTooLarge, len(m.Layers))
	}
	if m.Config.MediaType != types.DockerConfigJSON && m.Config.MediaType != types.OCIConfigJSON {
		return nil, fmt.Errorf("%w: it is no image, but %.80q", ErrCorrupt, m.Config.MediaType)
	}
	raw, err := get(m.Config, maxConfig)
	if err != nil {
		return nil, err
	}
	env, diffIDs, err := readConfig(raw, want)
	if err != nil {
		return nil, err
	}
	if len(diffIDs) != len(m.Layers) {
		return nil, fmt.Errorf("%w: %d layers, of which %d are described", ErrCorrupt, len(m.Layers), len(diffIDs))
	}
	s := &source{digest: d.Digest.String(), env: env}
	for i, blob := range m.Layers {
		if !validDigest(blob.Digest.String()) || blob.Size < 0 {
			return nil, fmt.Errorf("%w: layer %d has the digest %.80q and %d bytes", ErrCorrupt, i, blob.Digest, blob.Size)
		}
		s.layers = append(s.layers, layer{
			size: blob.Size, digest: blob.Digest.String(), diffID: diffIDs[i], remote: remote,
			open: func(ctx context.Context, try int) (io.ReadCloser, error) { return open(ctx, blob, try) },
		})
	}
	return s, nil
}

// readConfig returns the environment of an image and the digests of the archives of its
// layers. An image for another platform is refused.
func readConfig(raw []byte, want v1.Platform) (env, diffIDs []string, err error) {
	config, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: configuration: %w", ErrCorrupt, err)
	}
	if config.OS != want.OS && config.OS != "" || config.Architecture != want.Architecture && config.Architecture != "" {
		return nil, nil, fmt.Errorf("%w: it is not there for %s, only for %.40s/%.40s", ErrPlatform, want.String(), config.OS, config.Architecture)
	}
	size := 0
	for _, v := range config.Config.Env {
		if size += len(v); size > maxEnvBytes || len(config.Config.Env) > maxEnv {
			return nil, nil, fmt.Errorf("%w: its environment", ErrTooLarge)
		}
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" || strings.ContainsRune(v, 0) {
			return nil, nil, fmt.Errorf("%w: variable %.80q", ErrCorrupt, v)
		}
	}
	for _, d := range config.RootFS.DiffIDs {
		if !validDigest(d.String()) {
			return nil, nil, fmt.Errorf("%w: layer with the digest %.80q", ErrCorrupt, d)
		}
		diffIDs = append(diffIDs, d.String())
	}
	return config.Config.Env, diffIDs, nil
}

// readBlob reads all of a small stream and checks it against its descriptor.
func readBlob(r io.Reader, d v1.Descriptor, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, readError("description of the image", err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: a description of more than %d bytes", ErrTooLarge, limit)
	}
	return b, sameDigest("a description", d.Digest.String(), digestOf(b))
}

// errNotThere reports a blob or file that an image speaks of and that is not there.
var errNotThere = errors.New("it is not there")
