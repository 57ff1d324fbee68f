package client_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// programs are what the test's sandboxes can run.
var programs = map[string]keeper.Program{
	// cat ends with 7, so that the code is seen to come from it.
	"cat": func(_ context.Context, p keeper.Proc) int {
		if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
			return 1
		}
		return 7
	},
	// lines answers each line; "quit" ends it.
	"lines": func(_ context.Context, p keeper.Proc) int {
		in := bufio.NewScanner(p.Stdin)
		for n := 1; in.Scan(); n++ {
			if in.Text() == "quit" {
				return 3
			}
			fmt.Fprintf(p.Stdout, "%d:%s\n", n, in.Text())
		}
		return 0
	},
	"both": func(_ context.Context, p keeper.Proc) int {
		fmt.Fprint(p.Stdout, "out")
		fmt.Fprint(p.Stderr, "err")
		fmt.Fprint(p.Stdout, "out again")
		return 0
	},
	"wait": func(ctx context.Context, p keeper.Proc) int {
		fmt.Fprint(p.Stdout, "waiting")
		<-ctx.Done()
		return 130
	},
	"flood": func(_ context.Context, p keeper.Proc) int {
		p.Stdout.Write(pattern(4 << 20))
		return 0
	},
}

// pattern is n bytes in which no stretch is like another.
func pattern(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%08d\n", i)
	}
	return b.Bytes()[:n]
}

// screen is what a shell wrote, and lets a test wait for it.
type screen struct {
	mu   sync.Mutex
	text []byte
	more chan struct{}
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p...)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text)
}

func (s *screen) await(t *testing.T, want string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for !strings.Contains(s.String(), want) {
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("the screen shows %.2000q, want %q on it", s.String(), want)
		}
	}
}

// shellServer is a server with a session.
func shellServer(t *testing.T, cfg servertest.Config) (*servertest.Server, *client.Client, string) {
	t.Helper()
	cfg.Programs = programs
	s := servertest.Start(t, cfg)
	c := newClient(t, s.URL, servertest.AdminKey)
	made := must[client.Created](t, "create")(c.CreateSession(t.Context(), client.CreateSession{}))
	return s, c, made.Session.ID
}

func wantExit(t *testing.T, end client.ShellEnd, err error, code int) {
	t.Helper()
	if err != nil || end.Code == nil || *end.Code != code {
		t.Fatalf("the shell ended with %+v (%v), want code %d", end, err, code)
	}
}

func TestShellCarriesBytesBothWays(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	in := pattern(5 << 20)
	var out bytes.Buffer
	end, err := c.Shell(t.Context(), client.Shell{Session: id, Argv: []string{"cat"}, Stdin: bytes.NewReader(in), Stdout: &out})
	wantExit(t, end, err, 7)
	if !bytes.Equal(out.Bytes(), in) || end.Lost != 0 {
		t.Errorf("%d bytes came back of %d, %d lost", out.Len(), len(in), end.Lost)
	}
	var stdout, stderr bytes.Buffer
	end, err = c.Shell(t.Context(), client.Shell{Session: id, Argv: []string{"both"}, Stdout: &stdout, Stderr: &stderr})
	wantExit(t, end, err, 0)
	if stdout.String() != "outout again" || stderr.String() != "err" {
		t.Errorf("stdout = %q, stderr = %q", stdout.String(), stderr.String())
	}
	end, err = c.Shell(t.Context(), client.Shell{Session: id, Argv: []string{"none"}})
	if err != nil || end.Failure == "" {
		t.Errorf("a program that is not there: %+v, %v", end, err)
	}
}

func TestSignalReachesTheShell(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	signals, out := make(chan string, 1), newScreen()
	go func() {
		for !strings.Contains(out.String(), "waiting") {
			<-out.more
		}
		signals <- "SIGINT"
	}()
	end, err := c.Shell(t.Context(), client.Shell{Session: id, Argv: []string{"wait"}, Stdout: out, Signals: signals})
	wantExit(t, end, err, 130)
}

