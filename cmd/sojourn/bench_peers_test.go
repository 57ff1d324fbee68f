package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/config"
	"github.com/sojourn-dev/sojourn/internal/host"
	"github.com/sojourn-dev/sojourn/sandbox/docker"
	"github.com/sojourn-dev/sojourn/sandbox/docker/dockertest"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor"
	"github.com/sojourn-dev/sojourn/sandbox/gvisor/gvisortest"
	"github.com/sojourn-dev/sojourn/sandbox/namespace"
	"github.com/sojourn-dev/sojourn/sandbox/process"
)

// The names of what is measured beside the drivers.
const (
	bareHost   = "(host)"
	bareRunsc  = "(runsc run)"
	bareBwrap  = "(bwrap)"
	bareDocker = "(docker run)"
)

// newBench opens everything that can be measured here, and says what cannot and why.
func newBench(b *testing.B, exe string) *sandboxBench {
	b.Helper()
	exe, err := filepath.Abs(exe)
	if err != nil {
		b.Fatal(err)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	s := &sandboxBench{table: map[string]map[string]float64{}, load: strings.Join(strings.Fields(string(load))[:3], " ")}
	for _, name := range []string{gvisor.Name, namespace.Name, process.Name} {
		s.open(b, name, exe, driverOptions{})
	}
	engine, err := dockertest.Start()
	if err != nil {
		b.Logf("SKIPPED: docker and docker run: no engine could be started: %v", err)
	} else {
		b.Cleanup(func() {
			if err := engine.Stop(); err != nil {
				b.Error(err)
			}
		})
		if c := s.open(b, docker.Name, exe, driverOptions{engine: config.Docker{Host: engine.Host()}}); c != nil {
			c.also = engine.Dir
		}
		s.addDocker(b, engine)
	}
	bare := gvisortest.NewBare(b, exe)
	s.contenders = append(s.contenders,
		&contender{name: bareRunsc, start: func(context.Context) (time.Duration, error) { return bare.Run(b), nil }},
		&contender{name: bareHost, start: timed("/bin/true"), files: timedIn(b, "/bin/sh", "-c", smallFiles)})
	s.addBwrap(b)
	s.ends = time.Now().Add(benchTime)
	return s
}

// open opens a driver if it works here.
func (s *sandboxBench) open(b *testing.B, name, exe string, o driverOptions) *contender {
	b.Helper()
	base, err := os.MkdirTemp("", "sjb")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			b.Error(err)
		}
	})
	row, dir := driverNamed(name), filepath.Join(base, name)
	if r := row.probe(b.Context(), filepath.Join(base, "probe"), exe, o); !r.Available {
		b.Logf("SKIPPED: %s: %s", name, r.Reason)
		return nil
	}
	d, err := row.open(dir, exe, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := leave(context.Background(), d); err != nil {
			b.Error(err)
		}
	})
	c := driven(b, name, dir, d)
	s.contenders = append(s.contenders, c)
	return c
}

// timed measures a program from its start to its end.
func timed(argv ...string) measure {
	return func(ctx context.Context) (time.Duration, error) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%q: %w: %s", argv, err, bytes.TrimSpace(out))
		}
		return time.Since(began), err
	}
}

// timedIn is timed in a directory of its own.
func timedIn(b *testing.B, argv ...string) measure {
	dir := b.TempDir()
	return func(ctx context.Context) (time.Duration, error) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = dir
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
		return time.Since(began), err
	}
}

func (s *sandboxBench) addBwrap(b *testing.B) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		b.Log("SKIPPED: bwrap: it is not installed (apt install bubblewrap)")
		return
	}
	dir := b.TempDir()
	argv := []string{
		"bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
		"--symlink", "usr/lib64", "/lib64", "--unshare-all", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--bind", dir, "/workspace", "--chdir", "/workspace", "--die-with-parent",
	}
	with := func(more ...string) measure { return timed(append(argv[:len(argv):len(argv)], more...)...) }
	s.contenders = append(s.contenders, &contender{name: bareBwrap, start: with("/bin/true"), files: with("/bin/sh", "-c", smallFiles)})
}

