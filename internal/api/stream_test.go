package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
)

// tape is a log that a test appends to; each cursor reads it from its place.
type tape struct {
	mu     sync.Mutex
	events []tapeFrame
	grown  chan struct{}
	fail   error
	open   int // cursors
}

func newTape() *tape { return &tape{grown: make(chan struct{})} }

func (l *tape) append(texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range texts {
		data, _ := json.Marshal(map[string]string{"text": text})
		e := sojourn.Event{Seq: int64(len(l.events) + 1), Type: "t", Data: data}
		l.events = append(l.events, tapeFrame{e, new(sync.Once), new([]byte)})
	}
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *tape) broken(err error) {
	l.mu.Lock()
	l.fail = err
	l.mu.Unlock()
	l.append()
}

type tapeCursor struct {
	l     *tape
	after int64
}

func (l *tape) cursor(after int64) *tapeCursor {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	return &tapeCursor{l: l, after: after}
}

func (c *tapeCursor) Close() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.open--
}

func (c *tapeCursor) Next(ctx context.Context) ([]tapeFrame, error) {
	for {
		c.l.mu.Lock()
		rest, grown, fail := c.l.events[c.after:], c.l.grown, c.l.fail
		c.l.mu.Unlock()
		if fail != nil {
			return nil, fail
		}
		if len(rest) > 0 {
			rest = rest[:min(len(rest), 64)]
			c.after = rest[len(rest)-1].e.Seq
			return rest, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

type tapeFrame struct {
	e    sojourn.Event
	once *sync.Once
	form *[]byte
}

func (f tapeFrame) Encoded(_ string, encode func(sojourn.Event) []byte) []byte {
	f.once.Do(func() { *f.form = encode(f.e) })
	return *f.form
}

func encodeTape(e sojourn.Event) []byte { return EncodeFrame(e.Seq, string(e.Type), e.Data) }

// streamer adds an operation that streams l.
func streamer(l *tape) func(*Service) {
	return func(s *Service) {
		Register(s, Operation{ID: "stream", Method: "GET", Path: "/stream", Scope: "read"},
			func(ctx context.Context, _ *struct {
				After string `query:"after"`
			},
			) (*huma.StreamResponse, error) {
				after, err := After(HTTP(ctx))
				if err != nil {
					return nil, err
				}
				return &huma.StreamResponse{Body: func(hc huma.Context) {
					r, w := humago.Unwrap(hc)
					Stream(w, r, l.cursor(after), "test", encodeTape)
				}}, nil
			})
	}
}

// dial opens a stream.
func dial(t *testing.T, server *httptest.Server, key, lastID string) (*http.Response, *bufio.Reader) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Accept-Encoding", "gzip")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

// lines reads lines until one has the prefix, and returns all of them.
func lines(t *testing.T, r *bufio.Reader, prefix string) (all []string) {
	t.Helper()
	all, err := readTo(r, prefix)
	if err != nil {
		t.Fatalf("before %q: %v; so far %q", prefix, err, all)
	}
	return all
}

func readTo(r *bufio.Reader, prefix string) (all []string, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return all, err
		}
		all = append(all, strings.TrimSuffix(line, "\n"))
		if strings.HasPrefix(line, prefix) {
			return all, nil
		}
	}
}

func TestStreamIsMarkedAgainstBuffersAndTransforms(t *testing.T) {
	l := newTape()
	server, _ := serve(t, Config{}, streamer(l))
	res, r := dial(t, server, "admin", "")
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Content-Encoding": "",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	l.append("a")
	got := strings.Join(lines(t, r, "data:"), "\n")
	if want := ": open\n\nid: 1\nevent: t\ndata: {\"text\":\"a\"}"; got != want {
		t.Errorf("the stream begins with %q, want %q", got, want)
	}
}

func TestStreamHeadHasHeadersOnly(t *testing.T) {
	l := newTape()
	server, _ := serve(t, Config{}, streamer(l))
	a := call(t, server, "HEAD", "/stream", "")
	if a.status != 200 || a.header.Get("Content-Type") != "text/event-stream" || l.open != 0 {
		t.Errorf("HEAD: %d %v, %d cursors left", a.status, a.header, l.open)
	}
}

func TestHeartbeatsAreComments(t *testing.T) {
	l := newTape()
	server, _ := serve(t, Config{Settings: Settings{Heartbeat: 10 * time.Millisecond}}, streamer(l))
	_, r := dial(t, server, "admin", "")
	lines(t, r, ": heartbeat")
	l.append("a")
	lines(t, r, "data:")
	for _, line := range lines(t, r, ": heartbeat") {
		if line != "" && line != ": heartbeat" {
			t.Errorf("a heartbeat is %q, want a comment", line)
		}
	}
}

func TestRevokedKeyEndsItsStreamsOnly(t *testing.T) {
	l, door := newTape(), newDoor()
	server, _ := serve(t, Config{Auth: door}, streamer(l))
	_, mine := dial(t, server, "reader", "")
	_, other := dial(t, server, "admin", "")
	l.append("a")
	lines(t, mine, "data:")
	lines(t, other, "data:")
	door.revoke("reader")
	lines(t, mine, ": closed: the key was revoked")
	l.append("b")
	if rest, err := io.ReadAll(mine); err != nil || strings.Contains(string(rest), "data") {
		t.Errorf("behind the end came %q, %v, want nothing", rest, err)
	}
	lines(t, other, `data: {"text":"b"}`)
}

func TestKeyRevokedElsewhereEndsItsStreamsAtTheNextHeartbeat(t *testing.T) {
	l, door := newTape(), newDoor()
	server, _ := serve(t, Config{Auth: door, Settings: Settings{Heartbeat: 20 * time.Millisecond}}, streamer(l))
	_, r := dial(t, server, "reader", "")
	lines(t, r, ": heartbeat")
	door.revokeElsewhere("reader")
	lines(t, r, ": closed: the key was revoked")
}

func TestStoppingServerEndsStreams(t *testing.T) {
	l := newTape()
	stopping, stop := context.WithCancel(t.Context())
	server, _ := serve(t, Config{Settings: Settings{Stop: stopping}}, streamer(l))
	_, r := dial(t, server, "admin", "")
	lines(t, r, ": open")
	stop()
	lines(t, r, ": closed: the server is stopping")
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 1 {
		t.Errorf("behind the end came %q, %v", rest, err)
	}
}

func TestBrokenLogDoesNotLookLikeTheEnd(t *testing.T) {
	l := newTape()
	server, log := serve(t, Config{}, streamer(l))
	_, r := dial(t, server, "admin", "")
	lines(t, r, ": open")
	l.broken(io.ErrClosedPipe)
	if rest, err := io.ReadAll(r); err == nil {
		t.Errorf("the stream ended well, with %q", rest)
	}
	server.Close() // waits until all is logged
	if !strings.Contains(log.String(), "closed pipe") {
		t.Errorf("the log does not say why:\n%s", log)
	}
}

func TestStreamIsWholeOverRandomCuts(t *testing.T) {
	l := newTape()
	server, _ := serve(t, Config{}, streamer(l))
	for i := range 200 {
		l.append(fmt.Sprint(i + 1))
	}
	last := int64(0)
	for cut := int64(7); last < 200; cut = cut*13%23 + 1 {
		res, r := dial(t, server, "admin", fmt.Sprint(last))
		for range min(cut, 200-last) {
			all := lines(t, r, "data:")
			if want := fmt.Sprintf(`data: {"text":"%d"}`, last+1); all[len(all)-1] != want || all[len(all)-3] != fmt.Sprintf("id: %d", last+1) {
				t.Fatalf("behind %d came %q, want %s", last, all, want)
			}
			last++
		}
		res.Body.Close()
	}
}

func TestReadersAreIndependent(t *testing.T) {
	l := newTape()
	server, _ := serve(t, Config{}, streamer(l))
	for i := range 50 {
		l.append(fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for after := range 20 {
		_, r := dial(t, server, "admin", fmt.Sprint(after))
		wg.Go(func() {
			for seq := after + 1; seq <= 100; seq++ {
				if all, err := readTo(r, "data:"); err != nil || all[len(all)-3] != fmt.Sprintf("id: %d", seq) {
					t.Errorf("reader behind %d: %q, %v, want %d", after, all, err, seq)
					return
				}
			}
		})
	}
	for i := range 50 {
		l.append(fmt.Sprint(50 + i))
	}
	wg.Wait()
}

func TestLargeEventsPassWhole(t *testing.T) {
	l := newTape()
	server, _ := serve(t, Config{}, streamer(l))
	_, r := dial(t, server, "admin", "")
	for _, n := range []int{65_535, 65_537, 1_100_000, 5_000_000} {
		l.append(strings.Repeat("x", n))
		all := lines(t, r, "data:")
		if got := len(all[len(all)-1]); got != n+len(`data: {"text":""}`) {
			t.Errorf("an event of %d bytes came as a line of %d", n, got)
		}
	}
}

// TestReaderThatReadsNothingIsDropped takes the write deadline, so it is left
// out of short runs.
func TestReaderThatReadsNothingIsDropped(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the ten seconds of the write deadline")
	}
	l := newTape()
	server, _ := serve(t, Config{}, streamer(l))
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /stream HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer admin\r\n\r\n")
	_, r := dial(t, server, "admin", "")
	big := strings.Repeat("x", 1<<20)
	for range 20 { // more than the sockets' buffers take
		l.append(big)
		lines(t, r, "data:") // the other reader is not held up
	}
	for deadline := time.Now().Add(WriteTimeout + 10*time.Second); ; time.Sleep(50 * time.Millisecond) {
		l.mu.Lock()
		open := l.open
		l.mu.Unlock()
		if open == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d readers are left, want the one that reads", open)
		}
	}
}