func TestShellGoesOnWhileNobodyIsThere(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{true, false} {
		t.Run(fmt.Sprintf("tty=%t", tty), func(t *testing.T) {
			t.Parallel()
			_, c, id := shellServer(t, servertest.Config{})
			in, type_ := io.Pipe()
			out, detach := newScreen(), make(chan struct{})
			result := make(chan client.ShellEnd, 1)
			go func() {
				end, err := c.Shell(context.Background(), client.Shell{
					Session: id, Name: "mine", Argv: []string{"lines"}, TTY: tty, Stdin: in, Stdout: out, Detach: detach,
				})
				if err != nil {
					t.Error(err)
				}
				result <- end
			}()
			fmt.Fprintln(type_, "hello")
			out.await(t, "1:hello")
			_, err := c.Shell(t.Context(), client.Shell{Session: id, Name: "mine", Argv: []string{"lines"}})
			if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Status != http.StatusUnprocessableEntity {
				t.Errorf("a second shell of the name: %v", err)
			}
			close(detach)
			if end := <-result; !end.Detached || end.Reason != "" || end.Code != nil {
				t.Fatalf("after detaching: %+v", end)
			}
			type_.Close()

			again := newScreen()
			end, err := c.Shell(t.Context(), client.Shell{
				Session: id, Name: "mine", Reattach: true, TTY: tty, Stdin: strings.NewReader("there\nquit\n"), Stdout: again,
			})
			wantExit(t, end, err, 3)
			if tty {
				again.await(t, "1:hello\n2:there\n") // the screen as it was, and what came
			} else if got := again.String(); got != "2:there\n" {
				t.Errorf("the pipe carried %q, want what it had not yet", got)
			}
			_, err = c.Shell(t.Context(), client.Shell{Session: id, Name: "mine", Reattach: true})
			if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Status != http.StatusNotFound {
				t.Errorf("reattach to a shell that is over: %v", err)
			}
		})
	}
}

func TestWhoReattachesTakesOver(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	out := newScreen()
	result := make(chan client.ShellEnd, 1)
	in, type_ := io.Pipe()
	go func() {
		end, err := c.Shell(context.Background(), client.Shell{Session: id, Name: "s", Argv: []string{"lines"}, TTY: true, Stdin: in, Stdout: out})
		if err != nil {
			t.Error(err)
		}
		result <- end
	}()
	fmt.Fprintln(type_, "a")
	out.await(t, "1:a")
	second := newScreen()
	end, err := c.Shell(t.Context(), client.Shell{Session: id, Name: "s", Reattach: true, TTY: true, Stdin: strings.NewReader("quit\n"), Stdout: second})
	wantExit(t, end, err, 3)
	if first := <-result; !first.Detached || first.Reason != "taken_over" {
		t.Errorf("the first visitor was told %+v", first)
	}
}

func TestShellOutlivesItsServer(t *testing.T) {
	t.Parallel()
	s, c, id := shellServer(t, servertest.Config{})
	in := pattern(3 << 20)
	half := &slowly{r: bytes.NewReader(in), at: len(in) / 2, reached: make(chan struct{}), goOn: make(chan struct{})}
	var out bytes.Buffer
	var cuts int
	go func() {
		<-half.reached
		s.Restart()
		close(half.goOn)
	}()
	end, err := c.Shell(t.Context(), client.Shell{
		Session: id, Argv: []string{"cat"}, Stdin: half, Stdout: &out, OnCut: func(error) { cuts++ },
	})
	wantExit(t, end, err, 7)
	if !bytes.Equal(out.Bytes(), in) || cuts == 0 {
		t.Errorf("after %d cuts %d bytes came back of %d, the same: %t", cuts, out.Len(), len(in), bytes.Equal(out.Bytes(), in))
	}
}

// slowly is a reader that waits in the middle.
type slowly struct {
	r             io.Reader
	at, n         int
	reached, goOn chan struct{}
}

func (s *slowly) Read(p []byte) (int, error) {
	if s.n >= s.at && s.reached != nil {
		close(s.reached)
		s.reached = nil
		<-s.goOn
	}
	n, err := s.r.Read(p)
	s.n += n
	return n, err
}

