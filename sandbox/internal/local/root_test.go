package local

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
)

func TestImageEnvironmentNeverReplacesOurs(t *testing.T) {
	t.Parallel()
	c := newCell(t.TempDir(), "s", 1)
	c.Record.Token = "secret"
	got := c.KeeperEnv("PATH=/opt/bin", "GOPATH=/go", "GOPATH=/go2", "HOME=/root", "SOJOURN_KEEPER_TOKEN=x",
		"SOJOURN_ANY=x", "broken", "=x", "NUL=a\x00b", "EMPTY=", "LANG=de")
	want := []string{
		"PATH=/opt/bin", "HOME=/home/agent", "TERM=dumb", "LANG=de",
		"SOJOURN_KEEPER_TOKEN=secret", "GOPATH=/go2", "EMPTY=",
	}
	if !slices.Equal(got, want) {
		t.Errorf("KeeperEnv = %q\nwant %q", got, want)
	}
}

// oneImage is an image that is always there.
type oneImage struct{ sandbox.Image }

func (i oneImage) Ensure(context.Context, string) (sandbox.Image, error) { return i.Image, nil }

func TestCellKeepsItsImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, err := Open("test", dir, sandbox.Capabilities{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c := newCell(m.root, "s", 1)
	if err := beginCell(c); err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{Session: "s", Epoch: 1, Image: "any"}
	if _, err := NewRoots(dir, nil).Find(t.Context(), c, spec); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Find without images = %v, want ErrUnsupported", err)
	}
	root, err := NewRoots(dir, oneImage{sandbox.Image{Digest: "sha256:1", Dir: "/image"}}).Find(t.Context(), c, spec)
	if err != nil || root.Dir != "/image" || !root.IsImage() || root.Binds != nil {
		t.Errorf("Find = %+v, %v", root, err)
	}
	if used, err := m.ImagesInUse(); err != nil || len(used) != 1 || !used["sha256:1"] {
		t.Errorf("ImagesInUse = %v, %v", used, err)
	}
	if err := c.remove(); err != nil {
		t.Fatal(err)
	}
	if used, err := m.ImagesInUse(); err != nil || len(used) != 0 {
		t.Errorf("ImagesInUse without cells = %v, %v", used, err)
	}
}
