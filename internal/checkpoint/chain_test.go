package checkpoint

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// editor makes random changes to a tree, as an agent would.
type editor struct {
	t   testing.TB
	dir string
	r   *rand.Rand
	n   int
}

func (e *editor) pick(want func(fs.DirEntry) bool) string {
	var found []string
	filepath.WalkDir(e.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != e.dir && want(d) {
			found = append(found, path)
		}
		return nil
	})
	if len(found) == 0 {
		return ""
	}
	return found[e.r.IntN(len(found))]
}

func isFile(d fs.DirEntry) bool { return d.Type().IsRegular() }
func isDir(d fs.DirEntry) bool  { return d.IsDir() }
func isAny(fs.DirEntry) bool    { return true }

func (e *editor) fresh() string {
	e.n++
	in := e.dir
	if d := e.pick(isDir); d != "" && e.r.IntN(3) > 0 {
		in = d
	}
	return filepath.Join(in, fmt.Sprintf("f%d_%d", e.n, e.r.IntN(1000)))
}

// edit makes one change. Changes that do not fit the tree are skipped.
func (e *editor) edit() {
	file := e.pick(isFile)
	switch e.r.IntN(16) {
	case 0, 1, 2:
		os.WriteFile(e.fresh(), randomBytes(e.r.Uint64(), e.r.IntN(9000)), 0o644)
	case 3:
		os.Mkdir(e.fresh(), 0o755)
	case 4, 5: // append
		if f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0); err == nil {
			f.Write(randomBytes(e.r.Uint64(), 1+e.r.IntN(100)))
			f.Close()
		}
	case 6: // overwrite in place
		if f, err := os.OpenFile(file, os.O_WRONLY, 0); err == nil {
			f.WriteAt([]byte("XX"), e.r.Int64N(100))
			f.Close()
		}
	case 7: // change behind the mtime's back
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil {
			os.WriteFile(file, randomBytes(e.r.Uint64(), int(st.Size)), 0o644)
			setMTime(e.t, file, st.Mtim.Sec, st.Mtim.Nsec)
		}
	case 8:
		os.RemoveAll(e.pick(isAny))
	case 9:
		os.Rename(e.pick(isAny), e.fresh())
	case 10:
		os.Chmod(e.pick(isFile), os.FileMode(0o600|e.r.IntN(0o200)))
	case 11:
		os.Symlink(fmt.Sprint("target", e.n), e.fresh())
	case 12:
		os.Link(file, e.fresh())
	case 13: // a long file, or an edit inside one
		big := filepath.Join(e.dir, "big")
		if b, err := os.ReadFile(big); err == nil && len(b) > 1<<20 {
			at := e.r.IntN(len(b) - 100)
			os.WriteFile(big, append(b[:at:at], append([]byte("inserted"), b[at:]...)...), 0o644)
		} else {
			os.RemoveAll(big)
			os.WriteFile(big, randomBytes(e.r.Uint64(), 3<<20), 0o644)
		}
	case 14: // a directory becomes a file, or the other way round
		if p := e.pick(isAny); p != "" {
			fi, err := os.Lstat(p)
			os.RemoveAll(p)
			if err == nil && fi.IsDir() {
				os.WriteFile(p, []byte("was a directory"), 0o644)
			} else {
				os.Mkdir(p, 0o755)
			}
		}
	case 15:
		if file != "" {
			unix.Setxattr(file, "user.n", []byte(fmt.Sprint(e.n)), 0)
			os.Truncate(file, e.r.Int64N(200_000))
		}
	}
}