func TestSlowReaderHoldsTheProgramUp(t *testing.T) {
	t.Parallel()
	_, c, id := shellServer(t, servertest.Config{})
	var out bytes.Buffer
	slow := writerFunc(func(p []byte) (int, error) {
		time.Sleep(time.Millisecond)
		return out.Write(p)
	})
	end, err := c.Shell(t.Context(), client.Shell{Session: id, Argv: []string{"flood"}, Stdout: slow})
	wantExit(t, end, err, 0)
	if !bytes.Equal(out.Bytes(), pattern(4<<20)) || end.Lost != 0 {
		t.Errorf("%d bytes came, %d lost", out.Len(), end.Lost)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRevokedKeyEndsItsShellAndNotTheProgram(t *testing.T) {
	t.Parallel()
	s, admin, id := shellServer(t, servertest.Config{})
	made := must[client.CreatedKey](t, "make a key")(admin.CreateKey(t.Context(), client.CreateKey{Kind: "admin"}))
	c := newClient(t, s.URL, made.Secret)
	out := newScreen()
	result := make(chan error, 1)
	go func() {
		_, err := c.Shell(context.Background(), client.Shell{Session: id, Name: "s", Argv: []string{"wait"}, TTY: true, Stdout: out})
		result <- err
	}()
	out.await(t, "waiting")
	if err := admin.RevokeKey(t.Context(), made.Key.ID); err != nil {
		t.Fatal(err)
	}
	if refused, ok := errors.AsType[*client.Error](<-result); !ok || refused.Code != "unauthenticated" {
		t.Errorf("the shell of a revoked key ended with %v", refused)
	}
	signals := make(chan string, 1)
	signals <- "SIGTERM"
	end, err := admin.Shell(t.Context(), client.Shell{Session: id, Name: "s", Reattach: true, TTY: true, Signals: signals})
	wantExit(t, end, err, 130)
}

func TestShellEndsWithItsSandbox(t *testing.T) {
	t.Parallel()
	s, c, id := shellServer(t, servertest.Config{})
	out := newScreen()
	result := make(chan error, 1)
	go func() {
		_, err := c.Shell(context.Background(), client.Shell{Session: id, Argv: []string{"wait"}, TTY: true, Stdout: out})
		result <- err
	}()
	out.await(t, "waiting")
	s.Fake.Kill(id)
	if refused, ok := errors.AsType[*client.Error](<-result); !ok || refused.Code != "execution_lost" {
		t.Errorf("the shell of a dead sandbox ended with %v", refused)
	}
}

func TestAttachedShellKeepsTheLease(t *testing.T) {
	t.Parallel()
	cfg := servertest.Config{}
	cfg.Terms.Hold = 3 * time.Second // which a busy machine can keep
	cfg.Terms.Ceiling = 8 * time.Second
	_, c, id := shellServer(t, cfg)
	out := newScreen()
	began := time.Now()
	_, err := c.Shell(t.Context(), client.Shell{Session: id, Argv: []string{"wait"}, TTY: true, Stdout: out})
	if refused, ok := errors.AsType[*client.Error](err); !ok || refused.Code != "workspace_expired" && refused.Code != "cloud_workspace_expired" {
		t.Errorf("the shell ended with %v", err)
	}
	if took := time.Since(began); took < 7*time.Second {
		t.Errorf("the lease ended after %v, before its ceiling of 8 s", took)
	}
}

func TestShellIsForOurOwnPagesOnly(t *testing.T) {
	t.Parallel()
	s, _, id := shellServer(t, servertest.Config{})
	for _, below := range []string{"/shell?name=x&argv=wait", "/ports/80"} {
		address := s.URL + "/operator/v1/sessions/" + id + below
		h := http.Header{"Authorization": {"Bearer " + servertest.AdminKey}, "Origin": {"https://evil.example"}}
		_, res, err := websocket.Dial(t.Context(), address, &websocket.DialOptions{HTTPHeader: h})
		if err == nil || res == nil || res.StatusCode != http.StatusForbidden {
			t.Errorf("%s from another site: %v", below, err)
		}
		h.Del("Authorization")
		h.Del("Origin")
		_, res, err = websocket.Dial(t.Context(), address, &websocket.DialOptions{HTTPHeader: h})
		if err == nil || res == nil || res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a key: %v", below, err)
		}
		if status, code := s.Call(http.MethodGet, "/operator/v1/sessions/"+id+below, nil, nil); status != http.StatusUpgradeRequired || code != "invalid" {
			t.Errorf("%s without an upgrade: %d %s", below, status, code)
		}
	}
}
