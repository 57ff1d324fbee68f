package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// benchExecutable names the executable that is measured; make bench-sandbox sets it.
const benchExecutable = "SOJOURN_BENCH_SANDBOX"

// benchTime is when no new figure is begun, so that the whole takes less than six minutes.
const benchTime = 270 * time.Second

// How often each figure is taken. The median is shown.
const (
	startRounds = 9
	execRounds  = 31
	fileRounds  = 5
	saveRounds  = 3
)

// The numbers of sandboxes of which memory is measured, and of those made at once.
const (
	fewIdle  = 10
	atOnce   = 50
	manyIdle = 100
)

// smallFiles makes, looks at, reads and removes 1,000 files, with what a shell does by itself.
const smallFiles = `mkdir small && cd small || exit 1
i=0; while [ $i -lt 1000 ]; do echo $i > f$i; i=$((i+1)); done
i=0; while [ $i -lt 1000 ]; do [ -f f$i ] || exit 1; read x < f$i; i=$((i+1)); done
cd ..; rm -r small`

// contender is what is measured: a driver, or something that people have without us.
type contender struct {
	name string
	// start is the time from nothing to the end of a first program; exec is that of one
	// more, and files that of the script above. A nil one cannot be measured.
	start, exec, files func(ctx context.Context) (time.Duration, error)
	driver             sandbox.Driver // nil for others
	dir                string         // the driver's
	also               string         // named by processes that serve the driver's sandboxes
}

