package fake_test

import (
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
	"github.com/sojourn-dev/sojourn/sandbox/fake"
	"github.com/sojourn-dev/sojourn/sandbox/sandboxtest"
)

func TestSuite(t *testing.T) {
	var mu sync.Mutex
	drivers := make(map[string]*fake.Driver) // the driver is its own machine: one a directory
	open := func(dir string) (sandbox.Driver, error) {
		mu.Lock()
		defer mu.Unlock()
		if drivers[dir] == nil {
			drivers[dir] = fake.New(fake.Config{Dir: dir, Programs: sandboxtest.Programs})
		}
		return drivers[dir], nil
	}
	sandboxtest.Run(t, sandboxtest.Suite{Open: open, InProcess: true})
}

// bubble runs f in a bubble with a driver that is shut down at the end.
func bubble(t *testing.T, f func(*testing.T, *fake.Driver)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := fake.New(fake.Config{Dir: dir, Programs: sandboxtest.Programs})
		defer d.Shutdown()
		f(t, d)
	})
}

func connect(t *testing.T, sb sandbox.Sandbox) *link.Client {
	t.Helper()
	conn, err := sb.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := link.Open(t.Context(), link.Framed(conn), link.Options{Epoch: sb.Handle().Epoch})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFreezeStopsAnswersAndThawBringsThem(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver) {
		sb, err := d.Create(t.Context(), sandbox.Spec{Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		c := connect(t, sb)
		defer c.Close()
		if n := d.Freeze("s"); n != 1 {
			t.Fatalf("Freeze = %d, want 1", n)
		}
		answered := make(chan error, 1)
		go func() { _, err := c.Info(t.Context()); answered <- err }()
		time.Sleep(30 * time.Second) // shorter than the link's patience
		synctest.Wait()
		select {
		case err := <-answered:
			t.Errorf("a frozen sandbox answered: %v", err)
		default:
		}
		d.Thaw("s")
		if err := <-answered; err != nil {
			t.Errorf("after Thaw: %v", err)
		}
	})
}

func TestKillEndsSandboxAndCutDoesNot(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver) {
		sb, err := d.Create(t.Context(), sandbox.Spec{Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		c := connect(t, sb)
		d.Cut("s")
		<-c.Done()
		c.Close()
		c = connect(t, sb)
		defer c.Close()
		d.Freeze("s")
		d.Kill("s")
		<-sb.Done()
		if err := sb.Err(); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Err = %v, want ErrGone", err)
		}
		<-c.Done()
	})
}

func TestFaults(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver) {
		bad := errors.New("no room")
		spec := sandbox.Spec{Session: "s", Epoch: 1}

		d.SetFaults(fake.Faults{CreateErr: bad, CreateDelay: time.Minute})
		began := time.Now()
		if _, err := d.Create(t.Context(), spec); !errors.Is(err, bad) || time.Since(began) != time.Minute {
			t.Errorf("Create = %v after %v, want %v after a minute", err, time.Since(began), bad)
		}
		if hs, _ := d.List(t.Context()); len(hs) != 0 {
			t.Errorf("List = %+v, want none", hs)
		}

		d.SetFaults(fake.Faults{CreateHalf: true})
		if _, err := d.Create(t.Context(), spec); err == nil {
			t.Error("Create with CreateHalf worked")
		}
		hs, err := d.List(t.Context())
		if err != nil || len(hs) != 1 {
			t.Fatalf("List = %+v, %v, want the half-made sandbox", hs, err)
		}
		if _, err := d.Recover(t.Context(), hs[0]); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Recover of a half-made sandbox = %v, want ErrGone", err)
		}

		d.SetFaults(fake.Faults{DestroyFailures: 2, DestroyErr: bad})
		for range 2 {
			if err := d.Remove(t.Context(), hs[0]); !errors.Is(err, bad) {
				t.Errorf("Remove = %v, want %v", err, bad)
			}
		}
		if err := d.Remove(t.Context(), hs[0]); err != nil {
			t.Errorf("third Remove = %v", err)
		}

		d.SetFaults(fake.Faults{})
		sb, err := d.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		d.SetFaults(fake.Faults{RecoverErr: bad, DialErr: bad, ListErr: bad})
		if _, err := d.Recover(t.Context(), sb.Handle()); !errors.Is(err, bad) {
			t.Errorf("Recover = %v, want %v", err, bad)
		}
		if _, err := sb.Dial(t.Context()); !errors.Is(err, bad) {
			t.Errorf("Dial = %v, want %v", err, bad)
		}
		if _, err := d.List(t.Context()); !errors.Is(err, bad) {
			t.Errorf("List = %v, want %v", err, bad)
		}
		if got := d.Created(); len(got) != 1 {
			t.Errorf("Created = %+v, want one", got)
		}
	})
}

func TestPathsStayInside(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver) {
		sb, err := d.Create(t.Context(), sandbox.Spec{Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		c := connect(t, sb)
		defer c.Close()
		for _, p := range []string{"/etc/passwd", "/workspace/../../../../etc/passwd"} {
			if b, err := c.ReadFile(t.Context(), p); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("ReadFile(%s) = %d bytes, %v, want ErrNotExist", p, len(b), err)
			}
		}
	})
}

// TestLateRemoveLeavesTheResumedAlone: of several who remove a sandbox whose processes
// were saved, the last one is done after they go on in another, which they find under
// the old paths, too.
func TestLateRemoveLeavesTheResumedAlone(t *testing.T) {
	d := fake.New(fake.Config{Dir: t.TempDir(), Programs: sandboxtest.Programs})
	t.Cleanup(d.Shutdown)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	old, err := d.Create(t.Context(), sandbox.Spec{Session: "s"})
	must(err)
	for epoch := range int64(30) {
		saved := t.TempDir()
		snap, err := old.(sandbox.Snapshotter).Snapshot(t.Context(), saved)
		must(err)
		removed := make(chan error, 8)
		for range cap(removed) {
			go func() { removed <- d.Remove(t.Context(), old.Handle()) }()
		}
		must(<-removed)
		spec := sandbox.Spec{Session: "s", Epoch: epoch + 1, Resume: &sandbox.Resume{Snapshot: snap, Dir: saved}}
		_, err = d.Prepare(t.Context(), spec)
		must(err)
		next, err := d.Create(t.Context(), spec)
		must(err)
		for range cap(removed) - 1 {
			must(<-removed)
		}
		if _, err := os.Stat(old.Dirs().Workspace); err != nil {
			t.Fatalf("the path that the processes of epoch %d know: %v", epoch, err)
		}
		old = next
	}
}
