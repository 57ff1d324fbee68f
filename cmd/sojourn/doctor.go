package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// machineReport is what doctor finds out.
type machineReport struct {
	Version string           `json:"version"`
	Kernel  string           `json:"kernel"`
	Arch    string           `json:"arch"`
	Root    bool             `json:"root"`
	Auto    string           `json:"auto"` // the driver that serve would take; "" for none
	Drivers []sandbox.Report `json:"drivers"`
}

// doctor tries every sandbox driver by running a process in a sandbox, and says
// what works and what to do about what does not. It fails when nothing works.
func doctor(ctx context.Context, io stdio, args []string) error {
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	fs.SetOutput(io.err)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := fs.Parse(args); err != nil {
		return asUsage(err)
	}
	if fs.NArg() > 0 {
		return usagef("doctor takes no arguments")
	}
	if err := becomeStatic(ctx, io); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sojourn-doctor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	exe, err := keepExecutable(dir)
	if err != nil {
		return err
	}
	r := machineReport{Version: buildVersion(), Kernel: kernel(), Arch: runtime.GOARCH, Root: os.Geteuid() == 0}
	for _, row := range drivers {
		report := runProbe(ctx, row, dir, exe, driverOptions{})
		report.Driver = row.name
		if report.Available && r.Auto == "" && !row.onRequest {
			r.Auto = row.name
		}
		r.Drivers = append(r.Drivers, report)
	}
	if *asJSON {
		err = json.NewEncoder(io.out).Encode(r)
	} else {
		err = r.print(io)
	}
	if err == nil && r.Auto == "" {
		return &exitError{exitFailure, fmt.Errorf("no sandbox driver works here")}
	}
	return err
}

func (r machineReport) print(io stdio) error {
	who := "a plain user"
	if r.Root {
		who = "root"
	}
	fmt.Fprintf(io.out, "Sojourn %s on %s, %s, as %s\n\n", r.Version, r.Kernel, r.Arch, who)
	for _, d := range r.Drivers {
		mark := "works"
		if !d.Available {
			mark = "does not work"
		}
		fmt.Fprintf(io.out, "  %-10s %-14s %s\n", d.Driver, mark, d.Reason)
		if !d.Available && d.Fix != "" {
			fmt.Fprintf(io.out, "  %-10s %-14s %s\n", "", "", d.Fix)
		}
	}
	if r.Auto != "" {
		fmt.Fprintf(io.out, "\nserve takes %s. Sandboxes have no network and, so far, no limits of CPU, memory, disk or processes.\n", r.Auto)
	}
	return nil
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "an unknown kernel"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

// buildVersion is the version that the binary was built as: the module's, or the
// commit it was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}

func version(_ context.Context, io stdio, args []string) error {
	fs := flag.NewFlagSet("version", flag.ContinueOnError)
	fs.SetOutput(io.err)
	asJSON := fs.Bool("json", false, "print JSON")
	if err := fs.Parse(args); err != nil {
		return asUsage(err)
	}
	if fs.NArg() > 0 {
		return usagef("version takes no arguments")
	}
	if *asJSON {
		return json.NewEncoder(io.out).Encode(map[string]string{
			"version": buildVersion(), "os": runtime.GOOS, "arch": runtime.GOARCH, "go": runtime.Version(),
		})
	}
	fmt.Fprintf(io.out, "sojourn %s %s/%s %s\n", buildVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	return nil
}
