package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// The first admin key is shown once. A start that fails before it is shown must
// not have made it, or nobody would ever get in.
func TestAStartThatFailsKeepsNoKeyBack(t *testing.T) {
	t.Setenv(rebuiltVariable, "1") // a test may be linked dynamically
	t.Setenv("SOJOURN_ADMIN_KEY", "")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	data := t.TempDir()
	for _, addr := range []string{taken.Addr().String(), "nonsense"} {
		r := runLine(t.Context(), "", "serve", "--data", data, "--driver", "none", "--listen", addr)
		if r.code != 1 || !strings.Contains(r.err, "listen") {
			t.Errorf("at %s it ended with %d: %s", addr, r.code, r.err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out lockedBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, stdio{out: &out, err: t.Output()}, []string{"--data", data, "--driver", "none", "--listen", "127.0.0.1:0"})
	}()
	for until := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), "session turn last"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it does not greet: %q", out.String())
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if got := out.String(); !strings.Contains(got, "Admin key") || !strings.Contains(got, "sjn_admin_") {
		t.Errorf("the key is not shown:\n%s", got)
	}
}
