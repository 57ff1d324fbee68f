package keeper

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	for stat, want := range map[string]task{
		"7 (a) S 1 2 3 0 -1":      {7, 1, 2, 3, 'S', 0},
		"7 (a) R 9 9) T 4 5 6 0":  {7, 4, 5, 6, 'T', 0},
		"7 () Z 0 0 0":            {7, 0, 0, 0, 'Z', 0},
		"7 (x\n) y) t 1 -1 -1 -1": {7, 1, -1, -1, 't', 0},
	} {
		if got, ok := parseStat(7, []byte(stat)); !ok || got != want {
			t.Errorf("%q = %+v, %v; want %+v", stat, got, ok, want)
		}
	}
	for _, bad := range []string{"", "7 (a", "7 (a) S", "7 (a) S x y z", "7 (a) RUN 1 2 3"} {
		if got, ok := parseStat(7, []byte(bad)); ok {
			t.Errorf("%q = %+v", bad, got)
		}
	}
	self, ok := readTask(os.Getpid())
	if !ok || self.parent != os.Getppid() {
		t.Errorf("this process is %+v, its parent %d", self, os.Getppid())
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) S 1 2 3 0 -1"))
	f.Add([]byte(")))"))
	f.Fuzz(func(_ *testing.T, data []byte) { parseStat(1, data) })
}

func TestTreeAndGenerations(t *testing.T) {
	all := []task{
		{1, 0, 1, 1, 'S', 0},     // init
		{2, 1, 2, 2, 'S', 0},     // the keeper itself
		{10, 2, 10, 10, 'S', 0},  // the process
		{12, 11, 12, 10, 'S', 0}, // a job of its shell
		{11, 10, 10, 10, 'S', 0},
		{13, 1, 13, 10, 'S', 0},  // orphaned, in the session
		{14, 13, 14, 14, 'S', 0}, // left the session, child of the orphan
		{15, 10, 10, 10, 'Z', 0}, // ended
		{20, 2, 20, 20, 'S', 0},  // another process
		{21, 1, 21, 21, 'S', 0},  // unrelated
	}
	var got []int
	for _, t := range treeOf(all, roots{pid: 10, self: 2}) {
		got = append(got, t.pid)
	}
	slices.Sort(got)
	if want := []int{10, 11, 12, 13, 14}; !slices.Equal(got, want) {
		t.Errorf("tree = %v, want %v", got, want)
	}
	known := kin{13: 0, 14: 0, 30: 7, 31: 7}
	all = append(all,
		task{22, 1, 22, 14, 'S', 0}, // in a session that 14 opened
		task{30, 1, 30, 30, 'S', 8}, // has the number of one that was known
		task{23, 1, 23, 30, 'S', 0}, // and this is in its session
		task{24, 1, 24, 31, 'S', 0}, // in a session whose leader was known and is gone
		task{25, 1, 25, 20, 'S', 0}, // of the process beside it
	)
	got = nil
	for _, t := range treeOf(all, roots{pid: -1, known: known, others: map[int]bool{20: true}, self: 2}) {
		got = append(got, t.pid)
	}
	slices.Sort(got)
	if want := []int{13, 14, 22, 24}; !slices.Equal(got, want) {
		t.Errorf("what is known of the tree = %v, want %v", got, want)
	}
	known.learn(all, []task{{22, 1, 22, 14, 'S', 5}})
	if want := (kin{13: 0, 14: 0, 22: 5, 30: 7, 31: 7}); !maps.Equal(known, want) {
		t.Errorf("learned %v, want %v", known, want)
	}
	var depths [][]int
	for _, g := range generations(all[2:6]) {
		var pids []int
		for _, t := range g {
			pids = append(pids, t.pid)
		}
		depths = append(depths, pids)
	}
	if want := [][]int{{10, 13}, {11}, {12}}; !reflect.DeepEqual(depths, want) {
		t.Errorf("generations = %v, want %v", depths, want)
	}
	generations([]task{{1, 2, 0, 0, 'S', 0}, {2, 1, 0, 0, 'S', 0}}) // a loop must end
}
