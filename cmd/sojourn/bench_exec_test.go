package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/docker/dockertest"
)

// benchExecs names the executable whose execs are measured; make bench-exec sets it.
// SOJOURN_BENCH_DRIVERS names the drivers.
const benchExecs = "SOJOURN_BENCH_EXEC"

// The sizes of the benchmark.
const (
	trueRounds = 200
	manyExecs  = 1000
	gib        = 1 << 30
	mib        = 1 << 20
	manyFiles  = 10_000
	copyBytes  = 256 << 10 // of each read and write, ours and the limit's
)

// BenchmarkExecs measures contract B from outside, over HTTP, on one warm sandbox of each
// driver, and each figure beside what the machine does without us in the same run. It
// is for make bench-exec, with -benchtime 1x.
func BenchmarkExecs(b *testing.B) {
	exe := os.Getenv(benchExecs)
	if exe == "" {
		b.Skip("SKIPPED: it takes minutes; run make bench-exec")
	}
	drivers := strings.Fields(os.Getenv("SOJOURN_BENCH_DRIVERS"))
	if len(drivers) == 0 {
		drivers = []string{"namespace", "gvisor"}
	}
	for _, driver := range drivers {
		b.Run(driver, func(b *testing.B) {
			for b.Loop() {
				x := newExecBench(b, exe, driver)
				b.Cleanup(func() { x.print(os.Stdout) }) // what there is, also when something fails
				x.roundTrip()
				x.parallel()
				x.line()
				x.gigabyte()
				x.files(64 * mib)
				x.files(gib)
				x.list()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// execBench is one server with one session that is measured.
type execBench struct {
	b      *testing.B
	driver string
	server *demoServer
	dir    string
	url    string // of the session
	client *http.Client
	rows   []execFigure
}

// execFigure is what was measured, and the limit that it is measured against.
type execFigure struct {
	name, unit   string
	ours, limit  float64
	moreIsBetter bool
	note         string
}

func newExecBench(b *testing.B, exe, driver string) *execBench {
	if driver == docker.Name && os.Getenv("DOCKER_HOST") == "" {
		ownEngine(b)
	}
	dir := b.TempDir()
	s := &demoServer{exe: exe, dir: dir, key: "bench-key-0123456789abcdef", listen: "127.0.0.1:0", flags: []string{"--driver", driver}}
	if err := s.start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.stop(); killSandboxes(dir) })
	x := &execBench{b: b, driver: driver, server: s, dir: dir, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64, ReadBufferSize: copyBytes, WriteBufferSize: copyBytes,
	}}}
	x.url = s.url() + "/api/v1/agent/sessions"
	var made struct{ Session struct{ ID string } }
	x.call(http.MethodPost, "", map[string]any{"name": "bench", "autoStart": true}, &made)
	x.url += "/" + made.Session.ID
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until it is warm
		var out execReply
		if x.try(http.MethodPost, "/exec", map[string]any{"command": []string{"true"}, "timeoutMs": 60000}, &out) == nil && out.ExitCode != nil {
			break
		}
		if time.Now().After(deadline) {
			b.Fatalf("no exec ran within a minute:\n%s", s.logTail())
		}
	}
	return x
}

// ownEngine starts a container engine for the server to find.
func ownEngine(b *testing.B) {
	runtime.LockOSThread() // the engine's programs end with the thread
	engine, err := dockertest.Start()
	if err != nil {
		b.Skipf("SKIPPED: no engine could be started: %v", err)
	}
	b.Cleanup(func() {
		if err := engine.Stop(); err != nil {
			b.Error(err)
		}
	})
	b.Setenv("DOCKER_HOST", engine.Host())
}

// execReply is what the benchmark reads of an exec's reply.
type execReply struct {
	ExecutionID string
	ExitCode    *int
	Stdout      string
	StdoutBytes int64
}

func (x *execBench) request(method, path string, body io.Reader) *http.Request {
	r, err := http.NewRequestWithContext(x.b.Context(), method, x.url+path, body)
	if err != nil {
		x.b.Fatal(err)
	}
	r.Header.Set("Authorization", "ApiKey "+x.server.key)
	return r
}

func (x *execBench) try(method, path string, body, out any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r := x.request(method, path, bytes.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	res, err := x.client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, got)
	}
	return json.Unmarshal(got, out)
}

func (x *execBench) call(method, path string, body, out any) {
	x.b.Helper()
	if err := x.try(method, path, body, out); err != nil {
		x.b.Fatal(err)
	}
}

