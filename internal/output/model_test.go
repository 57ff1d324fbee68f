package output_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// history is a random life of one output beside its model.
type history struct {
	dir    string
	config output.Config
	store  *output.Store
	w      *output.Writer
	live   *output.Reader // opened at some time, read at the end
	model  model
}

func (h *history) reopen(t *rapid.T) {
	s, err := output.Open(h.dir, h.config)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Writer("session", "exec")
	if err != nil {
		t.Fatal(err)
	}
	h.store, h.w = s, w
}

func (h *history) append(t *rapid.T) {
	n := rapid.SampledFrom([]int{1, 2, 3, 20, 100, 700, 3000}).Draw(t, "bytes")
	c := chunk{rapid.Bool().Draw(t, "stderr"), bytes.Repeat([]byte{byte(len(h.model.all))}, n)}
	again := rapid.IntRange(0, min(20, len(h.model.all))).Draw(t, "again")
	if again > 0 { // data that begins before the end must be skipped there
		c.data = append(bytes.Repeat([]byte{0xee}, again), c.data...)
	}
	if err := h.w.Append(int64(len(h.model.all)-again), c.stderr, c.data); err != nil {
		t.Fatal(err)
	}
	h.model.add(chunk{c.stderr, c.data[again:]})
}

// crash lets the writer go, and appends again what was not durable.
func (h *history) crash(t *rapid.T) {
	h.close(t)
	h.reopen(t)
	total := h.w.Total()
	for i := total; i < int64(len(h.model.all)); i++ {
		if err := h.w.Append(i, h.model.streams[i], h.model.all[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *history) close(t *rapid.T) {
	if h.live != nil {
		h.live.Close()
		h.live = nil
	}
	if err := h.w.Close(); err != nil {
		t.Fatal(err)
	}
	h.store.Close()
}

func (h *history) look(t *rapid.T) {
	r, err := h.store.Reader("session", "exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	if h.live == nil {
		h.live = r
	} else {
		defer r.Close()
	}
	h.compare(t, r)
}

// compare reads at random places in every way.
func (h *history) compare(t *rapid.T, r *output.Reader) {
	for _, which := range []output.Stream{output.Stdout, output.Stderr, output.All} {
		want, section := h.model.of(which), r.Stream(which)
		if section.Size() != int64(len(want)) {
			t.Fatalf("%s has %d bytes, want %d", which, section.Size(), len(want))
		}
		from := rapid.IntRange(0, len(want)).Draw(t, "from")
		got := make([]byte, rapid.IntRange(0, len(want)-from+5).Draw(t, "bytes"))
		n, err := section.ReadAt(got, int64(from))
		if n != min(len(got), len(want)-from) || len(got) > 0 && n < len(got) != (err == io.EOF) || !bytes.Equal(got[:n], want[from:from+n]) {
			t.Fatalf("%s at %d: %d of %d bytes, %v, or they differ; there are %d", which, from, n, len(got), err, len(want))
		}
	}
	if len(h.model.all) == 0 {
		return
	}
	from := rapid.IntRange(0, len(h.model.all)-1).Draw(t, "from")
	pieces, end, err := r.Next(context.Background(), int64(from), rapid.IntRange(1, 4000).Draw(t, "most"))
	if err != nil || end || len(pieces) == 0 {
		t.Fatalf("Next at %d of %d: %d pieces, %v, %v", from, len(h.model.all), len(pieces), end, err)
	}
	for _, p := range pieces {
		before := h.model.prefix(p.Offset)
		streamOffset := len(before.of(map[bool]output.Stream{false: output.Stdout, true: output.Stderr}[p.Stderr]))
		if p.Offset != int64(from) || p.StreamOffset != int64(streamOffset) || !bytes.Equal(p.Data, h.model.all[from:from+len(p.Data)]) {
			t.Fatalf("the piece at %d, %d of its stream, differs; want %d, %d", p.Offset, p.StreamOffset, from, streamOffset)
		}
		for i := range p.Data {
			if h.model.streams[from+i] != p.Stderr {
				t.Fatalf("byte %d is shown under the wrong stream", from+i)
			}
		}
		from += len(p.Data)
	}
}

// TestAnyHistoryReadsAsWritten: appends, repeats, crashes and looks in any order.
func TestAnyHistoryReadsAsWritten(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(top, "")
		if err != nil {
			t.Fatal(err)
		}
		h := &history{dir: filepath.Join(dir, "outputs"), config: output.Config{InlineBytes: rapid.SampledFrom([]int{1, 50, 1000, 1 << 20}).Draw(t, "inline"), MinFree: 1}}
		h.reopen(t)
		t.Repeat(map[string]func(*rapid.T){"append": h.append, "again": h.append, "crash": h.crash, "look": h.look})
		inline, err := h.w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if h.live != nil {
			h.compare(t, h.live)
		}
		h.close(t)
		s, err := output.Open(h.dir, h.config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r, err := s.Reader("session", "exec", inline)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		h.compare(t, r)
		if got, err := follow(context.Background(), r, 999); err != nil || !bytes.Equal(got.all, h.model.all) {
			t.Fatalf("Next gives %d bytes of %d (%v), or they differ", len(got.all), len(h.model.all), err)
		}
	})
}

// TestFollowersSeeEverythingWhileItIsWritten: readers that come at any time, at
// any speed, and are cut at any time, miss and repeat nothing.
func TestFollowersSeeEverythingWhileItIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ n, most int }{{60, 200}, {3000, 300}, {80, 40_000}} {
		all := chunks(5, c.n, c.most)
		want := modelOf(all)
		s, _ := open(t, output.Config{})
		w := writer(t, s, "exec")
		var followers sync.WaitGroup
		for i := range 4 {
			r := reader(t, s, "exec", nil)
			followers.Go(func() {
				got, err := followWithCuts(t.Context(), r, uint64(i), c.most)
				if err != nil || !bytes.Equal(got.all, want.all) || len(got.streams) != len(want.streams) {
					t.Errorf("follower %d: %d bytes of %d (%v), or they differ", i, len(got.all), len(want.all), err)
				}
			})
		}
		write(t, w, all)
		finish(t, w)
		followers.Wait()
	}
}

