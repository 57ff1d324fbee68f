package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/host"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// machineReport is what doctor finds out. The names of its fields are a contract.
type machineReport struct {
	Version string         `json:"version"`
	Kernel  string         `json:"kernel"`
	Arch    string         `json:"arch"`
	Root    bool           `json:"root"`
	Data    string         `json:"data"`            // that the server would keep
	Tried   string         `json:"tried,omitempty"` // where it was tried, if not there
	Auto    string         `json:"auto"`            // the driver that serve would take; "" for none
	Drivers []driverReport `json:"drivers"`
	Network []host.Check   `json:"network"`
	Images  []host.Check   `json:"images"`
	Ready   []host.Check   `json:"ready"` // sandboxes that are made ahead
	Host    []host.Check   `json:"host"`
	Memory  host.Memory    `json:"memory"`
}

// driverReport is what doctor finds out about one driver.
type driverReport struct {
	sandbox.Report
	// What follows is there when the driver works.
	Capabilities *sandbox.Capabilities `json:"capabilities,omitempty"`
	Proxy        *host.Check           `json:"proxy,omitempty"`     // the way of a sandbox to the network
	Processes    *host.Check           `json:"processes,omitempty"` // saving and resuming them
	IdleBytes    int64                 `json:"idleBytes,omitempty"` // memory of a sandbox that does nothing; 0 is unknown

	unusable bool // it was probed, and could not be used after that
}

type doctorFlags struct {
	data, config string
	json, deep   bool
}

// doctor tries every sandbox driver as serve would use it, and says what works, by
// which means, and what to do about what does not. It fails when serve would find no
// driver by itself.
func doctor(ctx context.Context, io stdio, args []string) error {
	var f doctorFlags
	set := flag.NewFlagSet("doctor", flag.ContinueOnError)
	set.SetOutput(io.err)
	set.StringVar(&f.data, "data", env("SOJOURN_DATA", defaultData()), "`directory` that the server keeps or would keep")
	set.StringVar(&f.config, "config", env("SOJOURN_CONFIG", ""), "configuration `file` of the server")
	set.BoolVar(&f.deep, "deep", false, "also save and resume a process, which takes a second")
	set.BoolVar(&f.json, "json", false, "print JSON")
	if err := set.Parse(args); err != nil {
		return asUsage(err)
	}
	if set.NArg() > 0 {
		return usagef("doctor takes no arguments")
	}
	if err := becomeStatic(ctx, io); err != nil {
		return err
	}
	r, err := examine(ctx, f)
	if err != nil {
		return err
	}
	p := newPrinter(io.out, f.json)
	if f.json {
		err = p.value(r)
	} else {
		r.print(p)
	}
	if err == nil && r.Auto == "" {
		return &exitError{exitFailure, fmt.Errorf("no sandbox driver works here that serve takes by itself")}
	}
	return err
}

// examine finds everything out.
func examine(ctx context.Context, f doctorFlags) (_ machineReport, err error) {
	cfg, err := config.Load(f.config)
	if err != nil {
		return machineReport{}, err
	}
	if f.data, err = filepath.Abs(cmp.Or(f.data, os.TempDir())); err != nil {
		return machineReport{}, err
	}
	place, err := openPlace(f.data)
	if err != nil {
		return machineReport{}, err
	}
	defer func() {
		if closeErr := place.close(); err == nil {
			err = closeErr
		}
	}()
	exe, err := keepExecutable(place.dir)
	if err != nil {
		return machineReport{}, err
	}
	set, err := newSetup(cfg, place.dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return machineReport{}, err
	}
	defer func() {
		if closeErr := set.close(); err == nil {
			err = closeErr
		}
	}()
	m := host.Here()
	r := machineReport{
		Version: buildVersion(), Kernel: kernel(), Arch: runtime.GOARCH, Root: os.Geteuid() == 0,
		Data: f.data, Tried: place.instead, Host: m.Host(), Memory: m.Memory(),
	}
	t := trial{set: set, dir: place.dir, exe: exe, deep: f.deep}
	chosen := false
	for _, row := range drivers {
		d := t.driver(ctx, row)
		if !chosen && !row.onRequest && (d.Available || d.unusable) {
			chosen = true // serve takes it, or fails over it, and looks no further
			if d.Available {
				r.Auto = row.name
			}
		}
		r.Drivers = append(r.Drivers, d)
	}
	r.Network = []host.Check{m.Names(ctx, net.DefaultResolver), m.Raw(os.Getenv("SOJOURN_RAW_NETWORK"), r.withRawNetwork())}
	r.Images = []host.Check{imageStore(m, cfg.Images, f.data)}
	r.Ready = []host.Check{r.ahead(m)}
	return r, ctx.Err()
}

// withRawNetwork are the drivers that give sandboxes an interface of their own.
func (r machineReport) withRawNetwork() (names []string) {
	for _, d := range r.Drivers {
		if d.Capabilities != nil && slices.Contains(d.Capabilities.Networks, sandbox.NetworkNAT) {
			names = append(names, d.Driver)
		}
	}
	return names
}