// TestChainOfCapturesLosesNothing is CP-01: every capture builds on the state
// that was restored last, and edits, deletions included, are never lost.
func TestChainOfCapturesLosesNothing(t *testing.T) {
	seeds := 2
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cache, err := OpenCache(t.TempDir(), 0)
			must(t, err)
			s := New(localBucket(t), Config{Workers: 2})
			dir, home := t.TempDir(), t.TempDir()
			e := &editor{t: t, dir: dir, r: rand.New(rand.NewPCG(uint64(seed), 1))}
			for range 60 {
				e.edit()
			}
			var parent *Ref
			var refs []Ref
			var wants []map[string]props
			for step := range 20 {
				for range 1 + e.r.IntN(12) {
					e.edit()
				}
				log := filepath.Join(home, ".agent/sessions/1.jsonl")
				must(t, os.MkdirAll(filepath.Dir(log), 0o755))
				f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				must(t, err)
				f.Write(randomBytes(uint64(step), 5000))
				f.Close()
				want, wantHome := look(t, dir), look(t, home)

				spec := Spec{Workspace: dir, Home: home, State: []string{".agent/**"}, Parent: parent, Cache: cache}
				if step%5 == 4 {
					spec.Cache = nil // whatever is believed, the result must not differ
				}
				c, err := s.Capture(t.Context(), spec)
				must(t, err)
				if !c.Workspace.Exact || !c.Conversation.Exact {
					t.Fatalf("step %d: %+v %+v", step, c.Workspace, c.Conversation)
				}
				full, err := New(localBucket(t), Config{}).Capture(t.Context(), Spec{Workspace: dir, Home: home, State: spec.State})
				must(t, err)
				if full.Workspace.Digest != c.Workspace.Digest || full.Conversation.Digest != c.Conversation.Digest {
					t.Fatalf("step %d: incremental and full capture have different digests", step)
				}
				must(t, s.Verify(t.Context(), c.Ref))
				if parent != nil {
					must(t, s.VerifyNew(t.Context(), c.Ref, *parent))
				}

				dir, home = t.TempDir(), t.TempDir()
				e.dir = dir
				_, err = s.Restore(t.Context(), c.Ref, Target{Workspace: dir, Home: home, Cache: cache})
				must(t, err)
				mustEqualTrees(t, want, look(t, dir))
				got := look(t, home)
				got["."] = wantHome["."] // the home directory itself is not captured
				mustEqualTrees(t, wantHome, got)
				parent = &c.Ref
				refs, wants = append(refs, c.Ref), append(wants, want)
			}
			// Earlier checkpoints are what they were.
			for _, i := range []int{0, 7, 13} {
				old := t.TempDir()
				_, err := s.Restore(t.Context(), refs[i], Target{Workspace: old})
				must(t, err)
				mustEqualTrees(t, wants[i], look(t, old))
			}
		})
	}
}

// sourceTree makes a tree like a small project: n files in directories of 25.
func sourceTree(t testing.TB, dir string, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("func return if err nil package import string range context error type struct map for int64 byte")
	for i := range n {
		d := filepath.Join(dir, fmt.Sprintf("pkg%d/sub%d", i/250, i/25))
		if i%25 == 0 {
			must(t, os.MkdirAll(d, 0o755))
		}
		var b strings.Builder
		size := 200 + int(r.ExpFloat64()*8000)
		for b.Len() < size {
			fmt.Fprintf(&b, "%s %s%d ", words[r.IntN(len(words))], words[r.IntN(len(words))], r.IntN(400))
			if r.IntN(8) == 0 {
				b.WriteByte('\n')
			}
		}
		must(t, os.WriteFile(filepath.Join(d, fmt.Sprintf("file%d.go", i)), []byte(b.String()), 0o644))
	}
}

