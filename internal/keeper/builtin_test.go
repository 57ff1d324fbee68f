package keeper_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// feed starts a builtin, gives it input and follows it to its end.
func feed(t *testing.T, c *link.Client, input []byte, argv ...string) outcome {
	t.Helper()
	id := rand.Text()
	start(t, c, link.StartParams{ProcessID: id, Argv: argv, PipeStdin: true, Retain: link.RetainAck})
	for piece := range slices.Chunk(input, 64<<10) {
		if err := c.Write(t.Context(), id, "", piece); errors.Is(err, link.ErrStdinClosed) {
			break // it has seen enough
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CloseStdin(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return follow(t, c, id)
}

func TestTarAndUntarCarryATree(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	dir := t.TempDir()
	src := filepath.Join(dir, "src\xff")
	big := bytes.Repeat([]byte("0123456789abcdef"), 300_000) // more than a spool holds
	for _, err := range []error{os.Mkdir(src, 0o755), os.WriteFile(filepath.Join(src, "big"), big, 0o640), os.Symlink("big", filepath.Join(src, "l"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	archive := feed(t, c, nil, link.ProgramTar, link.PathURI(src))
	wantCode(t, archive, 0)
	wantCode(t, feed(t, c, archive.out["stdout"], link.ProgramUntar, filepath.Join(dir, "new"), link.PathURI("/src\xff")), 0)
	got, err := os.ReadFile(filepath.Join(dir, "new", "l"))
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("came back with %d bytes (%v), want %d", len(got), err, len(big))
	}
	wantCode(t, feed(t, c, archive.out["stdout"], link.ProgramUntar, filepath.Join(dir, "deep", "er")), 0)
	if _, err := os.Stat(filepath.Join(dir, "deep", "er", "src\xff", "big")); err != nil {
		t.Error(err)
	}
}

func TestBuiltinsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	dir := t.TempDir()
	for _, test := range []struct {
		argv  []string
		input string
		code  int
		says  string
	}{
		{[]string{link.ProgramTar, dir + "/none"}, "", 2, "no such file"},
		{[]string{link.ProgramTar, "relative"}, "", 2, "not absolute"},
		{[]string{link.ProgramTar, "/"}, "", 2, "root directory"},
		{[]string{link.ProgramTar}, "", 2, "usage"},
		{[]string{link.ProgramUntar, dir}, "this is no archive, whatever it may be" + strings.Repeat(".", 1000), 2, "no tar archive"},
		{[]string{link.ProgramUntar, dir + "/none/x", "/top"}, "", 2, "no such file"},
		{[]string{link.ProgramDial, "93.184.216.34:80"}, "", 1, "not in the sandbox"},
		{[]string{link.ProgramDial, "localhost.example.com:80"}, "", 1, "not in the sandbox"},
		{[]string{link.ProgramDial, "[::ffff:10.0.0.1]:80"}, "", 1, "not in the sandbox"},
		{[]string{link.ProgramDial, "127.0.0.1"}, "", 1, "no HOST:PORT"},
		{[]string{link.ProgramDial, fmt.Sprintf("127.0.0.1:%d", freePort(t))}, "", 1, "connection refused"},
	} {
		o := feed(t, c, []byte(test.input), test.argv...)
		if got := string(o.out["stderr"]); o.ExitCode == nil || *o.ExitCode != test.code || !strings.Contains(got, test.says) {
			t.Errorf("%q ended with %+v and %q, want code %d and %q", test.argv, o.ReadResult, got, test.code, test.says)
		}
	}
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestNobodyStandsInForABuiltin(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{Programs: map[string]keeper.Program{
		link.ProgramTar: func(_ context.Context, p keeper.Proc) int { fmt.Fprint(p.Stdout, "mine"); return 0 },
	}})
	c := dial()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sojourn:other"), []byte("#!/bin/sh\necho mine\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := feed(t, c, nil, link.ProgramTar, dir)
	if wantCode(t, o, 0); string(o.out["stdout"]) == "mine" {
		t.Error("a program of the configuration ran in the place of a builtin")
	}
	_, real := serve(t, keeper.Config{})
	c = real()
	o = run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"sojourn:other"}, Env: map[string]string{"PATH": dir}})
	if o.Failure == "" || len(o.out) != 0 {
		t.Errorf("a file of the sandbox ran under a builtin's name: %q, %+v", o.out, o.ReadResult)
	}
}

func TestDialCarriesBothWaysAndHalfCloses(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn) // to the half close
		fmt.Fprintf(conn, "%d bytes", len(all))
	}()
	o := feed(t, c, make([]byte, 3<<20), link.ProgramDial, fmt.Sprintf("localhost:%d", l.Addr().(*net.TCPAddr).Port))
	wantCode(t, o, 0)
	if string(o.out["stdout"]) != "3145728 bytes" || string(o.out["stderr"]) != "connected\n" {
		t.Errorf("dial said %q", o.out)
	}
}

func TestKilledUntarLeavesNoHalfFile(t *testing.T) {
	t.Parallel()
	_, dial := serve(t, keeper.Config{})
	c := dial()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	archive := feed(t, c, nil, link.ProgramTar, filepath.Join(dir, "f")).out["stdout"]
	to := filepath.Join(dir, "to")
	start(t, c, link.StartParams{ProcessID: "p", Argv: []string{link.ProgramUntar, to}, PipeStdin: true})
	if err := c.Write(t.Context(), "p", "", archive[:len(archive)/2]); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a file under way", func() bool { list, _ := os.ReadDir(to); return len(list) == 1 })
	if err := c.Remove(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the half file to go", func() bool { list, err := os.ReadDir(to); return err == nil && len(list) == 0 })
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for ends := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(ends) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestFollowedSpoolWaitsForItsReaderAndForNobodyElse(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		flood := link.StartParams{ProcessID: "p", Argv: []string{"flood"}, Retain: link.RetainFollow, SpoolBytes: 1 << 20}
		start(t, c, flood)
		var after, got int64
		for { // a reader that takes its time between reads misses nothing
			r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "p", AfterSeq: after, MaxBytes: 256 << 10, Wait: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			for _, ch := range r.Chunks {
				if ch.Offset != got {
					t.Fatalf("a chunk begins at %d, want %d", ch.Offset, got)
				}
				got += int64(len(ch.Data))
			}
			if after = r.NextSeq - 1; r.Closed {
				break
			}
			time.Sleep(9 * time.Second)
		}
		if got != 10<<20 {
			t.Errorf("read %d bytes, want all %d", got, 10<<20)
		}
		began := time.Now()
		flood.ProcessID = "q"
		start(t, c, flood)
		exited := false
		for !exited { // looking is not reading
			time.Sleep(time.Second)
			list, err := c.Processes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list {
				exited = exited || p.ProcessID == "q" && p.Closed
			}
		}
		if waited := time.Since(began); waited < 10*time.Second || waited > 15*time.Second {
			t.Errorf("without a reader it took %v, want the grace of 10 s", waited)
		}
		r, err := c.Read(t.Context(), link.ReadParams{ProcessID: "q", MaxBytes: 8 << 20})
		if err != nil || !r.Closed || r.DroppedBytes < 8<<20 || len(r.Chunks) < 10 {
			t.Errorf("read %d chunks, dropped %d (%v), want the newest and no more", len(r.Chunks), r.DroppedBytes, err)
		}
	})
}