// BenchmarkSandboxes measures every driver beside what people have without us, in turns,
// and prints one table. It is for make bench-sandbox, with -benchtime 1x.
func BenchmarkSandboxes(b *testing.B) {
	exe := os.Getenv(benchExecutable)
	if exe == "" {
		b.Skip("SKIPPED: it takes minutes; run make bench-sandbox")
	}
	runtime.LockOSThread() // an engine ends with the thread that started it
	s := newBench(b, exe)
	for b.Loop() {
		s.rounds(b, "cold start, ms", startRounds, func(c *contender) measure { return c.start })
		s.rounds(b, "exec, ms", execRounds, func(c *contender) measure { return c.exec })
		s.rounds(b, "1,000 files, ms", fileRounds, func(c *contender) measure { return c.files })
		for _, c := range s.contenders {
			if c.driver != nil {
				s.warm(b, c)
				s.snapshots(b, c)
			}
		}
		for _, c := range s.contenders {
			if c.driver != nil {
				s.crowd(b, c)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	s.print(os.Stdout)
	s.report(b)
}

type measure = func(context.Context) (time.Duration, error)

// sandboxBench is one run of the benchmark.
type sandboxBench struct {
	contenders []*contender
	figures    []string                      // in the order of the table
	table      map[string]map[string]float64 // by figure and contender
	load       string                        // of the machine before it began
	ends       time.Time
}

func (s *sandboxBench) late() bool { return time.Now().After(s.ends) }

// note keeps a figure.
func (s *sandboxBench) note(figure, who string, value float64) {
	if s.table[figure] == nil {
		s.table[figure] = map[string]float64{}
		s.figures = append(s.figures, figure)
	}
	s.table[figure][who] = value
}

// rounds takes a figure of all contenders in turns. One that fails is said and left out.
func (s *sandboxBench) rounds(b *testing.B, figure string, n int, of func(*contender) measure) {
	took := map[string][]time.Duration{}
	for i := 0; i < n && !(i > 0 && s.late()); i++ {
		for _, c := range s.contenders {
			do := of(c)
			if do == nil || took[c.name] == nil && i > 0 {
				continue
			}
			d, err := do(b.Context())
			if err != nil {
				b.Errorf("%s of %s: %v", figure, c.name, err)
				delete(took, c.name)
				continue
			}
			took[c.name] = append(took[c.name], d)
		}
	}
	for name, ds := range took {
		s.note(figure, name, middle(ds))
	}
}

// warm measures the start of a session in a sandbox that was ready.
func (s *sandboxBench) warm(b *testing.B, c *contender) {
	w, ok := c.driver.(sandbox.Warmer)
	if !ok || s.late() {
		return
	}
	var took []time.Duration
	for range startRounds {
		if err := w.Warm(b.Context(), sandbox.Spec{}, 1); err != nil {
			b.Errorf("make a sandbox of %s ready: %v", c.name, err)
			return
		}
		d, err := c.start(b.Context())
		if err != nil {
			b.Errorf("warm start of %s: %v", c.name, err)
			return
		}
		took = append(took, d)
	}
	s.note("warm start, ms", c.name, middle(took))
}

// snapshots measures saving and resuming a program that holds memory.
func (s *sandboxBench) snapshots(b *testing.B, c *contender) {
	if !c.driver.Capabilities().ProcessSnapshot {
		return
	}
	for _, mib := range []int{0, 64, 256} {
		var saves, resumes []time.Duration
		for range saveRounds {
			if s.late() {
				return
			}
			save, resume, err := saveOnce(b.Context(), c.driver, mib, b.TempDir())
			if err != nil {
				b.Errorf("snapshot of %s with %d MiB: %v", c.name, mib, err)
				return
			}
			saves, resumes = append(saves, save), append(resumes, resume)
		}
		s.note(fmt.Sprintf("save %d MiB, ms", mib), c.name, middle(saves))
		s.note(fmt.Sprintf("resume %d MiB, ms", mib), c.name, middle(resumes))
	}
}

// epochs numbers sandboxes, so that none is made twice.
var epochs = func() func() int64 {
	var mu sync.Mutex
	var last int64
	return func() int64 {
		mu.Lock()
		defer mu.Unlock()
		last++
		return last
	}
}()

// visit is a sandbox with a line to its keeper.
type visit struct {
	sb sandbox.Sandbox
	c  *link.Client
	n  int
}

func enter(ctx context.Context, d sandbox.Driver, spec sandbox.Spec) (*visit, error) {
	sb, err := d.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	conn, err := sb.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c, err := link.Open(ctx, link.Framed(conn), link.Options{Epoch: spec.Epoch})
	return &visit{sb: sb, c: c}, err
}

func fresh() sandbox.Spec { return sandbox.Spec{Session: "bench", Epoch: epochs()} }

// run runs a program to its end.
func (v *visit) run(ctx context.Context, argv ...string) error {
	v.n++
	id := "p" + strconv.Itoa(v.n)
	err := v.c.Start(ctx, link.StartParams{
		ProcessID: id, Argv: argv, Cwd: sandbox.WorkspacePath, Env: map[string]string{"PATH": "/usr/bin:/bin"},
	})
	for after := int64(0); err == nil; {
		var r link.ReadResult
		if r, err = v.c.Read(ctx, link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait}); err != nil {
			break
		}
		after = r.NextSeq - 1
		if !r.Closed {
			continue
		}
		if r.ExitCode == nil || *r.ExitCode != 0 {
			return fmt.Errorf("%q ended with %v, %s", argv, r.ExitCode, r.Failure)
		}
		return nil
	}
	return err
}

func (v *visit) leave() error {
	v.c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), cleanTime)
	defer cancel()
	return v.sb.Destroy(ctx)
}

// driven is a driver as a contender. One sandbox of it stays for all of exec and files.
func driven(b *testing.B, name, dir string, d sandbox.Driver) *contender {
	c := &contender{name: name, driver: d, dir: dir}
	c.start = func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		v, err := enter(ctx, d, fresh())
		if err != nil {
			return 0, err
		}
		err = v.run(ctx, "/bin/true")
		took := time.Since(began)
		if leaveErr := v.leave(); err == nil {
			err = leaveErr
		}
		return took, err
	}
	stays := sync.OnceValues(func() (*visit, error) {
		v, err := enter(b.Context(), d, fresh())
		if err == nil {
			b.Cleanup(func() { _ = v.leave() }) // the driver's directory is removed anyway
		}
		return v, err
	})
	within := func(argv ...string) measure {
		return func(ctx context.Context) (time.Duration, error) {
			v, err := stays()
			if err != nil {
				return 0, err
			}
			began := time.Now()
			err = v.run(ctx, argv...)
			return time.Since(began), err
		}
	}
	c.exec, c.files = within("/bin/true"), within("/bin/sh", "-c", smallFiles)
	return c
}