// addDocker measures what a person does with the engine's own command, on an image that
// sees the host's programs as sandboxes do.
func (s *sandboxBench) addDocker(b *testing.B, e *dockertest.Engine) {
	if _, err := exec.LookPath("docker"); err != nil {
		b.Log("SKIPPED: docker run: the command docker is not installed (apt install docker.io)")
		return
	}
	const image, stays = "bench:root", "bench"
	with := func(args ...string) []string { return append([]string{"docker", "-H", e.Host()}, args...) }
	load := exec.CommandContext(b.Context(), "docker", with("import", "-", image)[1:]...)
	load.Stdin = skeletonArchive(b)
	if out, err := load.CombinedOutput(); err != nil {
		b.Fatalf("docker import: %v: %s", err, out)
	}
	run := []string{"run", "--network", "none", "-v", "/usr:/usr:ro", "-v", b.TempDir() + ":/workspace", "-w", "/workspace"}
	inside := append(run[:len(run):len(run)], "-d", "--name", stays, image, "/bin/sleep", "3600")
	if _, err := timed(with(inside...)...)(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if _, err := timed(with("rm", "-f", stays)...)(context.Background()); err != nil {
			b.Error(err)
		}
	})
	s.contenders = append(s.contenders, &contender{
		name:  bareDocker,
		start: timed(with(append(run[:len(run):len(run)], "--rm", image, "/bin/true")...)...),
		exec:  timed(with("exec", stays, "/bin/true")...),
		files: timed(with("exec", stays, "/bin/sh", "-c", smallFiles)...),
	})
}

// skeletonArchive is a root in which the host's /usr can be mounted.
func skeletonArchive(b *testing.B) io.Reader {
	b.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, d := range []string{"usr", "proc", "sys", "dev", "etc", "tmp", "workspace"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}); err != nil {
			b.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: l, Linkname: "usr/" + l}); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return &buf
}

// aims are the ratios that the project promises, as figure, contender and peer.
var aims = []struct {
	figure, who, peerFigure, peer string
	atMost                        float64 // 0 is no promise
}{
	{"cold start, ms", gvisor.Name, "cold start, ms", bareRunsc, 1.3},
	{"cold start, ms", gvisor.Name, "cold start, ms", bareDocker, 0.6},
	{"cold start, ms", namespace.Name, "cold start, ms", bareBwrap, 0},
	{"cold start, ms", docker.Name, "cold start, ms", bareDocker, 0},
	{"warm start, ms", gvisor.Name, "cold start, ms", gvisor.Name, 0},
	{"exec, ms", gvisor.Name, "exec, ms", bareDocker, 0.3},
	{"exec, ms", namespace.Name, "exec, ms", bareDocker, 0.3},
	{"exec, ms", docker.Name, "exec, ms", bareDocker, 0.3},
	{"1,000 files, ms", gvisor.Name, "1,000 files, ms", bareHost, 0},
	{"1,000 files, ms", namespace.Name, "1,000 files, ms", bareBwrap, 0},
}

// print writes the table and the ratios.
func (s *sandboxBench) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s, %s, %d processors, %s of memory, load %s at the start\n\n| |", kernel(), runtime.GOARCH, runtime.NumCPU(),
		host.Bytes(host.Here().Memory().TotalBytes), s.load)
	for _, c := range s.contenders {
		fmt.Fprintf(w, " %s |", c.name)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(s.contenders)))
	for _, f := range s.figures {
		fmt.Fprintf(w, "| %s |", f)
		for _, c := range s.contenders {
			if v, ok := s.table[f][c.name]; ok {
				fmt.Fprintf(w, " %.3g |", v)
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "\n| ratio | | aim |\n|---|---|---|")
	for _, a := range aims {
		if ratio, ok := s.ratio(a.figure, a.who, a.peerFigure, a.peer); ok {
			aim := ""
			if a.atMost > 0 {
				aim = fmt.Sprintf("≤ %g", a.atMost)
			}
			fmt.Fprintf(w, "| %s of %s to %s of %s | %.2f | %s |\n", short(a.figure), a.who, short(a.peerFigure), a.peer, ratio, aim)
		}
	}
}

func short(figure string) string { return strings.TrimSuffix(figure, ", ms") }

func (s *sandboxBench) ratio(figure, who, peerFigure, peer string) (float64, bool) {
	v, ok := s.table[figure][who]
	p, peerOK := s.table[peerFigure][peer]
	return v / p, ok && peerOK && p > 0
}

// report gives the ratios to the benchmark's own output.
func (s *sandboxBench) report(b *testing.B) {
	for _, a := range aims {
		if ratio, ok := s.ratio(a.figure, a.who, a.peerFigure, a.peer); ok {
			b.ReportMetric(ratio, strings.ReplaceAll(short(a.figure)+":"+a.who+"/"+strings.Trim(a.peer, "()"), " ", "-"))
		}
	}
}