// ahead says how many sandboxes of the driver that serve would take could be ready.
func (r machineReport) ahead(m host.Machine) host.Check {
	for _, d := range r.Drivers {
		if d.Driver == r.Auto {
			return m.Ahead(d.Driver, d.IdleBytes)
		}
	}
	return m.Ahead("", 0)
}

// imageStore says where images would be and which there may be.
func imageStore(m host.Machine, c config.Images, data string) host.Check {
	check := host.Check{Name: "store", State: host.Works}
	where := filepath.Join(data, "images")
	free, err := m.Space(where)
	if err != nil {
		return host.Check{Name: check.Name, State: host.Fails, Says: err.Error() + ".", Fix: "Look at the data directory."}
	}
	platform := cmp.Or(c.Platform, runtime.GOOS+"/"+runtime.GOARCH)
	check.Says = fmt.Sprintf("%s has room for %s, for images of %s.", where, host.Bytes(free), platform)
	if len(c.Names)+len(c.Allow) == 0 {
		check.State = host.Off
		check.Says += " No session can ask for one, because the configuration names none."
		return check
	}
	var names, missing []string
	for _, name := range slices.Sorted(maps.Keys(c.Names)) {
		names = append(names, name)
		if path := hostPath(c.Names[name]); path != "" {
			if _, err := os.Stat(path); err != nil {
				missing = append(missing, name)
			}
		}
	}
	if len(names) > 0 {
		check.Says += " Sessions may say " + strings.Join(names, ", ") + "."
	}
	if len(c.Allow) > 0 {
		check.Says += " They may name " + strings.Join(c.Allow, ", ") + "."
	}
	if len(missing) > 0 {
		check.State, check.Fix = host.Limited, "Put in place what the configuration means by "+strings.Join(missing, ", ")+": it cannot be found."
	}
	return check
}

// hostPath is the path in a reference to an image on this host; "" for one of a registry.
func hostPath(reference string) string {
	for _, scheme := range []string{"oci-archive:", "oci:", "rootfs:", "dir:"} {
		if path, ok := strings.CutPrefix(reference, scheme); ok {
			path, _, _ = strings.Cut(path, "#")
			return path
		}
	}
	return ""
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "an unknown kernel"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

// trialPlace is a directory in which doctor works: below the data directory, because what
// works depends on the file system and on the length of paths.
type trialPlace struct {
	dir     string
	lock    *os.File
	made    []string // directories above it that were not there, innermost first
	instead string   // "" or dir, when the data directory cannot be used
}

const (
	placePrefix = "doctor-"
	placeLock   = "lock"
)

// openPlace makes a place below data, or takes over one whose doctor was killed, so that
// what it left is ended and removed. Where the user may not write it is a directory
// for temporary files.
func openPlace(data string) (*trialPlace, error) {
	p := &trialPlace{made: missingAbove(data)}
	err := os.MkdirAll(data, 0o700)
	if err == nil {
		err = p.claim(data)
	}
	if err == nil {
		return p, nil
	}
	p.removeMade()
	p.made = nil
	tmp, tmpErr := os.MkdirTemp("", "sojourn-")
	if tmpErr != nil {
		return nil, fmt.Errorf("find a place to try sandboxes: %w", tmpErr)
	}
	p.made = []string{tmp}
	if err := p.claim(tmp); err != nil {
		p.removeMade()
		return nil, fmt.Errorf("find a place to try sandboxes: %w", err)
	}
	p.instead = p.dir
	return p, nil
}

// missingAbove lists path and the directories above it that are not there.
func missingAbove(path string) (missing []string) {
	for {
		if _, err := os.Lstat(path); err == nil {
			return missing
		}
		missing = append(missing, path)
		up := filepath.Dir(path)
		if up == path {
			return missing
		}
		path = up
	}
}

// claim takes a place that nobody has locked, or makes one.
func (p *trialPlace) claim(base string) error {
	old, err := filepath.Glob(filepath.Join(base, placePrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if p.take(dir) == nil {
			return nil
		}
	}
	dir, err := os.MkdirTemp(base, placePrefix)
	if err != nil {
		return err
	}
	return p.take(dir)
}

// take locks a place. The lock ends with this process.
func (p *trialPlace) take(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, placeLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	p.dir, p.lock = dir, f
	return nil
}

// close removes the place and what was made for it. It does not remove what is below a
// mount: what a driver failed to undo is left and said.
func (p *trialPlace) close() error {
	defer p.lock.Close()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("remove %s: %w", p.dir, err)
	}
	if strings.Contains(string(mounts), " "+p.dir+"/") {
		return fmt.Errorf("%s was not removed: something is still mounted below it", p.dir)
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return err
	}
	p.removeMade()
	return nil
}

// removeMade removes directories that are empty, as they are unless a server has
// begun to use them.
func (p *trialPlace) removeMade() {
	for _, dir := range p.made {
		if os.Remove(dir) != nil {
			return
		}
	}
}
