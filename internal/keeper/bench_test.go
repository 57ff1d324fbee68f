package keeper_test

import (
	"fmt"
	"io"
	"os/exec"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

const benchBytes = 64 << 20

// BenchmarkLargeOutput reads a large output through process/read over a Unix
// socket; BenchmarkPlainCopy sends as much from the same program over such a
// socket without a protocol.
func BenchmarkLargeOutput(b *testing.B) {
	_, dial := serve(b, keeper.Config{})
	c := dial()
	b.SetBytes(benchBytes)
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprint(i)
		start(b, c, link.StartParams{
			ProcessID: id, Argv: []string{"head", "-c", fmt.Sprint(benchBytes), "/dev/zero"}, Retain: link.RetainAck,
		})
		got, after := 0, int64(0)
		for {
			r, err := c.Read(b.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
			if err != nil {
				b.Fatal(err)
			}
			for _, ch := range r.Chunks {
				got += len(ch.Data)
			}
			after = r.NextSeq - 1
			if err := c.Ack(b.Context(), id, after); err != nil {
				b.Fatal(err)
			}
			if r.Closed {
				break
			}
		}
		if got != benchBytes {
			b.Fatalf("%d bytes arrived", got)
		}
		if err := c.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPlainCopy(b *testing.B) {
	ln := listen(b)
	defer ln.Close()
	b.SetBytes(benchBytes)
	for b.Loop() {
		near, far := socketPair(b, ln)
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
		n, err := io.Copy(io.Discard, near)
		if err != nil || n != benchBytes || <-done != nil || cmd.Wait() != nil {
			b.Fatalf("%d bytes arrived, %v", n, err)
		}
		near.Close()
	}
}

// BenchmarkExec is the round trip of a start and the read that says exited;
// BenchmarkForkExec is what the same costs without a keeper.
func BenchmarkExec(b *testing.B) {
	_, dial := serve(b, keeper.Config{})
	c := dial()
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprint(i)
		start(b, c, link.StartParams{ProcessID: id, Argv: []string{"/bin/true"}})
		for after := int64(0); ; {
			r, err := c.Read(b.Context(), link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
			if err != nil {
				b.Fatal(err)
			}
			if r.Exited {
				break
			}
			after = r.NextSeq - 1
		}
		if err := c.Remove(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		cmd := exec.Command("/bin/true")
		var out, errs discard
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// discard is a writer that exec gives a pipe, as the keeper does.
type discard struct{}

func (*discard) Write(p []byte) (int, error) { return len(p), nil }
