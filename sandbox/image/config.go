package image

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sojourn-dev/sojourn/sandbox"
)

var (
	// ErrNotAllowed reports a reference that the configuration does not allow. As each
	// of these, it is also a sandbox.ErrInvalidSpec: to ask again changes nothing.
	ErrNotAllowed = errors.New("the image is not allowed")
	// ErrCorrupt reports an image that is not what it says it is, or that cannot be
	// understood.
	ErrCorrupt = fmt.Errorf("%w: the image is damaged or not usable", sandbox.ErrInvalidSpec)
	// ErrTooLarge reports an image that is over a limit.
	ErrTooLarge = fmt.Errorf("%w: the image is too large", sandbox.ErrInvalidSpec)
	// ErrPlatform reports an image that does not exist for the platform.
	ErrPlatform = fmt.Errorf("%w: the image does not exist for the platform", sandbox.ErrInvalidSpec)
)

// Limits bounds one image.
type Limits struct {
	Bytes   int64 // unpacked; 0 is 10 GiB
	Entries int64 // files, directories and links; 0 is a million
}

const (
	defaultBytes   = 10 << 30
	defaultEntries = 1_000_000
	defaultCache   = 50 << 30
	defaultRefresh = time.Hour
	defaultOwner   = "server"
)

// Config says which images there can be. Only Dir is needed; without Names and Allow no
// reference is allowed.
type Config struct {
	// Dir is the directory of the store, absolute; it is made if it is not there.
	Dir string
	// Names are the operator's words for references, which sessions can use in their
	// place.
	Names map[string]string
	// Allow are rules for references that sessions may name themselves: a reference
	// ("docker.io/library/debian:bookworm"), a repository with all of its tags and
	// digests ("docker.io/library/debian"), all below a path ("ghcr.io/acme/*"), or all
	// registries ("*"), which lets sessions make the server ask hosts of their choice. A
	// reference to this host ("rootfs:/srv/base.tar") is allowed as it is written.
	Allow []string
	// Platform is which of an image's platforms is taken, such as "linux/arm64"; "" is
	// that of this machine.
	Platform string

	// Insecure are registries that are spoken to without TLS, by host and port.
	Insecure []string
	// Mirrors are hosts that are asked before a registry, by the registry's host.
	Mirrors map[string][]string
	// Credentials are shown to registries; what is in DockerConfig comes after them.
	Credentials []Credential
	// DockerConfig is the path of a file in the form of Docker's config.json; "" is none.
	DockerConfig string
	// Transport is how registries are reached; nil is directly, or through the proxy
	// of the server's environment.
	Transport http.RoundTripper
	// Strange is how registries are reached that nothing here speaks of, because
	// sessions name them and the rule "*" allows that; nil is Transport. It should lead
	// to no host that sessions must not reach: such a registry can also point to others.
	Strange http.RoundTripper

	// Limits bounds one image.
	Limits Limits
	// CacheBytes is how much the unpacked images may take together before those that
	// were used longest ago are removed; 0 is 50 GiB, less than 0 no bound.
	CacheBytes int64
	// Pinned are references or names that are never removed.
	Pinned []string
	// Refresh is how long it is believed that a tag means what it meant; 0 is an hour,
	// less than 0 for good.
	Refresh time.Duration
	// Owner tells the servers apart that share the directory; "" is "server".
	Owner string
	// InUse returns the digests of the images that this server's sandboxes were made
	// with; nil is none.
	InUse func() (map[string]bool, error)

	// Progress, if not nil, is told how far getting images is. It must not block.
	Progress func(Progress)
	Log      *slog.Logger // nil is slog.Default
}

// check fills defaults in and reports what is wrong.
func (c *Config) check() error {
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("directory %q is not absolute", c.Dir)
	}
	if c.Limits.Bytes == 0 {
		c.Limits.Bytes = defaultBytes
	}
	if c.Limits.Entries == 0 {
		c.Limits.Entries = defaultEntries
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = defaultCache
	}
	if c.Refresh == 0 {
		c.Refresh = defaultRefresh
	}
	if c.Owner == "" {
		c.Owner = defaultOwner
	}
	if c.InUse == nil {
		c.InUse = func() (map[string]bool, error) { return nil, nil }
	}
	if c.Transport == nil {
		c.Transport = remote.DefaultTransport
	}
	if c.Strange == nil {
		c.Strange = c.Transport
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Limits.Bytes < 0 || c.Limits.Entries < 0 {
		return errors.New("a limit is negative")
	}
	if c.Owner != filepath.Base(c.Owner) || strings.HasPrefix(c.Owner, ".") {
		return fmt.Errorf("owner %q is no file name", c.Owner)
	}
	for name, ref := range c.Names {
		if _, err := parse(ref, c.Insecure); err != nil {
			return fmt.Errorf("name %q: %w", name, err)
		}
	}
	return checkRules(c.Allow, c.Insecure)
}

// registries are the hosts of those that the configuration speaks of. It was checked.
func (c *Config) registries() map[string]bool {
	hosts := make(map[string]bool)
	add := func(text string) {
		if r, err := parse(text, nil); err == nil && r.kind == kindRegistry {
			hosts[r.remote.Context().RegistryStr()] = true
		}
	}
	for _, ref := range c.Names {
		add(ref)
	}
	for _, rule := range c.Allow {
		if base, below := strings.CutSuffix(rule, "/*"); below {
			add(base + "/any")
		} else if rule != "*" {
			add(rule)
		}
	}
	for _, mirrors := range c.Mirrors {
		for _, host := range mirrors {
			add(host + "/any")
		}
	}
	for _, host := range c.Insecure {
		hosts[canonicalHost(host)] = true
	}
	for _, cred := range c.Credentials {
		hosts[canonicalHost(cred.Registry)] = true
	}
	return hosts
}
