package output_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// TestMain is also the process that TestKilledProcessLosesNothingDurable kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("OUTPUT_TEST_WRITE"); dir != "" {
		if err := writeUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// killed are the chunks that a writer appends until it is killed.
func killed() []chunk { return chunks(10, 3000, 2000) }

// writeUntilKilled appends them again and again, and says after each chunk how much is durable.
func writeUntilKilled(dir string) error {
	s, err := output.Open(dir, output.Config{InlineBytes: 512, MinFree: 1})
	if err != nil {
		return err
	}
	w, err := s.Writer("session", "exec")
	if err != nil {
		return err
	}
	for offset := int64(0); ; {
		for _, c := range killed() {
			if err := w.Append(offset, c.stderr, c.data); err != nil {
				return err
			}
			offset += int64(len(c.data))
			fmt.Println(w.Durable())
		}
	}
}

// TestKilledProcessLosesNothingDurable kills a real writer at any moment.
func TestKilledProcessLosesNothingDurable(t *testing.T) {
	t.Parallel()
	all := modelOf(killed())
	for _, after := range []int{1, 7, 60, 400, 1500} {
		dir := filepath.Join(t.TempDir(), "outputs")
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "OUTPUT_TEST_WRITE="+dir)
		child.Stderr = os.Stderr
		said, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		durable, lines := int64(0), bufio.NewScanner(said)
		for n := 0; lines.Scan(); n++ { // and after the kill, what the pipe still holds
			if durable, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				t.Fatal(err)
			}
			if n == after {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := child.Wait(); err == nil {
			t.Fatal("the writer came to an end by itself")
		}
		s := reopen(t, dir, output.Config{InlineBytes: 512})
		w := writer(t, s, "exec")
		total := w.Total()
		if total < durable {
			t.Fatalf("after a kill %d bytes are there, %d were durable", total, durable)
		}
		for int64(len(all.all)) < total { // the writer began again
			for _, c := range killed() {
				all.add(c)
			}
		}
		live := reader(t, s, "exec", nil)
		w.Close()
		check(t, live, all.prefix(total), 0)
	}
}
