package link_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// server answers a connection with one function for each method, each call in
// a goroutine of its own. A method without one is not answered.
type server map[string]func(m link.Message) link.Message

func (s server) serve(t link.Transport) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer t.Close()
	for {
		data, err := t.Read()
		if err != nil {
			return
		}
		m, err := link.DecodeMessage(data)
		if err != nil {
			return
		}
		if f := s[m.Method]; f != nil && m.Request() {
			wg.Go(func() {
				out := f(m)
				out.ID = m.ID
				if data, err := link.EncodeMessage(out); err == nil {
					_ = t.Write(data) // the client may be gone; it knows best
				}
			})
		}
	}
}

func ok(link.Message) link.Message { return link.Message{Result: json.RawMessage(`{}`)} }

func hello(link.Message) link.Message {
	return link.Message{Result: json.RawMessage(`{"sessionId":"s","sojourn":{"epoch":0}}`)}
}

func refuse(code int) func(link.Message) link.Message {
	return func(link.Message) link.Message {
		return link.Message{Error: &link.Error{Code: code, Message: "no"}}
	}
}

// connect opens a client on s over net.Pipe. It returns the server's end.
func connect(t *testing.T, s server, o link.Options) (*link.Client, link.Transport) {
	t.Helper()
	near, far := net.Pipe()
	tr := link.Framed(far)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve(tr)
	}()
	c, err := link.Open(t.Context(), link.Framed(near), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c, tr
}

func TestSlowCallKeepsNoOtherWaiting(t *testing.T) {
	release := make(chan struct{})
	c, _ := connect(t, server{
		link.MethodInitialize: hello,
		link.MethodProcessRead: func(link.Message) link.Message {
			<-release
			return link.Message{Result: json.RawMessage(`{"nextSeq":1,"closed":true}`)}
		},
		link.MethodStats: ok,
	}, link.Options{})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", Wait: link.MaxWait}); err != nil {
				t.Errorf("read: %v", err)
			}
		})
	}
	for range 100 {
		if _, err := c.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	wg.Wait()
}

func TestCancelledCallLeavesConnectionWhole(t *testing.T) {
	c, _ := connect(t, server{link.MethodInitialize: hello, link.MethodStats: ok}, link.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := c.Read(ctx, link.ReadParams{ProcessID: "p"}); !errors.Is(err, stop) {
		t.Fatalf("cancelled read = %v, want its cause", err)
	}
	if _, err := c.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestStuckWriteDoesNotHoldCaller: the far side reads nothing, so the frame
// can never go out.
func TestStuckWriteDoesNotHoldCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := link.Open(ctx, link.Framed(near), link.Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("open = %v, want DeadlineExceeded", err)
		}
	})
}

func TestAnswersHaveTypes(t *testing.T) {
	for code, want := range map[int]error{
		link.CodeNotFound: fs.ErrNotExist, link.CodeExists: fs.ErrExist, link.CodePermission: fs.ErrPermission,
		link.CodeProcessExists: link.ErrProcessExists, link.CodeUnknownProcess: link.ErrUnknownProcess,
		link.CodeLimit: link.ErrLimit, link.CodeNoMethod: link.ErrUnsupported, link.CodeUnsupported: link.ErrUnsupported,
	} {
		c, _ := connect(t, server{link.MethodInitialize: hello, link.MethodReadFile: refuse(code)}, link.Options{})
		_, err := c.ReadFile(t.Context(), "/f")
		var e *link.Error
		if !errors.Is(err, want) || !errors.As(err, &e) || e.Code != code {
			t.Errorf("code %d is %v, want %v", code, err, want)
		}
	}
}

func TestOpenSaysStaleEpoch(t *testing.T) {
	near, far := net.Pipe()
	go server{link.MethodInitialize: refuse(link.CodeStaleEpoch)}.serve(link.Framed(far))
	if _, err := link.Open(t.Context(), link.Framed(near), link.Options{}); !errors.Is(err, link.ErrStaleEpoch) {
		t.Fatalf("open = %v, want ErrStaleEpoch", err)
	}
}

