package namespace_test

import (
	"os"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
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
