package exec_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestAnUploadThatBreaksOffChangesNothing is FI-02 the other way.
func TestAnUploadThatBreaksOffChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	put := c.files("/content", "path", "f")
	if a, b, _ := c.do(http.MethodPut, put, strings.NewReader("old")); a.StatusCode != 200 {
		t.Fatalf("put: %d %s", a.StatusCode, b)
	}
	for _, length := range []int64{-1, 8 << 20} { // chunked, and announced
		from, to := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		r := c.request(http.MethodPut, put, from).WithContext(ctx)
		r.ContentLength = length
		ended := make(chan error, 1)
		go func() {
			a, err := http.DefaultClient.Do(r)
			if err == nil {
				err = fmt.Errorf("answered with %d", a.StatusCode)
				a.Body.Close()
			}
			ended <- err
		}()
		if _, err := to.Write(make([]byte, 4<<20)); err != nil {
			t.Fatal(err)
		}
		cancel()
		to.CloseWithError(context.Canceled)
		if err := <-ended; !strings.Contains(err.Error(), "canceled") {
			t.Errorf("an upload that broke off: %v", err)
		}
	}
	// A sender that ends in the middle, and still reads the answer.
	for _, path := range []string{put, c.files("/upload", "path", "tree")} {
		for _, head := range []string{"Content-Length: 5000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1388\r\n"} {
			method := map[bool]string{true: http.MethodPut, false: http.MethodPost}[path == put]
			if status, body := c.halved(method, path, head+strings.Repeat("x", 1000)); status != 400 || !bytes.Contains(body, []byte("INVALID_REQUEST")) {
				t.Errorf("%s %s that broke off: %d %s", method, path, status, body)
			}
		}
	}
	if _, b, err := c.do(http.MethodGet, c.files("/download", "path", "f"), nil); err != nil || string(b) != "old" {
		t.Errorf("f holds %d bytes, %v", len(b), err)
	}
}

// halved makes a call with the rest of a request, of which no more comes.
func (c *caller) halved(method, path, rest string) (int, []byte) {
	c.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.URL, "http://"))
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: ApiKey %s\r\n%s", method, path, servertest.AdminKey, rest)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		c.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		c.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		c.Fatal(err)
	}
	return a.StatusCode, b
}