// TestGarbageEndsConnection: each kind of nonsense fails the open calls with
// a type, and the client can still be closed.
func TestGarbageEndsConnection(t *testing.T) {
	for name, garbage := range map[string]string{
		"not JSON": "{", "no message": "{}", "batch": "[]", "both": `{"id":1,"method":"a","result":1}`, "empty": "",
	} {
		c, tr := connect(t, server{link.MethodInitialize: hello}, link.Options{})
		failed := make(chan error, 1)
		go func() { _, err := c.Stats(context.Background()); failed <- err }()
		if err := tr.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, link.ErrMalformed) || !errors.Is(err, link.ErrDisconnected) {
			t.Errorf("%s: call failed with %v, want ErrMalformed and ErrDisconnected", name, err)
		}
		<-c.Done()
		if !errors.Is(c.Err(), link.ErrMalformed) {
			t.Errorf("%s: Err = %v", name, c.Err())
		}
	}
}

// TestUnaskedMessagesAreIgnored: answers nobody waits for, requests of the
// server, notifications of any name.
func TestUnaskedMessagesAreIgnored(t *testing.T) {
	var got []string
	var mu sync.Mutex
	c, tr := connect(t, server{link.MethodInitialize: hello, link.MethodStats: ok}, link.Options{
		OnNotify: func(method string, _ json.RawMessage) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, method)
		},
	})
	for _, msg := range []string{
		`{"id":99,"result":{}}`, `{"id":"x","result":{}}`, `{"id":7,"method":"sampling/create"}`,
		`{"method":"a/b"}`, `{"method":"process/closed","params":{"processId":"p"}}`,
	} {
		if err := tr.Write([]byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if s := strings.Join(got, " "); s != "a/b process/closed" {
		t.Fatalf("notifications = %q", s)
	}
}

func TestStartRefusesWhatCannotTravel(t *testing.T) {
	c, _ := connect(t, server{link.MethodInitialize: hello, link.MethodProcessStart: ok}, link.Options{})
	for _, p := range []link.StartParams{
		{},
		{Argv: []string{"a\xff"}},
		{Argv: []string{"a"}, Env: map[string]string{"": "x"}},
		{Argv: []string{"a"}, Env: map[string]string{"A=B": "x"}},
		{Argv: []string{"a"}, Env: map[string]string{"A": "\xff"}},
	} {
		if err := c.Start(t.Context(), p); err == nil {
			t.Errorf("start %+v succeeded", p)
		}
	}
}

func TestWalkRefusesNamesThatLeadAway(t *testing.T) {
	for _, name := range []string{"..", ".", "", "a/b", "/etc"} {
		c, _ := connect(t, server{
			link.MethodInitialize: hello,
			link.MethodReadDirectory: func(link.Message) link.Message {
				return link.Message{Result: json.RawMessage(fmt.Sprintf(`{"entries":[{"fileName":%q,"isDirectory":true}]}`, name))}
			},
		}, link.Options{})
		if _, err := c.Walk(t.Context(), "/w"); !errors.Is(err, link.ErrMalformed) {
			t.Errorf("walk over %q = %v, want ErrMalformed", name, err)
		}
	}
}

// peerOn returns a peer whose dial connects to s; each dial is counted.
func peerOn(t *testing.T, s server, o link.Options, before func(n int32) error) (*link.Peer, *atomic.Int32) {
	t.Helper()
	var dials atomic.Int32
	p := link.NewPeer(func(context.Context) (link.Transport, error) {
		if err := before(dials.Add(1)); err != nil {
			return nil, err
		}
		near, far := net.Pipe()
		go s.serve(link.Framed(far))
		return link.Framed(near), nil
	}, o)
	t.Cleanup(func() { p.Close() })
	return p, &dials
}

func TestPeerKeepsDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		p, dials := peerOn(t, server{link.MethodInitialize: hello, link.MethodStats: ok}, link.Options{}, func(n int32) error {
			if n < 10 {
				return refused
			}
			return nil
		})
		began := time.Now()
		if _, err := p.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
		// 20 ms, doubled up to a second: 20+40+80+160+320+640+1000+1000+1000.
		if d := time.Since(began); dials.Load() != 10 || d != 4260*time.Millisecond {
			t.Fatalf("%d dials in %v", dials.Load(), d)
		}
		if _, err := p.Stats(t.Context()); err != nil || dials.Load() != 10 {
			t.Fatalf("second call: %v after %d dials, want the same connection", err, dials.Load())
		}
		p.Close()
	})
}

func TestPeerStopsAtOnceWhenGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, dials := peerOn(t, nil, link.Options{}, func(int32) error { return fmt.Errorf("sandbox x: %w", link.ErrGone) })
		began := time.Now()
		if err := p.Thaw(t.Context()); !errors.Is(err, link.ErrGone) {
			t.Fatalf("call = %v, want ErrGone", err)
		}
		if time.Since(began) != 0 || dials.Load() != 1 {
			t.Fatalf("%d dials in %v", dials.Load(), time.Since(began))
		}
		p.Close()
	})
}

func TestPeerSaysWhyItCouldNotConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		p, _ := peerOn(t, nil, link.Options{}, func(int32) error { return refused })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Thaw(ctx); !errors.Is(err, refused) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("call = %v, want both the deadline and the reason", err)
		}
		p.Close()
	})
}

func TestPeerSettlesLostAnswers(t *testing.T) {
	// The first connection of each peer dies with the call that it carries.
	for name, tt := range map[string]struct {
		method string
		code   int
		call   func(ctx context.Context, p *link.Peer) error
	}{
		"start": {link.MethodProcessStart, link.CodeProcessExists, func(ctx context.Context, p *link.Peer) error {
			return p.Start(ctx, link.StartParams{ProcessID: "p", Argv: []string{"a"}})
		}},
		"remove": {link.MethodProcessDrop, link.CodeUnknownProcess, func(ctx context.Context, p *link.Peer) error { return p.Remove(ctx, "p") }},
		"mkdir":  {link.MethodCreateDirectory, link.CodeExists, func(ctx context.Context, p *link.Peer) error { return p.CreateDirectory(ctx, "/d", false) }},
		"rm":     {link.MethodRemove, link.CodeNotFound, func(ctx context.Context, p *link.Peer) error { return p.RemovePath(ctx, "/d", false, false) }},
	} {
		t.Run(name, func(t *testing.T) {
			var lastFar link.Transport
			var calls atomic.Int32
			s := server{link.MethodInitialize: hello, tt.method: func(m link.Message) link.Message {
				if calls.Add(1) == 1 {
					lastFar.Close()
				}
				return refuse(tt.code)(m)
			}}
			p := link.NewPeer(func(context.Context) (link.Transport, error) {
				near, far := net.Pipe()
				lastFar = link.Framed(far)
				go s.serve(lastFar)
				return link.Framed(near), nil
			}, link.Options{})
			defer p.Close()
			if err := tt.call(t.Context(), p); err != nil {
				t.Fatalf("after a lost answer: %v", err)
			}
			if err := tt.call(t.Context(), p); err == nil {
				t.Fatal("without a lost answer the error must be told")
			}
		})
	}
}

func TestPeerSaysSessionIsGone(t *testing.T) {
	var n atomic.Int32
	s := server{link.MethodInitialize: func(m link.Message) link.Message {
		var p link.InitializeParams
		if err := json.Unmarshal(m.Params, &p); err != nil || (n.Add(1) > 1 && p.ResumeSessionID != "s") {
			return refuse(link.CodeInternal)(m)
		}
		if p.ResumeSessionID != "" {
			return refuse(link.CodeUnknownSession)(m)
		}
		return hello(m)
	}, link.MethodThaw: ok}
	var far link.Transport
	p := link.NewPeer(func(context.Context) (link.Transport, error) {
		a, b := net.Pipe()
		far = link.Framed(b)
		go s.serve(far)
		return link.Framed(a), nil
	}, link.Options{})
	defer p.Close()
	if err := p.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if err := p.Thaw(t.Context()); !errors.Is(err, link.ErrGone) || !errors.Is(err, link.ErrUnknownSession) {
		t.Fatalf("call = %v, want ErrGone and ErrUnknownSession", err)
	}
}

