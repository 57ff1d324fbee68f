package keeper

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAPipeGrowsUnderMuchOutput: then and not before, and every byte comes through.
func TestAPipeGrowsUnderMuchOutput(t *testing.T) {
	read, far, err := pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := nonblock(read); err != nil {
		t.Fatal(err)
	}
	room := func() int {
		n, err := unix.FcntlInt(uintptr(far), unix.F_GETPIPE_SZ, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	small := room()
	for _, size := range []int{grownBytes, small} {
		if _, err := unix.FcntlInt(uintptr(far), unix.F_SETPIPE_SZ, size); err != nil {
			t.Skipf("SKIPPED: a pipe cannot be made larger here: %v", err)
		}
	}
	sp := newSpool(false, chunkBytes)
	p, err := newPump(os.NewFile(uintptr(read), "out"), stream{sp, "stdout"})
	if err != nil {
		t.Fatal(err)
	}
	go p.run()
	written := 0
	for piece := make([]byte, chunkBytes); written < growAfter+2*small+chunkBytes; {
		if written < growAfter && room() != small {
			t.Fatalf("the pipe has room for %d bytes after %d, want %d", room(), written, small)
		}
		n, err := unix.Write(far, piece)
		if err != nil {
			t.Fatal(err)
		}
		written += n
	}
	// All but what fits into the small pipe has been read, and something after it grew.
	if room() < grownBytes {
		t.Errorf("the pipe has room for %d bytes after %d, want %d", room(), written, grownBytes)
	}
	unix.Close(far)
	<-p.settled
	if sp.offset != int64(written) {
		t.Errorf("%d bytes came of %d", sp.offset, written)
	}
}
