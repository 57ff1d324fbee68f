package output_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// TestMoreThanFourGiB: offsets are 64 bits everywhere. The data file is a hole
// with a few bytes around the limits of shorter numbers.
func TestMoreThanFourGiB(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	s, dir := open(t, output.Config{InlineBytes: 1})
	if err := os.Mkdir(filepath.Join(dir, "session"), 0o700); err != nil {
		t.Fatal(err)
	}
	records := output.Record(nil, 0, 0, false)
	records = output.Record(records, 5*gib-1, 5*gib-1, true)
	records = output.Record(records, 5*gib, 5*gib-1, false)
	disk{[]byte{}, output.Index(output.Sizes{Stdout: 7*gib - 1, Stderr: 1, KeptTotal: 7 * gib}, 3, false, records)}.write(t, dir)
	data := filepath.Join(dir, "session", "exec.data")
	if err := os.Truncate(data, 7*gib); err != nil {
		t.Skipf("SKIPPED, large outputs are NOT tested: no sparse files here: %v", err)
	}
	f, err := os.OpenFile(data, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{2*gib - 3, 4*gib - 3, 5*gib - 3} {
		if _, err := f.WriteAt([]byte("abcdef"), at); err != nil {
			t.Fatal(err)
		}
	}
	w := writer(t, s, "exec")
	if err := w.Append(7*gib, true, []byte("the end")); err != nil {
		t.Fatal(err)
	}
	r := reader(t, s, "exec", nil)
	for _, c := range []struct {
		which  output.Stream
		offset int64
		want   string
	}{
		{output.All, 2*gib - 3, "abcdef"},
		{output.All, 4*gib - 3, "abcdef"},
		{output.All, 5*gib - 3, "abcdef"},
		{output.All, 7*gib - 1, "\x00the end"},
		{output.Stdout, 4*gib - 3, "abcdef"},
		{output.Stdout, 5*gib - 3, "abdef"},
		{output.Stderr, 0, "cthe end"},
	} {
		got := make([]byte, len(c.want))
		if _, err := r.Stream(c.which).ReadAt(got, c.offset); err != nil || string(got) != c.want {
			t.Errorf("%s at %d is %q (%v), want %q", c.which, c.offset, got, err, c.want)
		}
	}
	pieces, _, err := r.Next(t.Context(), 5*gib-2, 3)
	if err != nil || len(pieces) != 3 || string(pieces[0].Data) != "b" || string(pieces[1].Data) != "c" || !pieces[1].Stderr || pieces[2].StreamOffset != 5*gib-1 {
		t.Errorf("Next before 5 GiB gives %+v (%v)", pieces, err)
	}
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header.Set("Range", "bytes=-9")
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(rec, req, "", time.Time{}, r.Stream(output.All))
	if got, _ := io.ReadAll(rec.Body); !bytes.Equal(got, []byte("\x00\x00the end")) || rec.Header().Get("Content-Range") != "bytes 7516192766-7516192774/7516192775" {
		t.Errorf("the last 9 bytes are %q, %s", got, rec.Header().Get("Content-Range"))
	}
}
