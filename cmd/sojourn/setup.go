package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/image"
	"github.com/sojourn-dev/sojourn/sandbox/warm"
)

// setup is what a server's configuration makes of its sandboxes: where they get
// root file systems from, what they get by default, and their way out.
type setup struct {
	cfg     config.Config
	data    string
	log     *slog.Logger
	sandbox sojourn.SandboxSpec // of sessions that do not say otherwise
	images  *image.Store
	egress  *egress.Egress
	way     *server.Way // to the network and to models
	meter   loopMeter   // of the built-in loop
	table   []harness.Runtime
	driver  atomic.Pointer[sandbox.Driver] // once it is open
	own     atomic.Pointer[netip.AddrPort] // where the server listens
}

// newSetup checks the configuration and opens what belongs to it.
func newSetup(cfg config.Config, data string, log *slog.Logger) (*setup, error) {
	s := &setup{cfg: cfg, data: data, log: log, sandbox: defaultSandbox(cfg.Sandbox)}
	if err := s.sandbox.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var err error
	if s.table, err = runtimeTable(cfg, data, log); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if s.egress, err = s.openEgress(); err != nil {
		return nil, fmt.Errorf("configuration: network: %w", err)
	}
	if s.way, err = s.openWay(); err != nil {
		return nil, err
	}
	if err := s.egress.Check(s.sandbox.Network); err != nil {
		return nil, fmt.Errorf("configuration: sandbox: %w", err)
	}
	if s.images, err = s.openImages(); err != nil {
		return nil, fmt.Errorf("configuration: images: %w", err)
	}
	if i := s.sandbox.Image; i != "" {
		if err := s.images.Check(i); err != nil {
			return nil, errors.Join(fmt.Errorf("configuration: sandbox.image: %w", err), s.images.Close())
		}
	}
	return s, nil
}

// close gives back what newSetup opened.
func (s *setup) close() error { return s.images.Close() }

func defaultSandbox(c config.Sandbox) sojourn.SandboxSpec {
	return sojourn.SandboxSpec{
		Image: c.Image,
		Idle:  sojourn.IdleMode(c.Idle),
		Limits: sojourn.SandboxLimits{
			MemoryBytes: int64(c.Limits.Memory), DiskBytes: int64(c.Limits.Disk), MilliCPUs: int(c.Limits.CPUs),
			Processes: c.Limits.Processes, OpenFiles: c.Limits.OpenFiles,
		},
		Network: sojourn.NetworkPolicy{
			Mode: sojourn.NetworkMode(c.Network.Mode), Allow: c.Network.Allow, Credentials: c.Network.Credentials,
		},
	}
}

func (s *setup) openEgress() (*egress.Egress, error) {
	c := egress.Config{Log: s.log, Own: s.listening}
	for _, text := range s.cfg.Network.AllowPrivate {
		x, err := egress.ParseException(text)
		if err != nil {
			return nil, fmt.Errorf("allowPrivate: %w", err)
		}
		c.AllowPrivate = append(c.AllowPrivate, x)
	}
	for _, cred := range s.cfg.Network.Credentials {
		secret, err := cred.Read()
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", cred.Name, err)
		}
		c.Credentials = append(c.Credentials, egress.Credential{
			Name: cred.Name, Hosts: cred.Hosts, Header: cred.Header, Prefix: cred.Prefix, User: cred.User,
			Value: secret, Env: cred.Env, PlainHTTP: cred.PlainHTTP,
		})
	}
	return egress.New(c)
}

// listening is where the server itself is: no sandbox reaches that.
func (s *setup) listening() []netip.AddrPort {
	if a := s.own.Load(); a != nil {
		return []netip.AddrPort{*a}
	}
	return nil
}

// listensAt says where the server has come to listen.
func (s *setup) listensAt(a net.Addr) {
	if tcp, ok := a.(*net.TCPAddr); ok {
		at := tcp.AddrPort()
		s.own.Store(&at)
	}
}

func (s *setup) openImages() (*image.Store, error) {
	c := s.cfg.Images
	var creds []image.Credential
	for _, r := range c.Credentials {
		creds = append(creds, image.Credential{Registry: r.Host, Username: r.User, PasswordFile: r.PasswordFile})
	}
	return image.Open(image.Config{
		Dir: filepath.Join(s.data, "images"), Names: c.Names, Allow: c.Allow, Platform: c.Platform,
		Insecure: c.Insecure, Mirrors: c.Mirrors, Credentials: creds, DockerConfig: c.DockerConfig,
		Limits: image.Limits{Bytes: int64(c.MaxImage)}, CacheBytes: int64(c.Cache), Pinned: c.Pinned,
		Refresh: time.Duration(c.Refresh), InUse: s.imagesInUse, Progress: s.tellProgress, Log: s.log,
		Strange: &http.Transport{
			DialContext: s.egress.Dial, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
			ResponseHeaderTimeout: time.Minute, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 4,
		},
	})
}

// imagesInUse are the images that sandboxes were made with. Before the driver is
// open nobody knows, and then none is removed.
func (s *setup) imagesInUse() (map[string]bool, error) {
	d := s.driver.Load()
	if d == nil {
		return nil, errors.New("the sandboxes are not known yet")
	}
	if user, ok := (*d).(interface {
		ImagesInUse() (map[string]bool, error)
	}); ok {
		return user.ImagesInUse()
	}
	return nil, nil
}

// tellProgress logs how far an image is, at the beginning of each stage.
func (s *setup) tellProgress(p image.Progress) {
	if p.Bytes == 0 || p.Bytes == p.Total {
		s.log.Info("image", "reference", p.Reference, "stage", string(p.Stage), "bytes", p.Bytes, "total", p.Total)
	}
}

// openDriver opens the driver that the operator asked for, with what it needs of
// the configuration, and keeps sandboxes of it ready if it is to.
func (s *setup) openDriver(ctx context.Context, want string) (sandbox.Driver, string, error) {
	d, reason, err := chooseDriver(ctx, s.data, want, s.options(), s.log)
	if err != nil {
		return nil, "", err
	}
	if d == nil {
		endOthers(ctx, s.data, "", s.options(), s.log)
		return nil, reason, nil
	}
	endOthers(ctx, s.data, d.Name(), s.options(), s.log)
	s.driver.Store(&d)
	if s.cfg.Warm.Max == 0 {
		return d, reason, nil
	}
	plain := server.PlainSpec(s.sandbox, d.Capabilities())
	plain.Layers = s.table[0].Layers
	return warm.Open(d, warm.Config{
		Default: plain, Min: s.cfg.Warm.Min, Max: s.cfg.Warm.Max, Log: s.log,
	}), reason, nil
}

// options are what drivers need of the configuration.
func (s *setup) options() driverOptions {
	o := driverOptions{runsc: s.cfg.Driver.Runsc, engine: s.cfg.Driver.Docker, engineImages: s.cfg.Images.Allow}
	if len(s.cfg.Images.Names)+len(s.cfg.Images.Allow) > 0 {
		o.images = s.images
	}
	return o
}

// tidy removes images that nobody has used for long, when they take too much.
func (s *setup) tidy(ctx context.Context) error { return s.images.Collect(ctx) }
