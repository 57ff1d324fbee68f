package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

func TestDetachKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keys, input, passed string
		detached            bool
	}{
		{"ctrl-p,ctrl-q", "ls\n\x10\x11rest", "ls\n", true},
		{"ctrl-p,ctrl-q", "a\x10b\x11c", "a\x10b\x11c", false},
		{"ctrl-p,ctrl-q", "\x10\x10\x11", "\x10", true},
		{"ctrl-a,d", "\x01\x01d", "\x01", true},
		{"x", "abcxyz", "abc", true},
		{"none", "\x10\x11", "\x10\x11", false},
	} {
		keys, err := parseKeys(c.keys)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(c.input), "one by one": iotest.OneByteReader(strings.NewReader(c.input))} {
			detached := false
			k := &keyReader{r: r, keys: keys, hit: func() { detached = true }}
			var passed bytes.Buffer
			for buf := make([]byte, 3); ; {
				k.fill() // a Read would wait for ever behind the keys
				if k.over && len(k.held) == 0 {
					break
				}
				n, err := k.Read(buf)
				if passed.Write(buf[:n]); err != nil {
					break
				}
			}
			got := passed.String()
			if got != c.passed || detached != c.detached {
				t.Errorf("%s, %q %s: passed %q, detached %t; want %q, %t", c.keys, c.input, name, got, detached, c.passed, c.detached)
			}
		}
	}
	for _, bad := range []string{"ctrl-", "ctrl-1", "ab", "a,,b", "ctrl-ä"} {
		if keys, err := parseKeys(bad); err == nil {
			t.Errorf("parseKeys(%q) = %q, want an error", bad, keys)
		}
	}
}

func TestPlacesAndPorts(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]place{
		"last:a/b": {"last", "a/b"}, "last:": {"last", "."}, "a": {"", "a"}, "./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"}, "-": {"", "-"}, ":x": {"", ":x"},
	} {
		if got := parsePlace(word); got != want {
			t.Errorf("parsePlace(%q) = %+v, want %+v", word, got, want)
		}
	}
	for word, want := range map[string]portPair{"80": {80, 80}, "8080:80": {8080, 80}, "0:80": {0, 80}} {
		if got, err := parsePorts(word); got != want || err != nil {
			t.Errorf("parsePorts(%q) = %+v, %v; want %+v", word, got, err, want)
		}
	}
	for _, bad := range []string{"", "x", "1:2:3", "70000", "80:0", "-1:80", "80:"} {
		if got, err := parsePorts(bad); err == nil {
			t.Errorf("parsePorts(%q) = %+v, want an error", bad, got)
		}
	}
}

func TestPortForwardCarriesManyConnectionsAndEndsCleanly(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, servertest.Config{})
	c, err := client.New(client.Config{URL: s.URL, Key: servertest.AdminKey})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.CreateSession(t.Context(), client.CreateSession{})
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	go func() {
		for {
			conn, err := far.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); io.Copy(conn, conn) }()
		}
	}()
	out, errs := &scriptScreen{more: make(chan struct{}, 1)}, &scriptScreen{more: make(chan struct{}, 1)}
	ctx, interrupt := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- runCommand(ctx, stdio{strings.NewReader(""), out, errs}, []string{
			"session", "port-forward", "--url", s.URL, "--key", servertest.AdminKey, made.Session.ID,
			fmt.Sprintf("0:%d", far.Addr().(*net.TCPAddr).Port), "0:1",
		})
	}()
	lines := awaitMatch(t, out, regexp.MustCompile(`(?s)(127\.0\.0\.1:\d+) leads.*(127\.0\.0\.1:\d+) leads`))
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			conn, err := net.Dial("tcp", lines[1])
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			want := strings.Repeat(fmt.Sprintf("connection %d ", i), 5000)
			go io.WriteString(conn, want)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
				t.Errorf("connection %d came back otherwise (%v)", i, err)
			}
		})
	}
	all.Wait()
	conn, err := net.Dial("tcp", lines[2]) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a port that nobody listens on", n)
	}
	awaitMatch(t, errs, regexp.MustCompile(`port 1: Nothing answers at port 1 of the sandbox`))
	open, err := net.Dial("tcp", lines[1])
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	interrupt()
	select {
	case got := <-code:
		if got != exitInterrupted {
			t.Errorf("exit code %d, want %d; it said %s", got, exitInterrupted, errs.text())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("an interrupt did not end it")
	}
}

// awaitMatch waits until the output matches, and returns the groups.
func awaitMatch(t *testing.T, l *scriptScreen, want *regexp.Regexp) []string {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		if found := want.FindStringSubmatch(string(l.text())); found != nil {
			return found
		}
		select {
		case <-l.more:
		case <-late:
			t.Fatalf("waited in vain for %s in %q", want, string(l.text()))
		}
	}
}
