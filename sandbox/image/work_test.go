package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestWhiteoutsDoNoWorkWithoutEnd: each of them may go through all that its layer has made.
func TestWhiteoutsDoNoWorkWithoutEnd(t *testing.T) {
	t.Parallel()
	const files = 60
	var body []file
	for i := range files {
		body = append(body, file{name: fmt.Sprintf("d/f%d", i)})
	}
	for _, hides := range []string{"d/.wh..wh..opq", ".wh.d"} {
		once := append(body[:files:files], file{name: hides})
		often := body[:files:files]
		for range files {
			often = append(often, file{name: hides})
		}
		limits := Limits{Bytes: 1 << 20, Entries: 2*files + 20}
		if _, err := unpacked(t, limits, false, archive(t, file{name: "base"}), archive(t, once...)); err != nil {
			t.Errorf("one %s: %v", hides, err)
		}
		if _, err := unpacked(t, limits, false, archive(t, file{name: "base"}), archive(t, often...)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d of %s: %v, want ErrTooLarge", files, hides, err)
		}
	}
}

// TestNamesTakeBoundedMemory: an archive of long names is small, the names are not.
func TestNamesTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("n", 200)+"/", 10)
	for name, next := range map[string]func(i int) file{
		"directories": func(i int) file { return dir(fmt.Sprintf("%s%d", long, i)) },
		"files":       func(i int) file { return file{name: fmt.Sprintf("%s%d", long, i), kind: tar.TypeReg} },
	} {
		tr, err := newTree(t.TempDir(), t.TempDir()+"/trash", false, wide)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tr.close)
		if err := tr.nextLayer(); err != nil {
			t.Fatal(err)
		}
		var files []file
		for i := range 20 {
			files = append(files, next(i))
		}
		tr.noted = maxNoted - 100<<10
		if err := tr.extract(t.Context(), bytes.NewReader(archive(t, files...)), true); err != nil {
			t.Errorf("%s within the bound: %v", name, err)
		}
		tr.noted = maxNoted - 10<<10
		for i := range files {
			files[i] = next(100 + i)
		}
		if err := tr.extract(t.Context(), bytes.NewReader(archive(t, files...)), true); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s over it: %v, want ErrTooLarge", name, err)
		}
	}
}

// TestStrangeRegistriesHaveAWayOfTheirOwn: sessions choose them, and they choose what
// they point to.
func TestStrangeRegistriesHaveAWayOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := serve(t, nil)
	ref := r.push(t, "team/base", makeImage(t, nil, here(t), archive(t, file{name: "a"})))
	closed := errors.New("this way is closed")
	strange := roundTrip(func(*http.Request) (*http.Response, error) { return nil, closed })
	for name, c := range map[string]struct {
		cfg  Config
		want error
	}{
		"nobody spoke of it": {Config{Allow: []string{"*"}}, closed},
		"a rule":             {Config{Allow: []string{"*", r.host + "/other/*"}}, nil},
		"a name":             {Config{Allow: []string{"*"}, Names: map[string]string{"x": r.host + "/x"}}, nil},
		"a mirror":           {Config{Allow: []string{"*"}, Mirrors: map[string][]string{"docker.io": {r.host}}}, nil},
		"without TLS":        {Config{Allow: []string{"*"}, Insecure: []string{r.host}}, nil},
	} {
		c.cfg.Strange = strange
		if _, err := newStore(t, c.cfg).Ensure(t.Context(), ref); !errors.Is(err, c.want) {
			t.Errorf("%s: Ensure = %v, want %v", name, err, c.want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
