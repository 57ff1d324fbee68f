package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// userAgent is what the server calls itself before registries.
const userAgent = "sojourn"

// registries finds images in registries.
type registries struct {
	mirrors   map[string][]string // hosts by the registry that they mirror
	insecure  []string
	keys      keys
	known     map[string]bool   // those that the configuration speaks of
	transport http.RoundTripper // to these
	strange   http.RoundTripper // to others
	log       *slog.Logger
}

// find asks for the image of a reference: the mirrors of its registry in turn, then the
// registry itself.
func (r *registries) find(ctx context.Context, ref name.Reference, want v1.Platform) (*source, error) {
	places, err := r.places(ref)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, place := range places {
		s, err := r.findAt(ctx, place, places[i:], want)
		if err == nil {
			return s, nil
		}
		errs = append(errs, fmt.Errorf("registry %s: %w", place.Context().RegistryStr(), err))
		if ctx.Err() != nil || errors.Is(err, ErrPlatform) {
			break
		}
		if i < len(places)-1 {
			r.log.Warn("a mirror did not give an image", "registry", place.Context().RegistryStr(), "image", ref.String(), "error", err)
		}
	}
	return nil, errors.Join(errs...)
}

// places are the same reference at the mirrors and at its own registry.
func (r *registries) places(ref name.Reference) ([]name.Reference, error) {
	var places []name.Reference
	for registry, hosts := range r.mirrors {
		if canonicalHost(registry) != ref.Context().RegistryStr() {
			continue
		}
		separator := ":"
		if _, ok := ref.(name.Digest); ok {
			separator = "@"
		}
		for _, host := range hosts {
			p, err := parse(host+"/"+ref.Context().RepositoryStr()+separator+ref.Identifier(), r.insecure)
			if err != nil {
				return nil, err
			}
			places = append(places, p.remote)
		}
	}
	return append(places, ref), nil
}

// findAt asks one place. Layers that break off there are tried at the other places, too.
func (r *registries) findAt(ctx context.Context, ref name.Reference, places []name.Reference, want v1.Platform) (*source, error) {
	puller, err := r.puller(ref)
	if err != nil {
		return nil, err
	}
	top, err := puller.Get(ctx, ref)
	if err != nil {
		return nil, plain(err)
	}
	if err := sameDigest("the manifest", top.Digest.String(), digestOf(top.Manifest)); err != nil {
		return nil, err
	}
	repository := ref.Context()
	get := func(d v1.Descriptor, limit int64) ([]byte, error) {
		if !validDigest(d.Digest.String()) || d.Size < 0 || d.Size > limit {
			return nil, fmt.Errorf("%w: a description with the digest %.80q and %d bytes", ErrCorrupt, d.Digest, d.Size)
		}
		if d.MediaType.IsImage() || d.MediaType.IsIndex() {
			m, err := puller.Get(ctx, repository.Digest(d.Digest.String()))
			if err != nil {
				return nil, plain(err)
			}
			return m.Manifest, sameDigest("a manifest", d.Digest.String(), digestOf(m.Manifest))
		}
		b, err := blob(ctx, puller, repository, d.Digest)
		if err != nil {
			return nil, err
		}
		defer b.Close()
		return readBlob(b, d, limit)
	}
	d, m, err := manifestOf(get, top.Descriptor, top.Manifest, want)
	if err != nil {
		return nil, err
	}
	return newSource(get, d, m, want, true, func(ctx context.Context, d v1.Descriptor, try int) (io.ReadCloser, error) {
		at, p := places[try%len(places)], puller
		if at != ref {
			var err error
			if p, err = r.puller(at); err != nil {
				return nil, err
			}
		}
		return blob(ctx, p, at.Context(), d.Digest)
	})
}

// blob begins to read a blob. What comes is checked against the digest by the reader.
func blob(ctx context.Context, p *remote.Puller, repository name.Repository, digest v1.Hash) (io.ReadCloser, error) {
	l, err := p.Layer(ctx, repository.Digest(digest.String()))
	if err != nil {
		return nil, plain(err)
	}
	b, err := l.Compressed()
	if err != nil {
		return nil, plain(err)
	}
	return b, nil
}

// puller is a client of the registry of ref. It logs in once.
func (r *registries) puller(ref name.Reference) (*remote.Puller, error) {
	auth, err := r.keys.of(ref.Context().RegistryStr())
	if err != nil {
		return nil, err
	}
	way := r.strange
	if r.known[ref.Context().RegistryStr()] {
		way = r.transport
	}
	if !r.mayBePlain(ref.Context().RegistryStr()) {
		way = onlyTLS{way}
	}
	return remote.NewPuller(
		remote.WithAuth(auth), remote.WithTransport(way), remote.WithUserAgent(userAgent),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: 3}),
	)
}

// mayBePlain reports whether a registry may be spoken to without TLS. Left to itself, the
// client falls back to that for private addresses, and would show the credentials to
// whoever answers there.
func (r *registries) mayBePlain(host string) bool {
	if slices.ContainsFunc(r.insecure, func(h string) bool { return canonicalHost(h) == host }) {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && a.IsLoopback()
}

// onlyTLS refuses requests without it, whoever points there.
type onlyTLS struct{ http.RoundTripper }

func (t onlyTLS) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s is not asked without TLS: the configuration does not name the registry under insecure", req.URL.Host)
	}
	return t.RoundTripper.RoundTrip(req)
}

// plain makes an error of a registry short: its page, and who asked for what, stay out.
func plain(err error) error {
	var t *transport.Error
	if !errors.As(err, &t) {
		return err
	}
	var said []string
	for _, d := range t.Errors {
		said = append(said, fmt.Sprintf("%.60s: %.200s", d.Code, d.Message))
	}
	text := fmt.Sprintf("it answered %d %s", t.StatusCode, http.StatusText(t.StatusCode))
	if len(said) > 0 {
		text += ": " + strings.Join(said[:min(len(said), 3)], "; ")
	}
	switch t.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%w: %s", errNotThere, text)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s; if the image is private, the configuration needs credentials for the registry", text)
	}
	return errors.New(text)
}

// boundedTransport keeps what is not a blob from being large: a registry is not trusted
// with the server's memory.
type boundedTransport struct{ http.RoundTripper }

func (t boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err != nil || strings.Contains(req.URL.Path, "/blobs/") || req.Response != nil {
		// A request that follows from another one is for a blob in a store of the
		// registry's.
		return resp, err
	}
	resp.Body = &boundedBody{resp.Body, maxManifest}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: an answer of more than %d bytes", ErrTooLarge, maxManifest)
	}
	return n, err
}
