package keeper_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// The benchmarks run against a keeper in a process of its own, PID 1 where that is
// possible, over a Unix socket. Each times its limit in the same run, in turns with
// what it measures, and reports how many times that it takes.

// benchBytes is large enough for the start of a process not to count.
const benchBytes = 256 << 20

func benchPeer(b *testing.B) (*link.Peer, *versus) {
	b.Helper()
	d := launchKeeper(b, os.Geteuid() == 0)
	return d.peer(3), &versus{keeper: d.cmd.Process.Pid}
}

// versus times what is measured and its limit in turns, by the clock and by the
// processor time of this process, the keeper and their children. The second is
// what counts on a machine with other work.
type versus struct {
	keeper              int
	ours, limit         time.Duration
	oursUsed, limitUsed time.Duration
}

func (v *versus) loop(b *testing.B, ours, limit func()) {
	for b.Loop() {
		began, used := time.Now(), v.used(b)
		ours()
		v.ours, v.oursUsed = v.ours+time.Since(began), v.oursUsed+v.used(b)-used
		b.StopTimer()
		began, used = time.Now(), v.used(b)
		limit()
		v.limit, v.limitUsed = v.limit+time.Since(began), v.limitUsed+v.used(b)-used
		b.StartTimer()
	}
	b.ReportMetric(float64(v.ours)/float64(v.limit), "x-of-limit")
	b.ReportMetric(float64(v.oursUsed)/float64(v.limitUsed), "cpu-x-of-limit")
	b.ReportMetric(v.peak(b), "keeper-MiB")
}

// peak is the most memory that the keeper had resident.
func (v *versus) peak(b *testing.B) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.keeper))
	if err != nil {
		b.Fatal(err)
	}
	var kib int
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.Fatal(err)
	}
	return float64(kib) / 1024
}

// used is the processor time so far.
func (v *versus) used(b *testing.B) time.Duration {
	var sum int64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += u.Utime.Nano() + u.Stime.Nano()
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.keeper))
	if err != nil {
		b.Fatal(err)
	}
	const first, ticks = 11, 100 // after the name; a second has 100 on every Linux
	for _, f := range strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[first : first+4] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += n * int64(time.Second) / ticks
	}
	return time.Duration(sum)
}

// BenchmarkRun is a short process from start to end, in one round trip, and
// forgotten after it. Its limit is a local fork and exec of the same.
func BenchmarkRun(b *testing.B) {
	p, v := benchPeer(b)
	n := 0
	v.loop(b, func() { n++; runTrue(b, p, fmt.Sprint(n)) }, func() { forkTrue(b) })
}

func runTrue(b *testing.B, p *link.Peer, id string) {
	r, err := p.Run(b.Context(), link.StartParams{ProcessID: id, Argv: []string{"/bin/true"}, Cwd: "/", Retain: link.RetainAck},
		link.ReadParams{Wait: link.MaxWait, Gather: time.Second})
	if err != nil || !r.Closed || r.ExitCode == nil || *r.ExitCode != 0 {
		b.Errorf("run = %+v, %v", r, err)
	}
	r.Release()
	if err := p.Forget(b.Context(), id); err != nil {
		b.Error(err)
	}
}

func forkTrue(b *testing.B) {
	cmd := exec.Command("/bin/true")
	cmd.Dir, cmd.Env = "/", []string{}
	var out, errs discard
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		b.Error(err)
	}
}

// discard is a writer that exec gives a pipe, as the keeper does.
type discard struct{}

func (*discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkRunParallel is 64 of them, in 8 and 64 lanes.
func BenchmarkRunParallel(b *testing.B) {
	for _, lanes := range []int{8, 64} {
		b.Run(fmt.Sprint(lanes), func(b *testing.B) {
			p, v := benchPeer(b)
			round := 0
			v.loop(b, func() {
				round++
				inLanes(lanes, func(i int) { runTrue(b, p, fmt.Sprintf("%d-%d", round, i)) })
			}, func() { inLanes(lanes, func(int) { forkTrue(b) }) })
		})
	}
}

func inLanes(lanes int, do func(i int)) {
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			for i := lane; i < 64; i += lanes {
				do(i)
			}
		})
	}
	wg.Wait()
}

// BenchmarkOutput reads what a process writes. Its limit is the same process whose
// output is copied through a Unix socket without a protocol.
func BenchmarkOutput(b *testing.B) {
	p, v := benchPeer(b)
	b.SetBytes(benchBytes)
	n := 0
	v.loop(b, func() { n++; readAll(b, p, fmt.Sprint(n)) }, func() { copyOutput(b) })
}