func TestIncrementalCaptureStoresOnlyWhatChanged(t *testing.T) {
	s := New(localBucket(t), Config{})
	cache, err := OpenCache(t.TempDir(), 0)
	must(t, err)
	dir := t.TempDir()
	sourceTree(t, dir, 2500)
	must(t, os.WriteFile(filepath.Join(dir, "big"), randomBytes(1, 20<<20), 0o644))
	waitOutSlack()
	full, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache})
	must(t, err)

	same, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &full.Ref})
	must(t, err)
	if same.ReadFiles != 0 || same.Stored != same.Ref.Bytes {
		t.Errorf("nothing changed: read %d files and stored %d bytes besides the root, want none", same.ReadFiles, same.Stored-same.Ref.Bytes)
	}
	for i := range 10 {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("pkg%d/sub%d/file%d.go", i, i*10, i*250)), os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		f.WriteString("// one more line\n")
		f.Close()
	}
	ten, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &full.Ref})
	must(t, err)
	if ten.ReadFiles != 10 || ten.Stored > 160<<10 {
		t.Errorf("10 files changed: read %d files and stored %d bytes, want 10 and at most 160 KiB", ten.ReadFiles, ten.Stored)
	}
	// Without a cache all is read, and as little is stored.
	blind, err := s.Capture(t.Context(), Spec{Workspace: dir, Parent: &ten.Ref})
	must(t, err)
	if blind.Stored != blind.Ref.Bytes || blind.Workspace.Digest != ten.Workspace.Digest {
		t.Errorf("without cache: stored %d bytes besides the root, want none", blind.Stored-blind.Ref.Bytes)
	}
	f, err := os.OpenFile(filepath.Join(dir, "big"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(randomBytes(2, 1<<20), 9<<20)
	must(t, err, f.Close())
	edit, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &ten.Ref})
	must(t, err)
	if edit.Stored > 2500<<10 {
		t.Errorf("1 MiB overwritten in a long file: stored %d bytes, want at most 2.5 MB", edit.Stored)
	}
	// A renamed directory is not stored again.
	must(t, os.Rename(filepath.Join(dir, "pkg3"), filepath.Join(dir, "moved")))
	moved, err := s.Capture(t.Context(), Spec{Workspace: dir, Cache: cache, Parent: &edit.Ref})
	must(t, err)
	if moved.Stored > 160<<10 {
		t.Errorf("directory of 250 files renamed: stored %d bytes, want at most 160 KiB", moved.Stored)
	}
}

func TestConversationThatGrowsStoresItsTail(t *testing.T) {
	s := New(localBucket(t), Config{})
	home := t.TempDir()
	log := filepath.Join(home, "log.jsonl")
	must(t, os.WriteFile(log, randomBytes(3, 20<<20), 0o600))
	spec := Spec{Home: home, State: []string{"*.jsonl"}}
	one, err := s.Capture(t.Context(), spec)
	must(t, err)
	f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	f.Write(randomBytes(4, 10_000))
	f.Close()
	spec.Parent = &one.Ref
	two, err := s.Capture(t.Context(), spec)
	must(t, err)
	if two.Stored > 300<<10 {
		t.Errorf("10 KB appended: stored %d bytes, want at most 300 KiB", two.Stored)
	}
	dst := t.TempDir()
	_, err = s.Restore(t.Context(), two.Ref, Target{Home: dst})
	must(t, err)
	want, got := look(t, home), look(t, dst)
	got["."] = want["."]
	mustEqualTrees(t, want, got)
}

// A line of checkpoints has a bounded number of packs; the one after the last
// begins anew and shares nothing.
func TestLongLinesOfCheckpointsBeginAnew(t *testing.T) {
	s := New(localBucket(t), Config{})
	src := t.TempDir()
	smallTree(t, src)
	c, err := s.Capture(t.Context(), Spec{Workspace: src})
	must(t, err)
	root, err := s.Read(t.Context(), c.Ref)
	must(t, err)
	root.nextPack = maxPacks - 10
	old, err := s.putRoot(t.Context(), root.encode())
	must(t, err)
	next, err := s.Capture(t.Context(), Spec{Workspace: src, Parent: &old})
	must(t, err, s.Verify(t.Context(), next.Ref))
	got, err := s.Read(t.Context(), next.Ref)
	must(t, err)
	if got.Parent != old.ID || got.nextPack != 1 || !next.Packs[0].New || next.Workspace.Digest != c.Workspace.Digest {
		t.Errorf("after the last pack: parent %s, next pack %d, packs %v", got.Parent, got.nextPack, next.Packs)
	}
}
