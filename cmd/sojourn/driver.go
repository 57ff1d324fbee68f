package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
	"github.com/sojourn-dev/sojourn/sandbox/process"
)

// driverRow is one sandbox driver that this binary has.
type driverRow struct {
	name string
	// onRequest says that auto never takes the driver.
	onRequest bool
	probe     func(ctx context.Context, dir, executable string, o driverOptions) sandbox.Report
	open      func(dir, executable string, o driverOptions) (sandbox.Driver, error)
}

// driverOptions are what drivers need to know besides where they work.
type driverOptions struct {
	images       sandbox.Images // nil for none
	runsc        string
	engine       config.Docker
	engineImages []string // what sessions may have a container engine fetch
}

// drivers lists the drivers, the one with the strongest wall first: auto takes
// the first that works here and needs no word of the operator.
var drivers = []driverRow{
	engineRow(docker.NameMicroVM, sandbox.IsolationMicroVM, true),
	{
		name: gvisor.Name,
		probe: func(ctx context.Context, dir, exe string, o driverOptions) sandbox.Report {
			if dynamic() {
				return sandbox.Report{
					Driver: gvisor.Name, Isolation: sandbox.IsolationGVisor,
					Reason: "this executable is linked dynamically", Fix: "Build it with CGO_ENABLED=0.",
				}
			}
			return gvisor.Probe(ctx, gvisor.Config{Dir: dir, Executable: exe, Runsc: o.runsc})
		},
		open: func(dir, exe string, o driverOptions) (sandbox.Driver, error) {
			raw, err := rawNetwork()
			if err != nil {
				return nil, err
			}
			return gvisor.Open(gvisor.Config{Dir: dir, Executable: exe, Images: o.images, Runsc: o.runsc, RawNetwork: raw})
		},
	},
	{
		name: namespace.Name,
		probe: func(ctx context.Context, dir, exe string, o driverOptions) sandbox.Report {
			return namespace.Probe(ctx, namespace.Config{Dir: dir, Executable: exe})
		},
		open: func(dir, exe string, o driverOptions) (sandbox.Driver, error) {
			raw, err := rawNetwork()
			if err != nil {
				return nil, err
			}
			return namespace.Open(namespace.Config{Dir: dir, Executable: exe, Images: o.images, RawNetwork: raw})
		},
	},
	engineRow(docker.Name, "", false),
	{
		// For development: no wall against strangers' programs.
		name: process.Name, onRequest: true,
		probe: func(ctx context.Context, dir, exe string, o driverOptions) sandbox.Report {
			return process.Probe(ctx, process.Config{Dir: dir, Executable: exe})
		},
		open: func(dir, exe string, o driverOptions) (sandbox.Driver, error) {
			return process.Open(process.Config{Dir: dir, Executable: exe})
		},
	},
}

// rawNetwork is the range of addresses that the operator gives to sandboxes with an
// interface of their own; the zero value is none.
func rawNetwork() (netip.Prefix, error) {
	text := os.Getenv("SOJOURN_RAW_NETWORK")
	if text == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, usagef("SOJOURN_RAW_NETWORK: %v", err)
	}
	return p, nil
}

// engineRow is the driver of a container engine, whose sandboxes have at least the wall
// that isolation names.
func engineRow(name string, isolation sandbox.Isolation, onRequest bool) driverRow {
	config := func(dir, exe string, o driverOptions) docker.Config {
		return docker.Config{
			Dir: dir, Executable: exe, Isolation: isolation, Host: o.engine.Host, Runtime: o.engine.Runtime, Images: o.engineImages,
		}
	}
	return driverRow{
		name: name, onRequest: onRequest,
		probe: func(ctx context.Context, dir, exe string, o driverOptions) sandbox.Report {
			return docker.Probe(ctx, config(dir, exe, o))
		},
		open: func(dir, exe string, o driverOptions) (sandbox.Driver, error) {
			return docker.Open(config(dir, exe, o))
		},
	}
}

// chooseDriver opens the driver that the operator asked for, or with "auto" the
// strongest one that works here. It never falls back silently: the reason says
// what was tried. With "auto" and nothing that works there is no driver.
func chooseDriver(ctx context.Context, data, want string, o driverOptions, log *slog.Logger) (sandbox.Driver, string, error) {
	if want == "none" {
		return nil, "the operator asked for none", nil
	}
	exe, err := keepExecutable(data)
	if err != nil {
		return nil, "", fmt.Errorf("copy the executable into the data directory: %w", err)
	}
	var tried []string
	known := []string{"auto", "none"}
	for _, row := range drivers {
		known = append(known, row.name)
		if want != row.name && (want != "auto" || row.onRequest) {
			continue
		}
		report := probeOnce(ctx, row, data, exe, o)
		if !report.Available {
			tried = append(tried, strings.TrimSpace(row.name+": "+report.Reason+" "+report.Fix))
			log.Warn("sandbox driver does not work here", "driver", row.name, "reason", report.Reason, "fix", report.Fix)
			continue
		}
		d, err := row.open(filepath.Join(data, "sandboxes", row.name), exe, o)
		if err != nil {
			return nil, "", err
		}
		if c, ok := d.(sandbox.Cleaner); ok && c.Leftovers() != nil {
			log.Warn("something of earlier sandboxes could not be removed", "driver", row.name, "error", c.Leftovers())
		}
		return d, strings.Join(append(tried, report.Reason), "; "), nil
	}
	switch {
	case want == "auto":
		return nil, strings.Join(tried, "; "), nil
	case len(tried) > 0:
		return nil, "", fmt.Errorf("driver %s", tried[0])
	}
	return nil, "", usagef("-driver: %q is none of %s", want, strings.Join(known, ", "))
}

