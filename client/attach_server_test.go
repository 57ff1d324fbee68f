package client_test

import (
	"bytes"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/client"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// bareServer is a server with a started session that takes execs, which are
// programs of the host.
func bareServer(t testing.TB) (*servertest.Server, *client.Client, string) {
	t.Helper()
	s := servertest.Start(t, servertest.Config{HostPrograms: true})
	c, err := client.New(client.Config{URL: s.URL, Key: servertest.AdminKey})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.CreateSession(t.Context(), client.CreateSession{Contract: "exec"})
	if err == nil {
		_, err = c.StartSession(t.Context(), made.Session.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, c, made.Session.ID
}

func TestAttachOutlivesTheServer(t *testing.T) {
	s, c, id := bareServer(t)
	x, err := c.StartExecution(t.Context(), id, client.StartExecution{Command: []string{"sh", "-c", "cat; exit 7"}, Stdin: "stream"})
	if err != nil {
		t.Fatal(err)
	}
	// Half of the input is sent, then the server goes away, then the rest is.
	all := pattern(3 << 20)
	half, rest := bytes.NewReader(all[:len(all)/2]), bytes.NewReader(all[len(all)/2:])
	feed, write := io.Pipe()
	var out bytes.Buffer
	came := make(chan struct{}, 1)
	go func() {
		io.Copy(write, half)
		<-came
		s.Restart()
		io.Copy(write, rest)
		write.Close()
	}()
	cuts := 0
	end, err := c.Attach(t.Context(), client.Attach{
		Session: id, Execution: x.Execution.ID, Stdin: feed,
		Stdout: writerFunc(func(p []byte) (int, error) {
			select {
			case came <- struct{}{}:
			default:
			}
			return out.Write(p)
		}),
		OnCut: func(error) { cuts++ },
	})
	if err != nil || end.ExitCode == nil || *end.ExitCode != 7 {
		t.Fatalf("ended with %+v, %v", end, err)
	}
	if !bytes.Equal(out.Bytes(), all) || cuts == 0 {
		t.Errorf("%d bytes came of %d, or others; %d cuts", out.Len(), len(all), cuts)
	}
	var again bytes.Buffer
	n, err := c.CopyOutput(t.Context(), client.OutputQuery{Session: id, Execution: x.Execution.ID, Stream: "stdout", Offset: 1 << 20, Follow: true}, &again)
	if err != nil || n != 2<<20 || !bytes.Equal(again.Bytes(), all[1<<20:]) {
		t.Errorf("from 1 MiB on %d bytes came, or others (%v)", n, err)
	}
}

// BenchmarkAttach carries 64 MiB of output from a program to its caller, beside
// the same over a loopback connection.
func BenchmarkAttach(b *testing.B) {
	_, c, id := bareServer(b)
	const size = 64 << 20
	b.SetBytes(size)
	var floor, ours time.Duration
	for b.Loop() {
		floor += overLoopback(b, size)
		began := time.Now()
		x, err := c.StartExecution(b.Context(), id, client.StartExecution{Command: []string{"head", "-c", "67108864", "/dev/zero"}})
		if err != nil {
			b.Fatal(err)
		}
		var n int
		end, err := c.Attach(b.Context(), client.Attach{
			Session: id, Execution: x.Execution.ID,
			Stdout: writerFunc(func(p []byte) (int, error) { n += len(p); return len(p), nil }),
		})
		if err != nil || n != size {
			b.Fatalf("%d bytes came; %+v, %v", n, end, err)
		}
		ours += time.Since(began)
	}
	b.ReportMetric(ours.Seconds()/floor.Seconds(), "x-of-loopback")
}

// overLoopback sends bytes over a TCP connection to this machine.
func overLoopback(b *testing.B, size int64) time.Duration {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	go func() {
		to, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return
		}
		defer to.Close()
		piece := make([]byte, 256<<10)
		for sent := int64(0); sent < size; sent += int64(len(piece)) {
			if _, err := to.Write(piece); err != nil {
				return
			}
		}
	}()
	from, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer from.Close()
	if n, err := io.Copy(io.Discard, from); err != nil || n != size {
		b.Fatalf("%d bytes came (%v)", n, err)
	}
	return time.Since(began)
}

// BenchmarkExec runs a program that does nothing and waits for its end, beside
// running it here.
func BenchmarkExec(b *testing.B) {
	_, c, id := bareServer(b)
	var floor, ours time.Duration
	for b.Loop() {
		began := time.Now()
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
		floor += time.Since(began)
		began = time.Now()
		x, err := c.StartExecution(b.Context(), id, client.StartExecution{Command: []string{"true"}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Attach(b.Context(), client.Attach{Session: id, Execution: x.Execution.ID}); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(began)
	}
	b.ReportMetric(ours.Seconds()/floor.Seconds(), "x-of-fork-exec")
}