func (x *execBench) run(timeout int, more map[string]any, argv ...string) (out execReply) {
	x.b.Helper()
	body := map[string]any{"command": argv, "timeoutMs": timeout}
	for k, v := range more {
		body[k] = v
	}
	x.call(http.MethodPost, "/exec", body, &out)
	if out.ExitCode == nil || *out.ExitCode != 0 {
		x.b.Fatalf("%v ended with %+v", argv, out)
	}
	return out
}

// localRun starts the same program here and waits for it.
func localRun(b *testing.B, argv ...string) {
	if err := exec.CommandContext(b.Context(), argv[0], argv[1:]...).Run(); err != nil {
		b.Fatal(err)
	}
}

// medianOf runs f n times.
func medianOf(n int, f func()) time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		t := time.Now()
		f()
		all[i] = time.Since(t)
	}
	slices.Sort(all)
	return all[n/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// roundTrip compares one small exec with the same program started here and one HTTP
// round trip over loopback.
func (x *execBench) roundTrip() {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			w.Write(body)
		}
	}))
	defer echo.Close()
	payload := []byte(`{"command":["/bin/true"],"timeoutMs":60000}`)
	hop := func() {
		res, err := x.client.Post(echo.URL, "application/json", bytes.NewReader(payload))
		if err != nil {
			x.b.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	ours, limit := make([]time.Duration, trueRounds), make([]time.Duration, trueRounds)
	for i := range trueRounds { // in turns, so that a busy moment meets both
		t := time.Now()
		x.run(60000, nil, "/bin/true")
		ours[i] = time.Since(t)
		t = time.Now()
		localRun(x.b, "/bin/true")
		hop()
		limit[i] = time.Since(t)
	}
	slices.Sort(ours)
	slices.Sort(limit)
	x.note(execFigure{name: "exec /bin/true", unit: "ms", ours: ms(ours[trueRounds/2]), limit: ms(limit[trueRounds/2]), note: "fork+exec here + 1 loopback HTTP"})
	x.note(execFigure{name: "the same, 99 %", unit: "ms", ours: ms(ours[trueRounds*99/100]), limit: ms(limit[trueRounds*99/100])})
}

// parallel has many callers at once. A session runs one exec at a time, so the limit
// is one caller's.
func (x *execBench) parallel() {
	limit := medianOf(50, func() { localRun(x.b, "/bin/true") })
	for _, callers := range []int{1, 8, 64} {
		work := make(chan struct{}, manyExecs)
		for range manyExecs {
			work <- struct{}{}
		}
		close(work)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var failed error
		start := time.Now()
		for range callers {
			wg.Go(func() {
				for range work {
					var out execReply
					if err := x.try(http.MethodPost, "/exec", map[string]any{"command": []string{"/bin/true"}, "timeoutMs": 600000}, &out); err != nil {
						mu.Lock()
						failed = err
						mu.Unlock()
						return
					}
				}
			})
		}
		wg.Wait()
		if failed != nil {
			x.b.Fatal(failed)
		}
		per := time.Since(start) / manyExecs
		x.note(execFigure{name: fmt.Sprintf("1,000 execs, %d callers, each", callers), unit: "ms", ours: ms(per), limit: ms(limit), note: "fork+exec here"})
	}
}

// line is one line of 5 MB, whole in the reply.
func (x *execBench) line() {
	const size = 5_000_000
	script := `head -c 5000000 /dev/zero | tr '\0' x`
	ours := medianOf(5, func() {
		out := x.run(60000, map[string]any{"maxOutputBytes": 8 * mib}, "sh", "-c", script)
		if len(out.Stdout) != size {
			x.b.Fatalf("%d bytes of the line came", len(out.Stdout))
		}
	})
	limit := medianOf(5, func() { localRun(x.b, "sh", "-c", script+" >/dev/null") })
	x.note(execFigure{name: "one line of 5 MB", unit: "ms", ours: ms(ours), limit: ms(limit), note: "the same script here"})
}

// gigabyte is 1 GiB of stdout: run to its end, kept, then read.
func (x *execBench) gigabyte() {
	socket := x.socketCopy(gib)
	stop := x.watchMemory()
	start := time.Now()
	out := x.run(600000, nil, "head", "-c", strconv.Itoa(gib), "/dev/zero")
	took := time.Since(start)
	if out.StdoutBytes != gib {
		x.b.Fatalf("%d bytes were counted", out.StdoutBytes)
	}
	x.note(execFigure{name: "1 GiB of stdout, kept", unit: "MiB/s", ours: gib / mib / took.Seconds(), limit: socket, moreIsBetter: true, note: "one socket copy here"})
	start = time.Now()
	x.download("/executions/"+out.ExecutionID+"/output?stream=stdout", gib)
	x.note(execFigure{name: "1 GiB of stdout, read", unit: "MiB/s", ours: gib / mib / time.Since(start).Seconds(), limit: socket, moreIsBetter: true, note: "one socket copy here"})
	x.note(execFigure{name: "server memory while it streams, most", unit: "MiB", ours: stop(), limit: 0})
}

func (x *execBench) download(path string, size int64) {
	x.b.Helper()
	res, err := x.client.Do(x.request(http.MethodGet, path, nil))
	if err != nil {
		x.b.Fatal(err)
	}
	defer res.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, make([]byte, copyBytes))
	if err != nil || n != size || res.StatusCode != http.StatusOK {
		x.b.Fatalf("%s: status %d, %d bytes, %v", path, res.StatusCode, n, err)
	}
}

