package keeper

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/sojourn-dev/sojourn/internal/link"
)

// TestStreamPassesOnWhatThereIs: a program that copies a connection must not keep what
// has come until there is more. That is so with a slot, too.
func TestStreamPassesOnWhatThereIs(t *testing.T) {
	for name, to := range map[string]func(stream) io.ReaderFrom{
		"alone":  func(w stream) io.ReaderFrom { return w },
		"placed": func(w stream) io.ReaderFrom { s := make(slots, 1); s <- struct{}{}; return slottedWriter{s, w} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sp := newSpool(true, defaultAckBytes)
				r, w := io.Pipe()
				done := make(chan error, 1)
				go func() {
					_, err := to(stream{sp, link.Stdout}).ReadFrom(r)
					done <- err
				}()
				for _, said := range []string{"a question", ", another"} {
					before := sp.offset
					if _, err := w.Write([]byte(said)); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // until the copy waits for more
					if got := sp.offset - before; got != int64(len(said)) {
						t.Errorf("of %q %d bytes are passed on", said, got)
					}
				}
				w.Close()
				if err := <-done; err != nil {
					t.Errorf("ReadFrom = %v at the end", err)
				}
			})
		})
	}
}
