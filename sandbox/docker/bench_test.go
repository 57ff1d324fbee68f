package docker_test

import (
	"context"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// BenchmarkColdStart compares making a sandbox, until a program has run in it, with
// letting the engine make one and run the program, in turns in the same run.
func BenchmarkColdStart(b *testing.B) {
	d := openDriver(b, b.TempDir())
	engine := engineClient(b)
	image := benchImage(b, d, engine)
	var ours, theirs []time.Duration
	for i := int64(0); b.Loop(); i++ {
		began := time.Now()
		sb, c := create(b, d, sandbox.Spec{Session: "bench", Epoch: i})
		must(b, c, "true", "/usr/bin/true")
		ours = append(ours, time.Since(began))
		began = time.Now()
		id := startBare(b, engine, image)
		execBare(b, engine, id)
		theirs = append(theirs, time.Since(began))
		c.Close()
		removeBare(b, engine, id)
		if err := sb.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "first-exec-ms")
	b.ReportMetric(median(theirs), "engine-ms")
	b.ReportMetric(median(ours)/median(theirs), "ours/engine")
}

// BenchmarkExec compares running a program through the keeper with the engine's own call
// for that, in the same sandbox.
func BenchmarkExec(b *testing.B) {
	d := openDriver(b, b.TempDir())
	engine := engineClient(b)
	_, c := create(b, d, sandbox.Spec{Session: "bench"})
	id := startBare(b, engine, benchImage(b, d, engine))
	defer removeBare(b, engine, id)
	var ours, theirs []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		must(b, c, "true-"+strconv.Itoa(i), "/usr/bin/true")
		ours = append(ours, time.Since(began))
		began = time.Now()
		execBare(b, engine, id)
		theirs = append(theirs, time.Since(began))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "keeper-ms")
	b.ReportMetric(median(theirs), "engine-ms")
	b.ReportMetric(median(ours)/median(theirs), "keeper/engine")
}

// benchImage is the driver's root image.
func benchImage(b *testing.B, d sandbox.Driver, engine *client.Client) string {
	b.Helper()
	sb, _ := create(b, d, sandbox.Spec{Session: "image"})
	image := imageOf(b, engine, labelsOf(b, engine, sb)["sojourn.server"])
	if err := sb.Destroy(b.Context()); err != nil {
		b.Fatal(err)
	}
	return image
}

// startBare starts what "docker run --network none" would, on the host's /usr.
func startBare(b *testing.B, engine *client.Client, image string) string {
	b.Helper()
	r, err := engine.ContainerCreate(b.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Entrypoint: []string{"/usr/bin/sleep", "600"}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Binds: []string{"/usr:/usr:ro"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := engine.ContainerStart(b.Context(), r.ID, client.ContainerStartOptions{}); err != nil {
		b.Fatal(err)
	}
	return r.ID
}

func removeBare(b *testing.B, engine *client.Client, id string) {
	b.Helper()
	if _, err := engine.ContainerRemove(context.Background(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
		b.Fatal(err)
	}
}

// execBare runs a program as "docker exec" does: to the end of its output, then asks for
// its exit code.
func execBare(b *testing.B, engine *client.Client, id string) {
	b.Helper()
	e, err := engine.ExecCreate(b.Context(), id, client.ExecCreateOptions{Cmd: []string{"/usr/bin/true"}, AttachStdout: true, AttachStderr: true})
	if err != nil {
		b.Fatal(err)
	}
	r, err := engine.ExecAttach(b.Context(), e.ID, client.ExecAttachOptions{})
	if err != nil {
		b.Fatal(err)
	}
	_, err = io.Copy(io.Discard, r.Reader)
	r.Close()
	if err != nil {
		b.Fatal(err)
	}
	i, err := engine.ExecInspect(b.Context(), e.ID, client.ExecInspectOptions{})
	if err != nil || i.ExitCode != 0 {
		b.Fatalf("exec = %d, %v", i.ExitCode, err)
	}
}

func median(ds []time.Duration) float64 {
	slices.Sort(ds)
	return float64(ds[len(ds)/2].Microseconds()) / 1000
}