func readAll(b *testing.B, p *link.Peer, id string) {
	r, err := p.Run(b.Context(), link.StartParams{
		ProcessID: id, Argv: []string{"head", "-c", fmt.Sprint(benchBytes), "/dev/zero"}, Env: env(), Cwd: "/", Retain: link.RetainAck,
	}, link.ReadParams{Wait: link.MaxWait, Gather: 5 * time.Millisecond})
	got := 0
	for err == nil {
		for _, ch := range r.Chunks {
			got += len(ch.Data)
		}
		if r.Closed {
			break
		}
		after := r.NextSeq - 1
		r.Release()
		r, err = p.Read(b.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Ack: after, Wait: link.MaxWait, Gather: 5 * time.Millisecond})
	}
	if err != nil || got != benchBytes {
		b.Fatalf("%d bytes arrived, %v", got, err)
	}
	r.Release()
	if err := p.Forget(b.Context(), id); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkInput writes to a process that reads and forgets it. Its limit is the
// same process fed from a Unix socket without a protocol.
func BenchmarkInput(b *testing.B) {
	p, v := benchPeer(b)
	b.SetBytes(benchBytes)
	piece := make([]byte, 1<<20)
	n := 0
	v.loop(b, func() {
		n++
		id := fmt.Sprint(n)
		err := p.Start(b.Context(), link.StartParams{ProcessID: id, Argv: []string{"sh", "-c", "exec cat >/dev/null"}, Env: env(), Cwd: "/", PipeStdin: true})
		for i := 0; i < benchBytes/len(piece) && err == nil; i++ {
			err = p.Write(b.Context(), id, fmt.Sprint(i), piece)
		}
		if err == nil {
			err = p.CloseStdin(b.Context(), id)
		}
		for r := (link.ReadResult{NextSeq: 1}); err == nil && !r.Closed; {
			r, err = p.Read(b.Context(), link.ReadParams{ProcessID: id, AfterSeq: r.NextSeq - 1, Wait: link.MaxWait})
		}
		if err != nil {
			b.Fatal(err)
		}
	}, func() { copyInput(b) })
}

// copyInput feeds a process through a Unix socket.
func copyInput(b *testing.B) {
	ln := listen(b)
	defer ln.Close()
	near, far := socketPair(b, ln)
	cmd := exec.Command("sh", "-c", "exec cat >/dev/null")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- send(far, benchBytes) }()
	n, err := io.CopyBuffer(struct{ io.Writer }{in}, struct{ io.Reader }{near}, make([]byte, 64<<10))
	near.Close()
	in.Close()
	if err != nil || n != benchBytes || <-done != nil || cmd.Wait() != nil {
		b.Fatalf("%d bytes arrived, %v", n, err)
	}
}

// BenchmarkFiles writes a file of 16 MiB and reads it again. Its limit is a copy of
// as many bytes through a socket, each way.
func BenchmarkFiles(b *testing.B) {
	p, v := benchPeer(b)
	name := b.TempDir() + "/file"
	data := make([]byte, link.MaxFileBytes)
	b.SetBytes(2 * link.MaxFileBytes)
	v.loop(b, func() {
		if err := p.WriteFile(b.Context(), name, data); err != nil {
			b.Fatal(err)
		}
		if got, err := p.ReadFile(b.Context(), name); err != nil || len(got) != len(data) {
			b.Fatalf("read %d bytes, %v", len(got), err)
		}
	}, func() { copySocket(b, 2*link.MaxFileBytes) })
}

// copyOutput sends the output of a process through a Unix socket.
func copyOutput(b *testing.B) {
	ln := listen(b)
	defer ln.Close()
	near, far := socketPair(b, ln)
	defer near.Close()
	cmd := exec.Command("head", "-c", fmt.Sprint(benchBytes), "/dev/zero")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		// The struct hides what would let the kernel splice.
		_, err := io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{out}, make([]byte, 64<<10))
		far.Close()
		done <- err
	}()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{near}, make([]byte, 64<<10))
	if err != nil || n != benchBytes || <-done != nil || cmd.Wait() != nil {
		b.Fatalf("%d bytes arrived, %v", n, err)
	}
}

// copySocket sends n bytes through a Unix socket, in the pieces in which output
// is read.
func copySocket(b *testing.B, n int) {
	ln := listen(b)
	defer ln.Close()
	near, far := socketPair(b, ln)
	defer near.Close()
	done := make(chan error, 1)
	go func() {
		done <- send(far, n)
	}()
	got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{near}, make([]byte, 64<<10))
	if err != nil || got != int64(n) {
		b.Fatalf("%d bytes arrived, %v", got, err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func send(to net.Conn, n int) error {
	defer to.Close()
	piece := make([]byte, 64<<10)
	for ; n > 0; n -= len(piece) {
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
