package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/internal/host"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// nobody is the user as whom tests without root run.
const nobody = 65534

// situation is somebody in whose place doctor and serve are run.
type situation struct {
	name     string
	uid      int
	confined bool // as in a container of Docker
}

// TestDoctorsWordIsWhatServeDoes asks doctor about every driver, and then starts a server
// with each: it must start if and only if doctor said that the driver works.
func TestDoctorsWordIsWhatServeDoes(t *testing.T) {
	if testing.Short() || dynamic() {
		t.Skip("SKIPPED: this starts real servers with every driver; run without -short and with CGO_ENABLED=0")
	}
	situations := []situation{{name: "as it is", uid: os.Geteuid()}}
	if os.Geteuid() == 0 {
		situations = append(situations, situation{name: "plain user", uid: nobody}, situation{name: "root in a container", confined: true})
	} else {
		t.Log("SKIPPED: only root can become another user, or root without its capabilities")
	}
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) { compareDoctor(t, s) })
	}
}

// stand is a directory with the program in it that belongs to the situation's user.
type stand struct {
	situation
	dir string
}

func newStand(t *testing.T, s situation) stand {
	t.Helper()
	dir, err := os.MkdirTemp("", "sjd") // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	exe, err := exec.LookPath("sojourn")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(exe)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "sojourn"), program, 0o755)
	}
	if err == nil && s.uid != os.Geteuid() {
		err = os.Chown(dir, s.uid, s.uid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return stand{s, dir}
}

// command is the program as the situation's user runs it.
func (s stand) command(ctx context.Context, args ...string) *exec.Cmd {
	name, args := filepath.Join(s.dir, "sojourn"), args
	if s.confined {
		args = append([]string{strconv.Itoa(s.uid), name}, args...)
		name = "confined"
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "TMPDIR="+s.dir, "SOJOURN_DRIVER=auto")
	if !s.confined && s.uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.uid), Gid: uint32(s.uid)}}
	}
	return cmd
}

func compareDoctor(t *testing.T, in situation) {
	s := newStand(t, in)
	data := filepath.Join(s.dir, "data")
	cmd := s.command(t.Context(), "doctor", "--json", "--deep", "--data", data)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var r machineReport
	if jsonErr := json.Unmarshal(out, &r); jsonErr != nil {
		t.Fatalf("doctor: %v, %v\n%s%s", err, jsonErr, out, errs.Bytes())
	}
	if (err == nil) != (r.Auto != "") {
		t.Errorf("doctor ends with %v and the driver %q", err, r.Auto)
	}
	if _, err := os.Lstat(data); err == nil || r.Tried != "" || r.Data != data || r.Root != (s.uid == 0) {
		t.Errorf("doctor left the data directory, or was not in it: %+v", r)
	}
	first := ""
	for _, d := range r.Drivers {
		checkDriver(t, d)
		started, said := s.serves(t, d.Driver)
		if started != d.Available {
			t.Errorf("doctor says of %s: works %v, %s; serve says:\n%s", d.Driver, d.Available, d.Reason, said)
		}
		if row := driverNamed(d.Driver); started && first == "" && !row.onRequest {
			first = d.Driver
		}
		if started && !strings.Contains(said, "Sandboxes: "+d.Driver+" (isolation "+string(d.Isolation)+")") {
			t.Errorf("serve --driver %s says:\n%s", d.Driver, said)
		}
	}
	if r.Auto != first {
		t.Errorf("doctor says that serve takes %q, and the first that starts is %q", r.Auto, first)
	}
	if s.confined && (r.Auto != "" || !reports(r, "process")) {
		t.Errorf("in a container doctor finds: %s", out)
	}
	if c := hostCheck(t, r, "confinement"); s.confined != (c.State == host.Limited) {
		t.Errorf("confined %v, and doctor says: %+v", s.confined, c)
	}
}

// checkDriver wants a report to be whole.
func checkDriver(t *testing.T, d driverReport) {
	t.Helper()
	switch {
	case !d.Available && (d.Fix == "" || d.Reason == "" || d.Capabilities != nil):
		t.Errorf("%s does not work, and that is all: %+v", d.Driver, d)
	case !d.Available:
	case d.Capabilities == nil || d.Proxy == nil || d.Processes == nil || d.Reason == "":
		t.Errorf("%s works, and more is not said: %+v", d.Driver, d)
	case d.Capabilities.Isolation != d.Isolation || d.Capabilities.Limits.How == "":
		t.Errorf("%s: %+v", d.Driver, d)
	case d.Capabilities.ProcessSnapshot && d.Processes.State != host.Works:
		t.Errorf("%s cannot do what it says: %+v", d.Driver, d.Processes)
	case !d.Capabilities.HostPaths && d.Proxy.State != host.Works:
		t.Errorf("%s: %+v", d.Driver, d.Proxy)
	}
}

