package egress_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/sandbox"
)

func TestTunnelsCarryBothWaysAndCloseByHalves(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.serve("a.test", 9418, listenEcho(t))
	b := open(t, w.config(), allow("a.test:9418"))
	conn, r, code, why := b.tunnel("a.test:9418")
	if code != 200 {
		t.Fatalf("CONNECT = %d %s", code, why)
	}
	data := make([]byte, 4<<20)
	rand.Read(data)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := conn.Write(data); err != nil {
			t.Error(err)
		}
		if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	back, err := io.ReadAll(r) // after our end has said that it is done
	wg.Wait()
	if err != nil || sha256.Sum256(back) != sha256.Sum256(data) {
		t.Errorf("%d bytes came back, %v, want the %d that were sent", len(back), err, len(data))
	}
	b.close()
	if sent, received := b.gate.Traffic(); sent != int64(len(data)) || received != sent {
		t.Errorf("Traffic = %d, %d, want %d each", sent, received, len(data))
	}
}

// TestServersMaySpeakFirst: what looks at the client's first bytes must not wait for
// them where the server greets.
func TestServersMaySpeakFirst(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "220 hello\r\n")
			line, _ := bufio.NewReader(c).ReadString('\n')
			fmt.Fprint(c, "250 ", line)
			c.Close()
		}
	}()
	w := newWorld()
	w.serve("a.test", 25, ln.Addr().String())
	b := open(t, w.config(), allow("a.test:25"))
	conn, r, _, _ := b.tunnel("a.test:25")
	if line, err := r.ReadString('\n'); err != nil || line != "220 hello\r\n" {
		t.Fatalf("greeting = %q, %v", line, err)
	}
	fmt.Fprint(conn, "EHLO me\r\n") // looks like HTTP, and is not
	if line, err := r.ReadString('\n'); err != nil || line != "250 EHLO me\r\n" {
		t.Errorf("answer = %q, %v", line, err)
	}
}

func TestAnswersAreStreamedAndNotChanged(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Connection") != "" || r.Header.Get("Proxy-Authorization") != "" || r.Header.Get("X-Hop") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("headers of one hop went on: %v", r.Header)
		}
		w.Header().Set("Content-Encoding", "gzip") // it is not
		w.Header()["X-Twice"] = []string{"1", "2"}
		w.WriteHeader(http.StatusTeapot)
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	t.Cleanup(s.Close)
	w := newWorld()
	w.serve("a.test", 80, addrOf(s))
	b := open(t, w.config(), allow("a.test"))
	req, err := http.NewRequest(http.MethodGet, "http://a.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("Connection", "x-hop")
	req.Header.Set("X-Hop", "1")
	req.Header.Set("Proxy-Authorization", "Basic eDp5")
	resp, err := b.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 418 || resp.Header.Get("Content-Encoding") != "gzip" || len(resp.Header["X-Twice"]) != 2 {
		t.Errorf("answer = %d %v", resp.StatusCode, resp.Header)
	}
	lines := bufio.NewReader(resp.Body)
	for i := range 3 { // each part comes before the next is sent
		line, err := lines.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("part %d = %q, %v", i, line, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		next <- struct{}{}
	}
}

func TestWebSocketsPass(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := rw.ReadString('\n')
		fmt.Fprint(conn, "echo ", line)
	}))
	t.Cleanup(s.Close)
	w := newWorld()
	w.serve("a.test", 80, addrOf(s))
	b := open(t, w.config(), allow("a.test"))
	for _, way := range []string{"absolute form", "tunnel"} {
		conn, path := b.connect(), "http://a.test/"
		r := bufio.NewReader(conn)
		if way == "tunnel" {
			conn, r, _, _ = b.tunnel("a.test:80")
			path = "/"
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", path)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatalf("%s: upgrade = %v, %v", way, resp, err)
		}
		fmt.Fprint(conn, "hi\n")
		if line, err := r.ReadString('\n'); err != nil || line != "echo hi\n" {
			t.Errorf("%s: echo = %q, %v", way, line, err)
		}
	}
}

func TestChangedPolicyTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld()
	began := make(chan struct{}, 2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	w.serve("a.test", 80, addrOf(s))
	w.serve("a.test", 22, listenEcho(t))
	w.serve("b.test", 23, listenEcho(t))
	b := open(t, w.config(), allow("a.test", "a.test:22", "b.test:23"))
	dropped, r, _, _ := b.tunnel("a.test:22")
	kept, keptR, _, _ := b.tunnel("b.test:23")
	for _, c := range []struct {
		conn net.Conn
		r    *bufio.Reader
	}{{dropped, r}, {kept, keptR}} {
		fmt.Fprint(c.conn, "1\n")
		if line, err := c.r.ReadString('\n'); err != nil || line != "1\n" {
			t.Fatalf("echo = %q, %v", line, err)
		}
	}
	resp, err := b.client().Get("http://a.test/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-began

	b.gate.SetPolicy(allow("b.test:23"))
	if _, err := r.ReadByte(); err == nil {
		t.Error("a tunnel lived on that the policy does not allow")
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("an answer went on that the policy does not allow")
	}
	fmt.Fprint(kept, "2\n")
	if line, err := keptR.ReadString('\n'); err != nil || line != "2\n" {
		t.Errorf("a tunnel that is still allowed = %q, %v", line, err)
	}
	if _, _, code, why := b.tunnel("a.test:22"); code != 403 || why != "no_rule" {
		t.Errorf("a new tunnel = %d %s", code, why)
	}
	b.gate.SetPolicy(sojourn.NetworkPolicy{Mode: "nonsense"})
	if _, err := keptR.ReadByte(); err == nil {
		t.Error("a policy that is none let a tunnel live")
	}
	got := strings.Join(b.decided(), "\n")
	for _, want := range []string{"allowed a.test:22 a.test:22 x1", "refused a.test:22 policy_changed x1", "refused a.test:80 policy_changed x1"} {
		if !strings.Contains(got, want) {
			t.Errorf("decisions:\n%s\nwant %s", got, want)
		}
	}
}

func TestCloseEndsEverythingAndTheNextServerTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.serve("a.test", 22, listenEcho(t))
	b := open(t, w.config(), allow("a.test:22"))
	_, r, _, _ := b.tunnel("a.test:22")
	half := b.connect() // sends nothing
	b.close()
	b.close() // twice is no harm
	if _, err := r.ReadByte(); err == nil {
		t.Error("a tunnel outlived its gate")
	}
	if _, err := half.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlived its gate")
	}
	if _, err := b.dial(t.Context(), "", ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect after Close = %v", err)
	}
	next := open(t, w.config(), allow("a.test:22"), func(s *egress.Spec) { s.Dir = b.dir })
	next.dir = b.dir
	if _, _, code, why := next.tunnel("a.test:22"); code != 200 {
		t.Errorf("the next server's gate = %d %s", code, why)
	}
	info, err := os.Stat(filepath.Join(b.dir, sandbox.EgressSocketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket = %v, %v, want it closed to others", info.Mode(), err)
	}
}

func TestSocketDirectoryMayHaveALongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	open(t, newWorld().config(), openPolicy, func(s *egress.Spec) { s.Dir = dir })
	if _, err := os.Stat(filepath.Join(dir, sandbox.EgressSocketName)); err != nil {
		t.Error(err)
	}
}

func TestUnreachableHostsAreNotRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.name("away.test", public)
	b := open(t, w.config(), allow("*.test", "nowhere.example"))
	if code, why, body := b.get("http://away.test/"); code != 502 || why != "host_not_reachable" {
		t.Errorf("nobody at an address = %d %s %q", code, why, body)
	}
	if _, _, code, why := b.tunnel("nowhere.example:443"); code != 502 || why != "name_not_resolved" {
		t.Errorf("no address = %d %s", code, why)
	}
	if got := strings.Join(b.decided(), "\n"); strings.Contains(got, "refused") {
		t.Errorf("decisions:\n%s", got)
	}
}

func TestIdleTunnelsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.serve("a.test", 22, listenEcho(t))
	cfg := w.config()
	cfg.IdleTimeout = 500 * time.Millisecond
	b := open(t, cfg, allow("a.test:22"))
	_, r, _, _ := b.tunnel("a.test:22")
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("an idle tunnel: %v, want its end", err)
	}
}

