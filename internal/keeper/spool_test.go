package keeper_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

func held(t *testing.T, c *link.Client, id string) link.Process {
	t.Helper()
	list, err := c.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.ProcessID == id {
			return p
		}
	}
	t.Fatalf("process %s is not listed", id)
	return link.Process{}
}

// TestFullSpoolStopsProcess: with retain ack the process waits in its write
// when nobody acknowledges, and every byte arrives in the end.
func TestFullSpoolStopsProcess(t *testing.T) {
	const limit = 1 << 20
	total := 100 << 20
	if testing.Short() {
		total = 10 << 20
	}
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{
		ProcessID: "p", Argv: []string{"head", "-c", fmt.Sprint(total), "/dev/zero"}, Retain: link.RetainAck, SpoolBytes: limit,
	})
	var last int64
	for stable := 0; stable < 10; time.Sleep(10 * time.Millisecond) { // nothing but time shows that it has stopped
		p := held(t, c, "p")
		if p.HeldBytes > limit+64<<10 {
			t.Fatalf("%d bytes held, limit %d", p.HeldBytes, limit)
		}
		if p.HeldBytes != last || last == 0 {
			last, stable = p.HeldBytes, 0
		}
		stable++
	}
	if p := held(t, c, "p"); p.Exited {
		t.Fatal("the process ended although its output was not taken")
	}
	o := follow(t, c, "p")
	wantCode(t, o, 0)
	if got := len(o.out["stdout"]); got != total {
		t.Fatalf("%d bytes arrived, want %d", got, total)
	}
	if p := held(t, c, "p"); p.HeldBytes != 0 {
		t.Fatalf("%d bytes held after the last ack", p.HeldBytes)
	}
}

// TestFullSpoolOutlivesDrain: the process has ended but its last bytes are
// still in the pipe when the drain time is over.
func TestFullSpoolOutlivesDrain(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", "sleep 300 & head -c 60000 /dev/zero; printf END"},
		Retain: link.RetainAck, SpoolBytes: 4096,
	})
	r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", Wait: link.MaxWait})
	for err == nil && !r.Exited {
		r, err = c.Read(t.Context(), link.ReadParams{ProcessID: "p", AfterSeq: r.NextSeq - 1, Wait: link.MaxWait})
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond) // longer than the drain
	o := follow(t, c, "p")
	if got := o.out["stdout"]; len(got) != 60003 || !bytes.HasSuffix(got, []byte("END")) {
		t.Fatalf("%d bytes, ending in %q", len(got), got[max(0, len(got)-3):])
	}
}

func TestRingReportsWhatItDropped(t *testing.T) {
	const total, limit = 4 << 20, 256 << 10
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{
		ProcessID: "p", Argv: []string{"sh", "-c", "head -c 4194304 /dev/zero; printf END"}, SpoolBytes: limit,
	})
	for !held(t, c, "p").Closed {
		time.Sleep(5 * time.Millisecond)
	}
	r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", MaxBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, ch := range r.Chunks {
		got = append(got, ch.Data...)
	}
	first := r.Chunks[0]
	if r.DroppedBytes == 0 || r.FirstSeq < 2 || first.Seq != r.FirstSeq || first.Offset != r.DroppedBytes {
		t.Fatalf("dropped %d, first %d, chunk %d at %d", r.DroppedBytes, r.FirstSeq, first.Seq, first.Offset)
	}
	if int64(len(got))+r.DroppedBytes != total+3 || !bytes.HasSuffix(got, []byte("END")) || len(got) > limit+64<<10 {
		t.Fatalf("%d bytes kept and %d dropped, of %d", len(got), r.DroppedBytes, total+3)
	}
}

// TestTinyWritesAreCheap: single bytes are joined to larger chunks while
// nobody reads, and a reader that is there gets them as they come.
func TestTinyWritesAreCheap(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{
		ProcessID: "p", Argv: []string{"dd", "if=/dev/zero", "bs=1", "count=20000", "status=none"}, Retain: link.RetainAck, SpoolBytes: 64 << 10,
	})
	for !held(t, c, "p").Closed {
		time.Sleep(5 * time.Millisecond)
	}
	if p := held(t, c, "p"); p.HeldBytes != 20000 || p.NextSeq > 5 {
		t.Fatalf("%d bytes held, next seq %d; want 20000 bytes in one chunk", p.HeldBytes, p.NextSeq)
	}
}

// TestChunkNeverChanges: what was read once reads the same again.
func TestChunkNeverChanges(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"cat"}, PipeStdin: true, Retain: link.RetainAck})
	seen := make(map[int64]string)
	for i, text := range []string{"a", "b", "c"} {
		if err := c.Write(t.Context(), "p", text, []byte(text)); err != nil {
			t.Fatal(err)
		}
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", AfterSeq: int64(i), Wait: link.MaxWait})
		if err != nil || len(r.Chunks) != 1 {
			t.Fatalf("read = %+v, %v", r, err)
		}
		seen[r.Chunks[0].Seq] = string(r.Chunks[0].Data)
		all, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p"})
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range all.Chunks {
			if seen[ch.Seq] != string(ch.Data) {
				t.Fatalf("chunk %d was %q and is %q", ch.Seq, seen[ch.Seq], ch.Data)
			}
		}
	}
}

func TestMaxBytesCutsBetweenChunks(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"seq", "1", "100000"}, Retain: link.RetainAck})
	for !held(t, c, "p").Closed {
		time.Sleep(5 * time.Millisecond)
	}
	var got strings.Builder
	var after int64
	reads := 0
	for {
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", AfterSeq: after, MaxBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		reads++
		for _, ch := range r.Chunks {
			got.Write(ch.Data)
		}
		after = r.NextSeq - 1
		if r.Closed {
			break
		}
		if len(r.Chunks) != 1 {
			t.Fatalf("read %d: %d chunks, want one", reads, len(r.Chunks))
		}
	}
	if got.Len() != 588895 {
		t.Fatalf("%d bytes in %d reads", got.Len(), reads)
	}
}

func TestRemovedProcessIsUnknown(t *testing.T) {
	_, dial := serve(t, keeper.Config{})
	c := dial()
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sleep", "300"}})
	polled := make(chan error, 1)
	go func() {
		_, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", Wait: link.MaxWait})
		polled <- err
	}()
	if err := c.Remove(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if err := <-polled; !errors.Is(err, link.ErrUnknownProcess) {
		t.Fatalf("open read = %v, want ErrUnknownProcess", err)
	}
	if err := c.Remove(t.Context(), "p"); !errors.Is(err, link.ErrUnknownProcess) {
		t.Fatalf("second remove = %v, want ErrUnknownProcess", err)
	}
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{"true"}})
	wantCode(t, follow(t, c, "p"), 0)
}
