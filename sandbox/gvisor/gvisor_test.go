package gvisor_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
)

func TestMain(m *testing.M) {
	if gvisor.IsReexec(os.Args) {
		gvisor.Main()
	}
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func TestSpike(t *testing.T) {
	exe, _ := os.Executable()
	d, err := gvisor.Open(gvisor.Config{Dir: t.TempDir(), Executable: exe})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		t0 := time.Now()
		sb, err := d.Create(t.Context(), sandbox.Spec{Session: "a", Epoch: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("create", time.Since(t0))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := sb.Dial(ctx)
		t.Log("dial", time.Since(t0), err)
		if err != nil {
			t.Fatal(err)
		}
		cl, err := link.Open(ctx, link.Framed(c), link.Options{Epoch: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("open", time.Since(t0), err)
		err = cl.Start(ctx, link.StartParams{ProcessID: "1", Argv: []string{"sh", "-c", "id; ls -la / /workspace; cat /proc/mounts; cat /proc/1/environ; ip a; env"}, Cwd: "/workspace"})
		t.Log("start", time.Since(t0), err)
		r, err := cl.Read(ctx, link.ReadParams{ProcessID: "1", Wait: 5 * time.Second})
		t.Log("read", time.Since(t0), err)
		for _, c := range r.Chunks {
			t.Logf("%s", c.Data)
		}
		cl.Close()
		t0 = time.Now()
		t.Log(sb.Destroy(ctx), time.Since(t0))
	}
}