func TestDecisionsAreCountedTogetherAndBounded(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var reports atomic.Int64
	var mu sync.Mutex
	count, hosts := int64(0), map[string]bool{}
	b := open(t, w.config(), allow("a.test"), func(s *egress.Spec) {
		s.Report = func(list []sojourn.NetworkDecision) {
			reports.Add(1)
			mu.Lock()
			defer mu.Unlock()
			for _, d := range list {
				count += d.Count
				hosts[d.Host] = true
				if d.Count < 1 || d.Last.Before(d.First) || len(d.Host) > 253 {
					t.Errorf("decision %+v", d)
				}
			}
		}
	})
	began := time.Now()
	const asked = 3000
	conn := b.connect()
	r := bufio.NewReader(conn)
	go func() {
		for i := range asked {
			fmt.Fprintf(conn, "GET /.sojourn/resolve?name=h%d.evil.test%%0a%%1b HTTP/1.1\r\nHost: x\r\n\r\n", i)
		}
	}()
	for range asked {
		if code, _ := readReply(t, r); code != 403 {
			t.Fatalf("a foreign name = %d", code)
		}
	}
	b.close()
	most := int64(2 + time.Since(began)/time.Second)
	if n := reports.Load(); n > most {
		t.Errorf("%d reports, want at most one a second (%d)", n, most)
	}
	if count != asked || len(hosts) > 1100 || !hosts["*other*"] || !hosts["h0.evil.test??"] {
		t.Errorf("%d decisions of %d hosts, want %d of about 1024 and the rest together", count, len(hosts), asked)
	}
}

// TestReportsComeEverySecond runs at real durations, over no socket.
func TestReportsComeEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		var counts []int64
		began := time.Now()
		l := egress.NewLedger(func(list []sojourn.NetworkDecision) {
			at = append(at, time.Since(began))
			counts = append(counts, list[0].Count)
		})
		stop := l.Start()
		l.Add("a.test", 443, true, "a.test")
		time.Sleep(50 * time.Millisecond)
		for range 24 {
			l.Add("a.test", 443, true, "a.test")
			time.Sleep(100 * time.Millisecond)
		}
		stop()
		if got := fmt.Sprint(at, counts); got != "[0s 1s 2s 2.45s] [1 10 10 4]" {
			t.Errorf("reports at %s", got)
		}
	})
}

// TestBusySandboxesAreReportedAtAPaceThatCanGoOn: what is reported is kept for good.
func TestBusySandboxesAreReportedAtAPaceThatCanGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports, entries, decisions int64
		l := egress.NewLedger(func(list []sojourn.NetworkDecision) {
			reports++
			entries += int64(len(list))
			for _, d := range list {
				decisions += d.Count
			}
		})
		stop := l.Start()
		const hours, each = 2, 1200 * time.Millisecond // slower than a report a second
		asked := int64(0)
		for began := time.Now(); time.Since(began) < hours*time.Hour; time.Sleep(each) {
			for range 3 {
				l.Add(fmt.Sprintf("h%d.test", asked), 443, false, "no_rule")
				asked++
			}
		}
		stop()
		if decisions != asked || reports < 60 || reports > 60+hours*3600/10 || entries > 1024+hours*3600/2+reports {
			t.Errorf("%d of %d decisions in %d entries of %d reports", decisions, asked, entries, reports)
		}
	})
}

func TestLogsSayNothingOfWhatIsAsked(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := newWorld()
	cfg := w.config()
	cfg.Log = newLog(&log)
	b := open(t, cfg, allow("a.test"))
	b.get("http://b.test/?token=s3cr3t")
	conn := b.connect()
	fmt.Fprint(conn, "GET http://a.test/?token=s3cr3t HTTP/9.9\r\n\r\n")
	_, _ = io.ReadAll(conn) // whatever it answers
	b.close()
	if strings.Contains(log.String(), "s3cr3t") {
		t.Errorf("log:\n%s", log.String())
	}
}
