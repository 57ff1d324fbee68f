package local

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// hungUp reports whether the other side has closed the connection: it shows as a
// reset when something had been sent that was never read.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
}

func listen(t *testing.T, dir, token string) *Door {
	t.Helper()
	d, err := Listen(dir, token)
	if err != nil {
		t.Fatalf("Listen = %v", err)
	}
	t.Cleanup(d.Close)
	return d
}

// call knocks and says something.
func call(t *testing.T, dir, words string) net.Conn {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The path itself may be longer than sockets allow.
	c, err := net.Dial("unix", "/proc/self/fd/"+strconv.Itoa(int(f.Fd()))+"/"+sandbox.SocketName)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, words); err != nil {
		t.Fatalf("write: %v", err)
	}
	return c
}

func TestDoorLetsInWhoHasTheToken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	token := NewToken()
	d := listen(t, dir, token)
	call(t, dir, token+"\nhello")
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatalf("Dial = %v", err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("what follows the token = %q, %v", got, err)
	}
}

func TestDoorKeepsImpostorsOut(t *testing.T) {
	dir, token := t.TempDir(), NewToken()
	d := listen(t, dir, token)
	for _, words := range []string{NewToken() + "\n", strings.ToUpper(token) + "\n", token + "x", strings.Repeat("\n", 65)} {
		c := call(t, dir, words)
		if n, err := c.Read(make([]byte, 1)); !hungUp(err) {
			t.Errorf("after %q: read %d, %v, want EOF", words, n, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if c, err := d.Dial(ctx); err == nil {
		t.Errorf("Dial = %v, want nobody", c)
	}
}

func TestDoorIsNotBlockedByACrowd(t *testing.T) {
	dir, token := t.TempDir(), NewToken()
	d := listen(t, dir, token)
	var crowd []net.Conn
	for range 3 * maxUnproven { // silent ones
		crowd = append(crowd, call(t, dir, "x"))
	}
	call(t, dir, token+"\n")
	if _, err := d.Dial(t.Context()); err != nil {
		t.Errorf("Dial = %v", err)
	}
	if n, err := crowd[0].Read(make([]byte, 1)); !hungUp(err) {
		t.Errorf("the oldest of the crowd: read %d, %v, want the end", n, err)
	}
}

func TestDoorHasOneConnection(t *testing.T) {
	dir, token := t.TempDir(), NewToken()
	d := listen(t, dir, token)
	one := call(t, dir, token+"\n")
	if _, err := d.Dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	two := call(t, dir, token+"\n")
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the first connection after a second Dial: %v, want EOF", err)
	}
	d.Close()
	d.Close()
	if _, err := io.ReadAll(c); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection after Close: %v, want ErrClosed", err)
	}
	if _, err := two.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the keeper's end after Close: %v, want EOF", err)
	}
	if _, err := d.Dial(t.Context()); err == nil {
		t.Error("Dial after Close worked")
	}
}

func TestShutLeavesTheLastWords(t *testing.T) {
	dir, token := t.TempDir(), NewToken()
	d := listen(t, dir, token)
	keeper := call(t, dir, token+"\nlast words")
	c, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.Shut()
	keeper.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "last words" {
		t.Errorf("after Shut: %q, %v, want the last words", b, err)
	}
}

func TestListenTakesOver(t *testing.T) {
	dir, token := t.TempDir(), NewToken()
	listen(t, dir, token)
	d := listen(t, dir, token) // as a restarted server does
	call(t, dir, token+"\n")
	if _, err := d.Dial(t.Context()); err != nil {
		t.Errorf("Dial = %v", err)
	}
}
