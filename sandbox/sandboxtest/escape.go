package sandboxtest

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// attempt is one way in which a program could get at what is not its own. It runs in a
// sandbox, and in the suite's own test also without one, to show that it would notice
// a wall that is missing: so it never does harm when it succeeds.
type attempt struct {
	name string
	// try returns nil when it got through, and else how it was kept from it.
	try func(s stage) error
	// open says which kinds of isolation do not promise to stop it, and why.
	open map[sandbox.Isolation]string
	// bare says what it takes to succeed where there is no wall at all.
	bare bareNeed
}

// bareNeed is what an attempt needs to succeed without a wall.
type bareNeed int

const (
	bareUser    bareNeed = iota // nothing: any user of the host can do it
	bareRoot                    // root
	bareDepends                 // what this host happens to have: a device, a kernel's option
	bareNever                   // it is not made without a wall, because it would leave the machine
)

// stage is what the host prepares, and what an attempt is told about it.
type stage struct {
	Workspace string   `json:"workspace"` // as programs in the sandbox see it
	Keeper    string   `json:"keeper"`    // our executable, likewise
	Secret    string   `json:"secret"`    // a file of the host that everybody may read
	Other     string   `json:"other"`     // a file in the workspace of another sandbox
	OtherSock string   `json:"otherSock"` // the keeper's socket of another sandbox
	Data      string   `json:"data"`      // the driver's directory
	Socket    string   `json:"socket"`    // a Unix socket of the host, with a path
	Abstract  string   `json:"abstract"`  // and one without
	TCP       int      `json:"tcp"`       // ports on all addresses of the host
	UDP       int      `json:"udp"`
	Addresses []string `json:"addresses"` // of the host
	PID       int      `json:"pid"`       // a process of the host, same user
	Bare      bool     `json:"bare"`      // there is no wall
	Mark      string   `json:"mark"`      // among the arguments of that process
}

// verdict is how an attempt ended.
type verdict struct {
	Name    string `json:"name"`
	Through bool   `json:"through"`
	How     string `json:"how"`
}

// attempts are all of them.
func attempts() []attempt {
	var all []attempt
	for _, group := range [][]attempt{escapeFiles, escapeProcesses, escapeKernel, escapeNetwork} {
		all = append(all, group...)
	}
	return all
}

// insideEscape makes all attempts, each on a thread of its own that is thrown away, and
// prints the verdicts.
func insideEscape(arg string) int {
	var s stage
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		fmt.Println(err)
		return 2
	}
	out := json.NewEncoder(os.Stdout)
	for _, a := range attempts() {
		if s.Bare && a.bare == bareNever {
			continue
		}
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the attempt
			done <- a.try(s)
		}()
		v := verdict{Name: a.name}
		if err := <-done; err != nil {
			v.How = strings.ReplaceAll(err.Error(), "\n", "; ")
		} else {
			v.Through = true
		}
		if err := out.Encode(v); err != nil {
			return 1
		}
	}
	return 0
}

// testEscapes makes all attempts from inside a sandbox.
func testEscapes(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	isolation := d.Capabilities().Isolation
	if isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: this driver isolates nothing")
	}
	c, other := start(t, d, "prisoner", 1), start(t, d, "neighbour", 1)
	st := newStage(t, dir)
	st.Workspace, st.Keeper = sandbox.WorkspacePath, sandbox.KeeperPath
	st.Other = filepath.Join(other.Dirs().Workspace, "theirs")
	st.OtherSock = filepath.Join(other.Dirs().Sockets, sandbox.SocketName)
	if err := os.WriteFile(st.Other, []byte(secretText), 0o644); err != nil {
		t.Fatal(err)
	}
	out := c.must(sandbox.KeeperPath, commandInside, "escape", st.encode(t))
	judge(t, isolation, verdicts(t, out))
	other.must("echo", "alive")
	c.must("echo", "alive")
}

// judge compares verdicts with what an isolation promises.
func judge(t *testing.T, isolation sandbox.Isolation, got map[string]verdict) {
	t.Helper()
	for _, a := range attempts() {
		t.Run(a.name, func(t *testing.T) {
			v, made := got[a.name]
			why, open := a.open[isolation]
			switch {
			case !made:
				t.Error("the attempt was not made")
			case v.Through && !open:
				t.Errorf("got through a wall that %s promises", isolation)
			case v.Through:
				t.Logf("got through; %s does not promise to stop it: %s", isolation, why)
			default:
				t.Logf("stopped: %s", v.How)
			}
		})
	}
}

func verdicts(t *testing.T, out string) map[string]verdict {
	t.Helper()
	got := make(map[string]verdict)
	for line := range strings.Lines(out) {
		var v verdict
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("the attempts said %q: %v", out, err)
		}
		got[v.Name] = v
	}
	return got
}

// secretText is what the host's secrets say.
const secretText = "a secret of the host"

// newStage prepares the host: files, sockets, ports and a process.
func newStage(t *testing.T, data string) stage {
	t.Helper()
	// Beside the test's own directories, which others cannot enter.
	dir, err := os.MkdirTemp("", "sandboxtest-host-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := stage{
		Data: data, Secret: filepath.Join(dir, "secret"), Socket: filepath.Join(dir, "socket"),
		Abstract: "@sandboxtest-" + filepath.Base(dir), Mark: "mark-of-" + filepath.Base(dir),
	}
	if err := os.WriteFile(s.Secret, []byte(secretText), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{s.Socket, s.Abstract} {
		ln, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
	}
	if err := os.Chmod(s.Socket, 0o666); err != nil {
		t.Fatal(err)
	}
	s.listen(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	idle := exec.Command(self, commandInside, "idle", s.Mark)
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := idle.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = idle.Wait() // it was killed
	})
	s.PID = idle.Process.Pid
	return s
}

// listen opens ports on all addresses of the host. The UDP one answers.
func (s *stage) listen(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	s.TCP = ln.Addr().(*net.TCPAddr).Port
	pc, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	s.UDP = pc.LocalAddr().(*net.UDPAddr).Port
	go func() { // ends with the socket
		buf := make([]byte, 64)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from) // nobody waits for it for long
		}
	}()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
			s.Addresses = append(s.Addresses, ip.IP.String())
		}
	}
}

func (s *stage) encode(t *testing.T) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
