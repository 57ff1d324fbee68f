package checkpoint

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// splitAll cuts data fed in pieces of step bytes.
func splitAll(t testing.TB, c cutter, data []byte, step int) (chunks []chunk, joined []byte) {
	t.Helper()
	s := newSplitter(c, make([]byte, 0, 3<<20), func(c chunk, b []byte) error {
		if c.hole {
			b = make([]byte, c.len)
		} else if sha(b) != c.hash {
			t.Fatal("chunk with another digest")
		}
		chunks, joined = append(chunks, c), append(joined, b...)
		return nil
	})
	for b := data; len(b) > 0; {
		n := min(step, len(b))
		must(t, s.write(b[:n]))
		b = b[n:]
	}
	must(t, s.end())
	return chunks, joined
}

// The cuts are part of the format: other ones would share nothing with what is
// stored.
func TestCutsAreAsTheyWere(t *testing.T) {
	if got := fmt.Sprintf("%016x %016x %016x", gearTable()[0], gearTable()[1], gearTable()[255]); got != goldenGear {
		t.Errorf("gear table = %s, want %s", got, goldenGear)
	}
	for _, tt := range []struct {
		name string
		c    cutter
		want string
	}{{"workspace", workspaceCutter, goldenWorkspace}, {"conversation", conversationCutter, goldenConversation}} {
		chunks, _ := splitAll(t, tt.c, randomBytes(7, 3<<20), 4096)
		got := ""
		for _, c := range chunks {
			got += fmt.Sprint(c.len, " ")
		}
		if got != tt.want {
			t.Errorf("%s cuts = %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestCutsDependOnContentAlone(t *testing.T) {
	data := append(randomBytes(1, 2<<20), make([]byte, 300<<10)...)
	data = append(data, randomBytes(2, 1<<20+77)...)
	data = append(data, make([]byte, 70<<10+5)...)
	want, joined := splitAll(t, workspaceCutter, data, 4096)
	if !bytes.Equal(joined, data) {
		t.Fatal("chunks do not add up to the data")
	}
	holes := 0
	for _, c := range want {
		if c.hole {
			holes++
		} else if c.len > int64(workspaceCutter.max) {
			t.Errorf("chunk of %d bytes, want at most %d", c.len, workspaceCutter.max)
		}
	}
	if holes != 2 {
		t.Errorf("%d holes, want 2", holes)
	}
	for _, step := range []int{8192, 1 << 20, 1 << 30} {
		if got, _ := splitAll(t, workspaceCutter, data, step); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("other cuts when fed %d bytes at once", step)
		}
	}
	// The same content, once written out and once with holes.
	dir := t.TempDir()
	for i, name := range []string{"written", "sparse"} {
		f, err := os.Create(filepath.Join(dir, name))
		must(t, err)
		if i == 0 {
			_, err = f.Write(data)
			must(t, err)
		} else {
			_, err = f.WriteAt(data[:2<<20], 0)
			must(t, err)
			_, err = f.WriteAt(data[2<<20+300<<10:3<<20+300<<10+77], 2<<20+300<<10)
			must(t, err, f.Truncate(int64(len(data))))
		}
		must(t, f.Close())
	}
	s := New(localBucket(t), Config{})
	c, err := s.Capture(t.Context(), Spec{Workspace: dir})
	must(t, err)
	root, err := s.Read(t.Context(), c.Ref)
	must(t, err)
	var lists []string
	for e, err := range s.Entries(t.Context(), root, Workspace) {
		must(t, err)
		if e.Type == TypeFile {
			list := ""
			for _, c := range e.chunks {
				list += fmt.Sprintf("%x %d %v,", c.hash, c.len, c.hole)
			}
			lists = append(lists, list)
		}
	}
	if len(lists) != 2 || lists[0] != lists[1] {
		t.Errorf("a file with holes and one with zeros have different chunks")
	}
}

// An insertion early in a file leaves most later chunks as they were.
func TestCutsFindTheirPlaceAgain(t *testing.T) {
	data := randomBytes(3, 8<<20)
	before, _ := splitAll(t, workspaceCutter, data, 4096)
	after, _ := splitAll(t, workspaceCutter, append([]byte("inserted"), data...), 4096)
	known := make(map[Digest]bool)
	for _, c := range before {
		known[c.hash] = true
	}
	fresh := 0
	for _, c := range after {
		if !known[c.hash] {
			fresh++
		}
	}
	if fresh > 2 {
		t.Errorf("%d of %d chunks are new after 8 bytes were inserted, want at most 2", fresh, len(after))
	}
}

func TestComparePathsIsTheOrderOfAWalk(t *testing.T) {
	order := []string{"", "a", "a/b", "a/b/c", "a/c", "a-b", "a-b/x", "a.b", "aa", "b", "\xff"}
	for i, a := range order {
		for j, b := range order {
			if got := comparePaths(a, b); got != max(-1, min(1, i-j)) {
				t.Errorf("comparePaths(%q, %q) = %d", a, b, got)
			}
		}
	}
}

const (
	goldenGear         = "bd3e8854da9a8c37 8a591052c22f7cc6 d71e63674f2ee616"
	goldenWorkspace    = "267522 72148 590731 134359 302111 265716 286763 277060 504938 205330 239050 "
	goldenConversation = "80542 73051 88464 25465 29256 42892 80311 84382 61880 73404 127481 124583 66663 89385 17001 " +
		"77889 85331 78628 88540 56649 70985 66242 73357 83109 69005 104855 76531 67687 96066 53971 72098 75617 71856 " +
		"74619 78680 71818 117495 119574 85488 22924 80339 61615 "
)