func driverNamed(name string) driverRow {
	for _, row := range drivers {
		if row.name == name {
			return row
		}
	}
	return driverRow{}
}

func reports(r machineReport, driver string) bool {
	for _, d := range r.Drivers {
		if d.Driver == driver {
			return d.Available
		}
	}
	return false
}

func hostCheck(t *testing.T, r machineReport, name string) host.Check {
	t.Helper()
	for _, c := range r.Host {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("doctor says nothing about %s: %+v", name, r.Host)
	return host.Check{}
}

// serves starts a server with a driver and ends it. It reports whether the server
// listened, and what it said.
func (s stand) serves(t *testing.T, driver string) (bool, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := s.command(ctx, "serve", "--driver", driver, "--data", filepath.Join(s.dir, "served"), "--listen", "127.0.0.1:0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "Next,") { // all that matters comes before
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // ends with the process
	err = cmd.Wait()
	started := said.Len() > 0
	if started && err != nil {
		t.Errorf("serve --driver %s ended with %v\n%s", driver, err, errs.Bytes())
	}
	return started, said.String() + errs.String()
}

// TestDoctorTakesOverFromOneThatWasKilled finds what a doctor left that was killed with a
// sandbox running.
func TestDoctorTakesOverFromOneThatWasKilled(t *testing.T) {
	if testing.Short() || dynamic() {
		t.Skip("SKIPPED: this makes real sandboxes; run without -short and with CGO_ENABLED=0")
	}
	driver := scriptDriver(t)
	if driver == "" {
		t.Skip("SKIPPED: no sandbox can be made here")
	}
	s := newStand(t, situation{uid: os.Geteuid()})
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil { // a server's, so doctor lets it be
		t.Fatal(err)
	}
	p, err := openPlace(data)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := keepExecutable(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := driverNamed(driver).open(filepath.Join(p.dir, "sandboxes", driver), exe, driverOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := d.Create(t.Context(), sandbox.Spec{Session: trialSession})
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	second, err := openPlace(data) // beside one that lives
	if err != nil || second.dir == p.dir {
		t.Fatalf("a second doctor is in %+v, %v", second, err)
	}
	if err := second.close(); err != nil {
		t.Error(err)
	}
	p.lock.Close() // as the kernel does
	if out, err := s.command(t.Context(), "doctor", "--data", data).CombinedOutput(); err != nil {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	if left := sandboxProcesses(p.dir); len(left) > 0 {
		t.Errorf("processes %v of %s run on", left, sb.Dirs().Workspace)
	}
	if left, err := os.ReadDir(data); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestDoctorSaysWhatItCouldNotUse(t *testing.T) {
	s := t.TempDir()
	t.Setenv("TMPDIR", s)
	file := filepath.Join(s, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := openPlace(filepath.Join(file, "data")) // below a file nothing can be made
	if err != nil {
		t.Fatal(err)
	}
	if p.instead != p.dir || !strings.HasPrefix(p.dir, s) {
		t.Errorf("the place is %+v", p)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(s); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestDoctorFitsATerminal(t *testing.T) {
	long := strings.Repeat("some words of a sentence ", 12)
	r := machineReport{
		Version: "v1", Kernel: "Linux 6", Arch: "amd64", Auto: "gvisor", Data: "/data",
		Drivers: []driverReport{
			{
				Report:       sandbox.Report{Driver: "gvisor", Available: true, Reason: long, Isolation: sandbox.IsolationGVisor},
				Capabilities: &sandbox.Capabilities{Limits: sandbox.LimitSupport{Memory: true, How: "By groups."}},
				Proxy:        &host.Check{State: host.Works, Says: "It answers."},
				Processes:    &host.Check{State: host.Untried, Says: "They can be saved."},
			},
			{Report: sandbox.Report{Driver: "docker", Reason: "Nothing answers.", Fix: long}},
		},
		Host: []host.Check{{Name: "open-files", State: host.Limited, Says: long, Fix: "Allow more."}},
	}
	var b bytes.Buffer
	r.print(&printer{out: &b})
	text := b.String()
	for l := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(l, "\n")); n > fileWidth {
			t.Errorf("a line of %d characters: %s", n, l)
		}
	}
	for _, want := range []string{
		`(?m)^  gvisor          works          Isolation gvisor\. some words`,
		`(?m)^  docker          does not work  Nothing answers\.$`,
		`(?m)^  gvisor          limited        Only memory; not processor, processes, disk, open files\. By groups\.$`,
		`(?m)^  gvisor          not tried      They can be saved\.$`,
		`(?m)^  open files      limited        some words`,
		`(?m)^                                 Allow more\.$`,
		`(?m)^serve takes gvisor\.$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("nothing matches %s in\n%s", want, text)
		}
	}
}
