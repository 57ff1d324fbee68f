package keeper

import (
	"slices"
	"testing"
)

var testPlaces = Places{{"/workspace", "/srv/w"}, {"/home/agent", "/srv/h"}, {"/workspace/deep", "/other"}}

func TestPlacesMapPaths(t *testing.T) {
	for in, want := range map[string]string{
		"/workspace": "/srv/w", "/workspace/a/b": "/srv/w/a/b", "/workspaces": "/workspaces", "/home/agent/.x": "/srv/h/.x",
		"/workspace/deep/x": "/other/x", "/workspace/deeper": "/srv/w/deeper", "/workspace/../etc": "/etc", "/": "/", "/usr": "/usr",
	} {
		if got := testPlaces.Map(in); got != want {
			t.Errorf("Map(%s) = %s, want %s", in, got, want)
		}
	}
}

// TestPlacesAreMappedBack has a place around the directory that others lie in, as /tmp is
// when the server keeps its data there: a path that was mapped once is not mapped again.
func TestPlacesAreMappedBack(t *testing.T) {
	ps := append(Places{{"/tmp", "/tmp/data/t"}, {"/srv", "/tmp/data/w"}}, testPlaces...)
	for in, want := range map[string]string{
		"/srv/w": "/workspace", "/srv/w/a": "/workspace/a", "/tmp/data/w": "/srv", "/other": "/workspace/deep", "/": "/", "/srv/wide": "/srv/wide",
	} {
		if got := ps.inside(in); got != want {
			t.Errorf("inside(%s) = %s, want %s", in, got, want)
		}
	}
	if got := ps.Map(ps.inside("/tmp/data/w")); got != "/tmp/data/w" {
		t.Errorf("there and back = %s", got)
	}
}

func TestPlacesAreFoundInWordsAndVariables(t *testing.T) {
	argv := []string{"cat", "/workspace/in", "-o/workspace/x", "see /workspace", "/workspace/"}
	want := []string{"cat", "/srv/w/in", "-o/workspace/x", "see /workspace", "/srv/w/"}
	if got := testPlaces.words(argv); !slices.Equal(got, want) {
		t.Errorf("words = %q, want %q", got, want)
	}
	env := testPlaces.assignments([]string{"HOME=/home/agent", "PATH=/usr/bin:/workspace/bin:/bin", "X=", "Y=a=/workspace"})
	env = defaults(env, []string{"HOME=/root", "TMPDIR=/t"})
	if want := []string{"HOME=/srv/h", "PATH=/usr/bin:/srv/w/bin:/bin", "X=", "Y=a=/workspace", "TMPDIR=/t"}; !slices.Equal(env, want) {
		t.Errorf("environment = %q, want %q", env, want)
	}
}

func TestPlacesOfACommandLine(t *testing.T) {
	var ps Places
	if err := ps.Set("/workspace=/srv/w"); err != nil || len(ps) != 1 || ps[0] != (Place{"/workspace", "/srv/w"}) {
		t.Errorf("Set = %v, %v", ps, err)
	}
	for _, s := range []string{"", "/a", "a=/b", "/a=b", "/a=/", "/=/a", "/a/../b=/c"} {
		if err := ps.Set(s); err == nil {
			t.Errorf("Set(%q) is accepted", s)
		}
	}
}

func TestBelowAreTheLivingDescendants(t *testing.T) {
	all := []task{{pid: 9, parent: 7}, {pid: 5, parent: 1}, {pid: 7, parent: 5}, {pid: 8, parent: 5, state: 'Z'}, {pid: 6, parent: 1}}
	var pids []int
	for _, x := range below(all, 5) {
		pids = append(pids, x.pid)
	}
	if !slices.Equal(pids, []int{9, 7}) {
		t.Errorf("below = %v, want 9 and 7", pids)
	}
}