// othersTime is how long the removal of what other drivers have may take.
const othersTime = time.Minute

// endOthers ends and removes the sandboxes of drivers that a server with these data had
// before and has not now. Their leases end with the change, so nobody would ask for them
// again, while they went on running.
func endOthers(ctx context.Context, data, now string, o driverOptions, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, othersTime)
	defer cancel()
	for _, row := range drivers {
		dir := filepath.Join(data, "sandboxes", row.name)
		left, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
		if row.name == now || err == nil && len(left) == 0 || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var exe string
		var d sandbox.Driver
		if err == nil {
			exe, err = keepExecutable(data)
		}
		if err == nil {
			d, err = row.open(dir, exe, o)
		}
		if err == nil {
			err = leave(ctx, d)
		}
		if err != nil {
			log.Warn("sandboxes of a driver that is not used any more could not be removed", "driver", row.name, "error", err)
			continue
		}
		log.Info("removed the sandboxes of a driver that is not used any more", "driver", row.name, "sandboxes", len(left))
	}
}

// keepExecutable keeps a copy of this executable in the data directory: running
// sandboxes have it mounted, whatever happens to the original. The name is the
// digest of the content.
func keepExecutable(data string) (string, error) {
	src, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer src.Close()
	h := sha256.New()
	if _, err := io.Copy(h, src); err != nil {
		return "", err
	}
	dir := filepath.Join(data, "bin", hex.EncodeToString(h.Sum(nil))[:16])
	dst := filepath.Join(dir, "sojourn")
	forgetExecutables(filepath.Join(data, "bin"), filepath.Base(dir))
	if _, err := os.Stat(dst); err == nil {
		now := time.Now()
		return dst, os.Chtimes(dir, now, now) // the last one used
	}
	// Sandboxes may run as another user than the server, so it is readable.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(dir, "sojourn-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, src)
	if err == nil {
		err = tmp.Chmod(0o555)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return "", err
	}
	return dst, os.Rename(tmp.Name(), dst)
}

// keptExecutables is how many earlier executables stay in the data directory, to
// go back to. Running sandboxes need none of them: they hold theirs open.
const keptExecutables = 1

// forgetExecutables removes the executables of earlier versions but the last
// ones, and what a killed copy has left of current. What cannot be removed only
// takes space.
func forgetExecutables(bin, current string) {
	if leftovers, err := filepath.Glob(filepath.Join(bin, current, "sojourn-*")); err == nil {
		for _, f := range leftovers {
			_ = os.Remove(f)
		}
	}
	entries, err := os.ReadDir(bin)
	if err != nil {
		return
	}
	var old []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && e.Name() != current {
			old = append(old, info)
		}
	}
	slices.SortFunc(old, func(a, b os.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, info := range old[min(keptExecutables, len(old)):] {
		_ = os.RemoveAll(filepath.Join(bin, info.Name()))
	}
}

// probeOnce probes a driver, unless it was found to work with this executable
// since the machine started: a server that restarts should be back at once.
func probeOnce(ctx context.Context, row driverRow, data, exe string, o driverOptions) sandbox.Report {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return runProbe(ctx, row, data, exe, o)
	}
	stamp := fmt.Sprintf("%s %s %d %s %s", strings.TrimSpace(string(boot)), exe, os.Geteuid(), o.runsc, o.engine)
	file := filepath.Join(data, "bin", "probe-"+row.name+".json")
	var kept struct {
		Stamp  string         `json:"stamp"`
		Report sandbox.Report `json:"report"`
	}
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &kept) == nil && kept.Stamp == stamp && kept.Report.Available {
		return kept.Report
	}
	kept.Stamp, kept.Report = stamp, runProbe(ctx, row, data, exe, o)
	if b, err := json.Marshal(kept); err == nil && kept.Report.Available {
		// A lost or torn file only means that the next start probes again.
		_ = os.WriteFile(file, b, 0o600)
	}
	return kept.Report
}

func runProbe(ctx context.Context, row driverRow, data, exe string, o driverOptions) sandbox.Report {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	return row.probe(ctx, filepath.Join(data, "sandboxes", row.name+"-probe"), exe, o)
}
