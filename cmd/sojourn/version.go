package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

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