// files writes and reads one large file.
func (x *execBench) files(size int64) {
	local := x.localCopy(size)
	name := fmt.Sprintf("%d MiB", size/mib)
	start := time.Now()
	r := x.request(http.MethodPut, "/files/content?path=big", io.LimitReader(zeros{}, size))
	r.ContentLength = size
	res, err := x.client.Do(r)
	if err != nil {
		x.b.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode/100 != 2 {
		x.b.Fatalf("write a file: %d %s %v", res.StatusCode, body, err)
	}
	x.note(execFigure{name: "file of " + name + ", up", unit: "MiB/s", ours: float64(size) / mib / time.Since(start).Seconds(), limit: local, moreIsBetter: true, note: "copy and sync here"})
	start = time.Now()
	x.download("/files/download?path=big", size)
	x.note(execFigure{name: "file of " + name + ", down", unit: "MiB/s", ours: float64(size) / mib / time.Since(start).Seconds(), limit: local, moreIsBetter: true, note: "copy and sync here"})
	x.run(60000, nil, "rm", "big")
}

// list lists a directory of many files.
func (x *execBench) list() {
	script := `mkdir many && cd many && seq 1 10000 | xargs touch`
	x.run(60000, nil, "sh", "-c", script)
	dir := x.b.TempDir()
	for i := range manyFiles {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			x.b.Fatal(err)
		}
	}
	ours := medianOf(5, func() {
		found, cursor := 0, ""
		for {
			var page struct {
				Files      []json.RawMessage
				NextCursor string
			}
			x.get("/files/list?path=many&limit=10000&cursor="+cursor, &page)
			found += len(page.Files)
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if found != manyFiles {
			x.b.Fatalf("%d files were listed", found)
		}
	})
	limit := medianOf(5, func() {
		entries, err := os.ReadDir(dir)
		if err != nil {
			x.b.Fatal(err)
		}
		for _, e := range entries {
			if _, err := e.Info(); err != nil {
				x.b.Fatal(err)
			}
		}
	})
	x.note(execFigure{name: "list 10,000 files", unit: "ms", ours: ms(ours), limit: ms(limit), note: "readdir and lstat here"})
}

func (x *execBench) get(path string, out any) {
	x.b.Helper()
	res, err := x.client.Do(x.request(http.MethodGet, path, nil))
	if err != nil {
		x.b.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == http.StatusOK {
		err = json.Unmarshal(b, out)
	}
	if err != nil || res.StatusCode != http.StatusOK {
		x.b.Fatalf("%s: %d %.300s %v", path, res.StatusCode, b, err)
	}
}

func (x *execBench) note(f execFigure) { x.rows = append(x.rows, f) }

// print shows the figures; a ratio above 1 is slower than the limit, below 1 less than
// its throughput.
func (x *execBench) print(w io.Writer) {
	fmt.Fprintf(w, "\n%-38s %10s %10s %8s  %s\n", "driver "+x.driver, "ours", "limit", "ratio", "limit is")
	for _, f := range x.rows {
		if f.limit == 0 {
			fmt.Fprintf(w, "%-38s %10.1f %10s %8s  %s\n", f.name+", "+f.unit, f.ours, "", "", f.note)
			continue
		}
		fmt.Fprintf(w, "%-38s %10.2f %10.2f %8.2f  %s\n", f.name+", "+f.unit, f.ours, f.limit, f.ours/f.limit, f.note)
	}
}