// saveOnce saves a program that holds noise, and resumes it until its keeper answers.
func saveOnce(ctx context.Context, d sandbox.Driver, mib int, dir string) (save, resume time.Duration, err error) {
	v, err := enter(ctx, d, fresh())
	if err != nil {
		return 0, 0, err
	}
	if err := v.run(ctx, "/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > /tmp/noise", mib<<20)); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	saved, err := v.sb.(sandbox.Snapshotter).Snapshot(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	save = time.Since(began)
	spec := fresh()
	spec.Resume = &sandbox.Resume{Dir: dir, Snapshot: saved}
	began = time.Now()
	if _, err := d.(sandbox.Resumer).Prepare(ctx, spec); err != nil {
		return 0, 0, err
	}
	next, err := enter(ctx, d, spec)
	if err != nil {
		return 0, 0, err
	}
	resume = time.Since(began)
	if err := next.leave(); err != nil {
		return 0, 0, err
	}
	if err := v.leave(); err != nil {
		return 0, 0, err
	}
	return save, resume, os.RemoveAll(dir)
}

// crowd makes many sandboxes: a few, of which the memory is measured, then fifty at once,
// then more until there are a hundred, of which the memory is measured again.
func (s *sandboxBench) crowd(b *testing.B, c *contender) {
	if s.late() {
		b.Logf("no time was left for many sandboxes of %s", c.name)
		return
	}
	var all []*visit
	defer func() { leaveAll(b, all) }()
	before := c.memory(b)
	add := func(n int) (time.Duration, bool) {
		began := time.Now()
		more, err := enterAll(b.Context(), c.driver, n)
		all = append(all, more...)
		if err != nil {
			b.Errorf("%d sandboxes of %s: %v", len(all), c.name, err)
		}
		return time.Since(began), err == nil
	}
	if _, ok := add(fewIdle); !ok {
		return
	}
	s.note(fmt.Sprintf("memory of one of %d, MiB", fewIdle), c.name, float64(c.memory(b)-before)/fewIdle/1024)
	took, ok := add(atOnce)
	if !ok {
		return
	}
	s.note(fmt.Sprintf("%d at once, ms", atOnce), c.name, float64(took.Milliseconds()))
	if s.late() {
		b.Logf("no time was left for %d sandboxes of %s", manyIdle, c.name)
		return
	}
	if _, ok := add(manyIdle - atOnce - fewIdle); ok {
		s.note(fmt.Sprintf("memory of one of %d, MiB", manyIdle), c.name, float64(c.memory(b)-before)/manyIdle/1024)
	}
}

// enterAll makes sandboxes at the same time and waits until all their keepers answer.
func enterAll(ctx context.Context, d sandbox.Driver, n int) ([]*visit, error) {
	var wg sync.WaitGroup
	visits, errs := make([]*visit, n), make([]error, n)
	for i := range n {
		wg.Go(func() { visits[i], errs[i] = enter(ctx, d, fresh()) })
	}
	wg.Wait()
	made := slices.DeleteFunc(visits, func(v *visit) bool { return v == nil || v.c == nil })
	for _, err := range errs {
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

func leaveAll(b *testing.B, all []*visit) {
	var wg sync.WaitGroup
	for _, v := range all {
		wg.Go(func() {
			if err := v.leave(); err != nil {
				b.Errorf("destroy: %v", err)
			}
		})
	}
	wg.Wait()
}

// memory is what the processes of the contender's sandboxes have mapped, each its
// proportional part, in kB.
func (c *contender) memory(b *testing.B) (kb int) {
	b.Helper()
	pids := sandboxProcesses(c.dir)
	if c.also != "" {
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range all {
			if pid, err := strconv.Atoi(filepath.Base(p)); err == nil && mentions(pid, "cmdline", c.also) {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	for _, pid := range slices.Compact(pids) {
		rollup, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(rollup)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				n, err := strconv.Atoi(f[1])
				if err != nil {
					b.Fatal(err)
				}
				kb += n
			}
		}
	}
	return kb
}

// middle is the median in milliseconds.
func middle(ds []time.Duration) float64 {
	slices.Sort(ds)
	return float64(ds[len(ds)/2].Microseconds()) / 1000
}
