package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkKeeperStart measures what it costs that the keeper is the whole binary: the
// time from starting it to its first word, beside /bin/true, and of that the initialisers
// of all packages. Every sandbox pays it several times.
func BenchmarkKeeperStart(b *testing.B) {
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		b.Fatal(err)
	}
	var ours, theirs []time.Duration
	least := map[string]float64{} // of each package, in ms: what is more was waiting
	for b.Loop() {
		began := time.Now()
		trace := refusedKeeper(b, exe)
		ours = append(ours, time.Since(began))
		began = time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		theirs = append(theirs, time.Since(began))
		for pkg, ms := range initialisers(b, trace) {
			if was, ok := least[pkg]; !ok || ms < was {
				least[pkg] = ms
			}
		}
	}
	var sum, most float64
	worst := ""
	for pkg, ms := range least {
		if sum += ms; ms > most {
			most, worst = ms, pkg
		}
	}
	b.Logf("%d packages; the dearest is %s with %.2f ms", len(least), worst, most)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(middle(ours), "start-ms")
	b.ReportMetric(middle(theirs), "true-ms")
	b.ReportMetric(middle(ours)/middle(theirs), "start/true")
	b.ReportMetric(sum, "init-ms")
	b.ReportMetric(most, "dearest-ms")
}

// refusedKeeper starts a keeper without a token, which ends as soon as it runs, and
// returns what the runtime says of its initialisers.
func refusedKeeper(b *testing.B, exe string) []byte {
	b.Helper()
	cmd := exec.Command(exe, "keeper")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if _, ok := errors.AsType[*exec.ExitError](cmd.Run()); !ok {
		b.Fatalf("a keeper without a token says: %s", trace.Bytes())
	}
	return trace.Bytes()
}

// initialisers reads lines like "init PACKAGE @1.2 ms, 0.34 ms clock, ...".
func initialisers(b *testing.B, trace []byte) map[string]float64 {
	b.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(string(trace)) {
		f := strings.Fields(line)
		if len(f) < 5 || f[0] != "init" {
			continue
		}
		ms, err := strconv.ParseFloat(f[4], 64)
		if err != nil {
			b.Fatalf("%q: %v", line, err)
		}
		all[f[1]] = ms
	}
	if len(all) == 0 {
		b.Fatalf("the runtime says nothing of initialisers: %.500s", trace)
	}
	return all
}
