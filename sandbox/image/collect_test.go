package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const commandMake = "image-make"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == commandMake {
		os.Exit(makeAndSay(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// makeAndSay makes an image and says how far it is, for whoever is going to kill it.
func makeAndSay(dir, path string) int {
	s, err := Open(Config{Dir: dir, Names: map[string]string{"x": "rootfs:" + path}, Progress: func(p Progress) {
		fmt.Println(p.Stage, p.Bytes)
	}})
	if err == nil {
		_, err = s.Ensure(context.Background(), "x")
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func TestKilledServerLeavesNothingHalfMade(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("content ", 4<<10)
	var files []file
	for i := range 2000 {
		files = append(files, file{name: fmt.Sprintf("d%d/f%d", i%50, i), body: body + fmt.Sprint(i)})
	}
	path := onDisk(t, "x.tar", archive(t, files...))
	dir := filepath.Join(t.TempDir(), "images")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{string(StageUnpack) + " 0", string(StageUnpack), string(StageVerify), string(StageReady)} {
		cmd := exec.CommandContext(t.Context(), self, commandMake, dir, path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), when) {
				if seen++; seen > 1 || when != string(StageUnpack) {
					break // in the midst of it
				}
			}
		}
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		if when == string(StageUnpack) {
			if left, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")); len(left) == 0 && !hasImage(t, dir) {
				t.Errorf("nothing was being made when the server was killed at %q", when)
			}
		}
		for _, e := range glob(t, dir, ownedPrefix+"*", plainPrefix+"*") {
			if _, err := os.Stat(filepath.Join(e, recordName)); err != nil {
				t.Errorf("after a kill at %q there is an image without a record: %v", when, err)
			}
		}
	}
	s := newStore(t, Config{Dir: dir, Names: map[string]string{"x": "rootfs:" + path}})
	noDrafts(t, dir)
	image, err := s.Ensure(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), image.Digest); err != nil {
		t.Errorf("Verify = %v", err)
	}
	if got := len(glob(t, image.Dir, "d*/f*")); got != len(files) {
		t.Errorf("%d of %d files", got, len(files))
	}
}

func glob(t testing.TB, dir string, patterns ...string) (all []string) {
	t.Helper()
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func hasImage(t testing.TB, dir string) bool {
	return len(glob(t, dir, ownedPrefix+"*", plainPrefix+"*")) > 0
}

// fill makes images of some size in a store: "0", "1" and so on, the first used first.
func fill(t testing.TB, n int, cfg Config) (*Store, []string) {
	t.Helper()
	cfg.Names = make(map[string]string)
	for i := range n {
		cfg.Names[fmt.Sprint(i)] = "rootfs:" + onDisk(t, "x.tar", archive(t, file{name: "a", body: fmt.Sprint(i) + strings.Repeat("x", 10_000)}))
	}
	s := newStore(t, cfg)
	var digests []string
	for i := range n {
		image, err := s.Ensure(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, image.Digest)
		used := time.Now().Add(time.Duration(i-n) * time.Second)
		if err := os.Chtimes(filepath.Join(s.entryDir(image.Digest), recordName), used, used); err != nil {
			t.Fatal(err)
		}
	}
	return s, digests
}

// kept says which of the images are there, by their numbers.
func kept(t testing.TB, s *Store, digests []string) string {
	t.Helper()
	var there []string
	for i, d := range digests {
		if _, err := os.Lstat(s.entryDir(d)); err == nil {
			there = append(there, fmt.Sprint(i))
		}
	}
	return strings.Join(there, " ")
}

func TestUnusedImagesMakeRoom(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(graceTime + time.Minute)
	for name, test := range map[string]struct {
		cfg  Config
		when time.Time
		used []int
		want string
	}{
		"the longest unused go first": {Config{CacheBytes: 21_000}, later, nil, "2 3"},
		"nothing goes that fits":      {Config{CacheBytes: 50_000}, later, nil, "0 1 2 3"},
		"nothing goes without bound":  {Config{CacheBytes: -1}, later, nil, "0 1 2 3"},
		"nothing that was just used":  {Config{CacheBytes: 1}, time.Now(), nil, "0 1 2 3"},
		"what is in use stays":        {Config{CacheBytes: 21_000}, later, []int{0}, "0 3"},
		"all are in use":              {Config{CacheBytes: 1}, later, []int{0, 1, 2, 3}, "0 1 2 3"},
		"what is pinned stays":        {Config{CacheBytes: 1, Pinned: []string{"1"}}, later, nil, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var digests []string
			test.cfg.InUse = func() (map[string]bool, error) {
				used := make(map[string]bool)
				for _, i := range test.used {
					if i < len(digests) {
						used[digests[i]] = true
					}
				}
				return used, nil
			}
			var s *Store
			s, digests = fill(t, 4, test.cfg)
			if err := s.collect(t.Context(), test.when); err != nil {
				t.Fatal(err)
			}
			if got := kept(t, s, digests); got != test.want {
				t.Errorf("kept %q, want %q", got, test.want)
			}
			noDrafts(t, s.cfg.Dir)
			if image, err := s.Ensure(t.Context(), "0"); err != nil || s.Verify(t.Context(), image.Digest) != nil {
				t.Errorf("Ensure of the first = %v", err)
			}
		})
	}
}

func TestNothingGoesWhenUseIsUnknown(t *testing.T) {
	t.Parallel()
	lost := false
	s, digests := fill(t, 2, Config{CacheBytes: 1, InUse: func() (map[string]bool, error) {
		if lost {
			return nil, errors.New("cannot tell")
		}
		return nil, nil
	}})
	lost = true
	if err := s.collect(t.Context(), time.Now().Add(time.Hour)); err == nil {
		t.Error("no error")
	}
	if got := kept(t, s, digests); got != "0 1" {
		t.Errorf("kept %q", got)
	}
}

func TestServersKeepEachOthersImages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "images")
	s, digests := fill(t, 2, Config{Dir: dir, Owner: "first"})
	other := newStore(t, Config{Dir: dir, Owner: "second", CacheBytes: 1})
	later := time.Now().Add(time.Hour)
	if err := other.collect(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if got := kept(t, s, digests); got != "0 1" {
		t.Errorf("kept %q of what the first server uses", got)
	}
	// The first server finds that none of its sandboxes has them any more.
	if err := s.collect(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if err := other.collect(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if got := kept(t, s, digests); got != "" {
		t.Errorf("kept %q of what nobody uses", got)
	}
}

func TestChangedTreeIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(root string) error{
		"file added":          func(root string) error { return os.WriteFile(root+"/new", nil, 0o644) },
		"file removed":        func(root string) error { return os.Remove(root + "/a") },
		"file grown":          func(root string) error { return os.WriteFile(root+"/a", make([]byte, 20_000), 0o644) },
		"permissions changed": func(root string) error { return os.Chmod(root+"/a", 0o4755) },
		"record gone":         func(root string) error { return os.Remove(filepath.Join(root, "..", recordName)) },
		"record of another": func(root string) error {
			return os.WriteFile(filepath.Join(root, "..", recordName), []byte("{}"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, digests := fill(t, 1, Config{})
			root := filepath.Join(s.entryDir(digests[0]), treeName)
			before := listing(t, root)
			if err := change(root); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "..", verifiedName), []byte("an earlier boot"), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg := s.cfg
			s.Close()
			again := newStore(t, cfg)
			image, err := again.Ensure(t.Context(), "0")
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(t, image.Dir); got != before {
				t.Errorf("it is %.100s", got)
			}
			if err := again.Verify(t.Context(), image.Digest); err != nil {
				t.Errorf("Verify = %v", err)
			}
			if err := again.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := glob(t, cfg.Dir, damagedName+"*"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestVerifyReadsEverything(t *testing.T) {
	t.Parallel()
	s, digests := fill(t, 1, Config{})
	path := filepath.Join(s.entryDir(digests[0]), treeName, "a")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[5000] ^= 1
	if err := errors.Join(os.WriteFile(path, b, 0o644), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), digests[0]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Verify of a changed byte = %v, want ErrCorrupt", err)
	}
	image, err := s.Ensure(t.Context(), "0")
	if err != nil || s.Verify(t.Context(), image.Digest) != nil {
		t.Errorf("Ensure after that = %v, and it is not as it was", err)
	}
	if err := s.Verify(t.Context(), "sha256:nonsense"); err == nil {
		t.Error("Verify of nonsense succeeded")
	}
}