func TestPeerAfterClose(t *testing.T) {
	p, dials := peerOn(t, server{link.MethodInitialize: hello}, link.Options{}, func(int32) error { return nil })
	p.Close()
	if err := p.Thaw(t.Context()); err == nil || dials.Load() != 0 {
		t.Fatalf("call = %v after %d dials", err, dials.Load())
	}
	p.Close()
}

func TestPeerCloseEndsSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := peerOn(t, nil, link.Options{}, func(int32) error { return errors.New("refused") })
		failed := make(chan error, 1)
		go func() { failed <- p.Thaw(context.Background()) }()
		time.Sleep(time.Minute)
		p.Close()
		if err := <-failed; err == nil {
			t.Fatal("call succeeded without a connection")
		}
	})
}

// TestSilentConnectionIsGivenUp: the far side takes calls and says nothing, as
// it looks when the network between has died.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, server{link.MethodInitialize: hello}, link.Options{})
		began := time.Now()
		if _, err := c.Stats(t.Context()); !errors.Is(err, link.ErrDisconnected) {
			t.Fatalf("call = %v, want ErrDisconnected", err)
		}
		if d := time.Since(began); d != time.Minute {
			t.Fatalf("given up after %v, want a minute", d)
		}
		c.Close()
	})
}

func TestSlowCallOnLivingConnectionIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, server{
			link.MethodInitialize: hello, link.MethodEnvironmentInfo: ok,
			link.MethodSync: func(m link.Message) link.Message { time.Sleep(time.Hour); return ok(m) },
		}, link.Options{})
		if err := c.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

// TestPayloadThatNobodyExpects fails its call and nothing else.
func TestPayloadThatNobodyExpects(t *testing.T) {
	c, _ := connect(t, server{
		link.MethodInitialize:      hello,
		link.MethodEnvironmentInfo: ok,
		link.MethodStats: func(link.Message) link.Message {
			return link.Message{Result: json.RawMessage(`{}`), Payload: []byte("surprise")}
		},
	}, link.Options{})
	if _, err := c.Stats(t.Context()); !errors.Is(err, link.ErrMalformed) {
		t.Fatalf("stats = %v, want ErrMalformed", err)
	}
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFirstKeepersGetNoPayload: a server that knows no revision is sent base64, and
// what a run is made of.
func TestFirstKeepersGetNoPayload(t *testing.T) {
	var methods []string // the server hears one after another
	said := func(answer string) func(m link.Message) link.Message {
		return func(m link.Message) link.Message {
			if m.Payload != nil {
				t.Errorf("%s came with a payload", m.Method)
			}
			methods = append(methods, m.Method+" "+string(link.Field(m.Params, "chunk"))+string(link.Field(m.Params, "dataBase64")))
			return link.Message{Result: json.RawMessage(answer)}
		}
	}
	c, _ := connect(t, server{
		link.MethodInitialize:   hello,
		link.MethodProcessStart: said(`{}`),
		link.MethodAck:          said(`{}`),
		link.MethodProcessRead:  said(`{"chunks":[],"nextSeq":9,"closed":true,"sojourn":{"firstSeq":9}}`),
		link.MethodProcessWrite: said(`{"status":"accepted"}`),
		link.MethodWriteFile:    said(`{}`),
		link.MethodProcessDrop:  said(`{}`),
	}, link.Options{})
	r, err := c.Run(t.Context(), link.StartParams{ProcessID: "p", Argv: []string{"true"}}, link.ReadParams{})
	if err == nil && r.Closed {
		_, err = c.Read(t.Context(), link.ReadParams{ProcessID: "p", AfterSeq: 8, Ack: 8})
	}
	if err == nil {
		err = c.Write(t.Context(), "p", "w", []byte("hi"))
	}
	if err == nil {
		err = c.WriteFile(t.Context(), "/f", []byte("hi"))
	}
	if err == nil {
		err = c.Forget(t.Context(), "p")
	}
	if err != nil {
		t.Fatal(err)
	}
	want := "process/start ,process/read ,sojourn/process/ack ,process/read ,process/write \"aGk=\",fs/writeFile \"aGk=\",sojourn/process/remove "
	if got := strings.Join(methods, ","); got != want {
		t.Fatalf("heard %s, want %s", got, want)
	}
}