// followWithCuts is follow by a client that loses its call again and again.
func followWithCuts(ctx context.Context, r *output.Reader, seed uint64, most int) (*model, error) {
	random := rand.New(rand.NewPCG(seed, 2))
	m := &model{}
	for {
		cut, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(200))*time.Microsecond)
		pieces, end, err := r.Next(cut, int64(len(m.all)), 1+random.IntN(3*most))
		cancel()
		if err != nil && (ctx.Err() != nil || cut.Err() == nil) || end {
			return m, err
		}
		for _, p := range pieces {
			m.add(chunk{p.Stderr, p.Data})
		}
	}
}

// TestNextWaitsForBytesAndForTheEnd runs in a bubble: Next is woken and does not
// look by itself.
func TestNextWaitsForBytesAndForTheEnd(t *testing.T) {
	t.Parallel()
	s, _ := open(t, output.Config{})
	synctest.Test(t, func(t *testing.T) {
		w, err := s.Writer("session", "exec")
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		r, err := s.Reader("session", "exec", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		type answer struct {
			pieces []output.Piece
			end    bool
			err    error
		}
		answers := make(chan answer)
		next := func(ctx context.Context, offset int64) {
			go func() {
				pieces, end, err := r.Next(ctx, offset, 0)
				answers <- answer{pieces, end, err}
			}()
			synctest.Wait()
			select {
			case a := <-answers:
				t.Fatalf("Next at %d did not wait: %+v", offset, a)
			default:
			}
		}
		next(t.Context(), 0)
		if err := w.Append(0, true, []byte("ab")); err != nil {
			t.Fatal(err)
		}
		if a := <-answers; a.err != nil || a.end || len(a.pieces) != 1 || string(a.pieces[0].Data) != "ab" || !a.pieces[0].Stderr {
			t.Errorf("after an append Next says %+v", a)
		}
		next(t.Context(), 5) // a client that is ahead of a server that was killed
		for i := int64(2); i < 6; i++ {
			if err := w.Append(i, false, []byte{'0' + byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if a := <-answers; a.err != nil || len(a.pieces) != 1 || string(a.pieces[0].Data) != "5" || a.pieces[0].StreamOffset != 3 {
			t.Errorf("from offset 5 Next says %+v", a)
		}
		ctx, cancel := context.WithCancel(t.Context())
		next(ctx, 6)
		cancel()
		if a := <-answers; a.err != context.Canceled {
			t.Errorf("after a cancel Next says %+v", a)
		}
		next(t.Context(), 6)
		if _, err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		if a := <-answers; a.err != nil || !a.end || len(a.pieces) != 0 {
			t.Errorf("after the end Next says %+v", a)
		}
	})
}

// TestRangesOverHTTP: a stream serves http.ServeContent.
func TestRangesOverHTTP(t *testing.T) {
	t.Parallel()
	s, _ := open(t, output.Config{})
	all := chunks(6, 300, 1000)
	want := modelOf(all).of(output.Stderr)
	w := writer(t, s, "exec")
	write(t, w, all)
	r := reader(t, s, "exec", finish(t, w))
	random := rand.New(rand.NewPCG(6, 2))
	for range 50 {
		from := random.IntN(len(want))
		to := from + random.IntN(len(want)-from)
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Range", "bytes="+strconv.Itoa(from)+"-"+strconv.Itoa(to))
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(rec, req, "", time.Time{}, r.Stream(output.Stderr))
		if rec.Code != http.StatusPartialContent || !bytes.Equal(rec.Body.Bytes(), want[from:to+1]) {
			t.Fatalf("bytes %d to %d: status %d, %d bytes", from, to, rec.Code, rec.Body.Len())
		}
	}
}
