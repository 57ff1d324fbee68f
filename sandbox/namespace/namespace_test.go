package namespace_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
	"github.com/sojourn-dev/sojourn/sandbox/warm"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "namespace-init" {
		os.Exit(namespace.Init(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == commandCalls {
		os.Exit(tryCalls())
	}
	sandboxtest.Main(open)
	os.Exit(m.Run())
}

func open(dir string) (sandbox.Driver, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return namespace.Open(namespace.Config{Dir: dir, Executable: self})
}

func TestSuite(t *testing.T) { sandboxtest.Run(t, sandboxtest.Suite{Open: open}) }

// TestPool runs the suite on sandboxes that were made ahead.
func TestPool(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{Pool: true, Open: func(dir string) (sandbox.Driver, error) {
		d, err := open(dir)
		if err != nil {
			return nil, err
		}
		p := warm.Open(d, warm.Config{Min: 1, Max: 2})
		if err := p.(sandbox.Warmer).Warm(context.Background(), sandbox.Spec{}, 1); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		return p, nil
	}})
}

func TestProbe(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := namespace.Probe(t.Context(), namespace.Config{Dir: dir, Executable: self})
	if !r.Available || r.Driver != namespace.Name || r.Reason == "" {
		t.Errorf("Probe = %+v", r)
	}
	r = namespace.Probe(t.Context(), namespace.Config{Dir: dir, Executable: "/bin/sh"})
	if r.Available || !strings.Contains(r.Reason, "dynamically linked") || r.Fix == "" {
		t.Errorf("Probe with a dynamic executable = %+v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("Probe left %v, %v", left, err)
	}
}

// TestAsPlainUser runs the suite again without root.
func TestAsPlainUser(t *testing.T) { sandboxtest.RunAsPlainUser(t) }
