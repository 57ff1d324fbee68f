package gvisor_test

import (
	"os"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if gvisor.IsReexec(os.Args) {
		gvisor.Main()
	}
	sandboxtest.Main(open)
	os.Exit(m.Run())
}

func open(dir string) (sandbox.Driver, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return gvisor.Open(gvisor.Config{Dir: dir, Executable: self})
}

func TestSuite(t *testing.T) { sandboxtest.Run(t, sandboxtest.Suite{Open: open}) }
