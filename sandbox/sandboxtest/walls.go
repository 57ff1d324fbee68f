package sandboxtest

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// testWalls tries what a sandbox must keep in and out. Drivers that claim no isolation
// have no walls.
func testWalls(t *testing.T, s *Suite) {
	dir := s.newDir(t)
	d := s.open(t, dir)
	if d.Capabilities().Isolation == sandbox.IsolationNone {
		t.Skip("SKIPPED: this driver isolates nothing")
	}
	c, other := start(t, d, "inner", 1), start(t, d, "other", 1)
	t.Run("HostFiles", func(t *testing.T) { c.t = t; wallsHostFiles(t, c, other, dir) })
	t.Run("ReadOnly", func(t *testing.T) { c.t = t; wallsReadOnly(t, c) })
	shared := map[string]func(*testing.T, *cell){
		"Processes": wallsProcesses, "Network": wallsNetwork, "Places": wallsPlaces, "Reaping": wallsReaping,
	}
	for name, try := range shared {
		t.Run(name, func(t *testing.T) {
			if d.Capabilities().HostPaths {
				t.Skip("SKIPPED: this driver shares the host's processes, interfaces and paths, as it says; Escapes tries what it stops")
			}
			c.t = t
			try(t, c)
		})
	}
	t.Run("Files", func(t *testing.T) { c.t = t; wallsFiles(t, c) })
	t.Run("Freeze", func(t *testing.T) { c.t = t; wallsFreeze(t, c) })
	t.Run("Terminal", func(t *testing.T) { c.t = t; wallsTerminal(t, c, d) })
	t.Run("Token", func(t *testing.T) { c.t = t; wallsToken(t, c) })
	t.Run("KillKeeper", func(t *testing.T) { other.t = t; wallsKillKeeper(t, other) })
}

func wallsHostFiles(t *testing.T, c, other *cell, dir string) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other.Dirs().Workspace, "theirs"), []byte("other's"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/etc/shadow", "/etc/gshadow", secret, dir,
		filepath.Join(other.Dirs().Workspace, "theirs"), sandbox.WorkspacePath + "/theirs",
		c.Dirs().Workspace, "/proc/1/root" + secret, "/root/.ssh", "/var/run/docker.sock",
	} {
		if out, code := c.run("sh", "-c", `test -e "$1" && ls -la "$1"; cat "$1"`, "sh", path); code == 0 || strings.Contains(out, "root:") {
			t.Errorf("%s can be read: %s", path, out)
		}
	}
	// A link of the sandbox is followed in the sandbox only.
	c.must("ln", "-s", secret, sandbox.WorkspacePath+"/link")
	if out, code := c.run("cat", sandbox.WorkspacePath+"/link"); code == 0 {
		t.Errorf("a link leads out to the host: %q", out)
	}
}

func wallsReadOnly(t *testing.T, c *cell) {
	for _, path := range []string{"/usr/x", "/usr/bin/x", sandbox.KeeperPath, sandbox.SocketDir + "/x"} {
		if out, code := c.run("sh", "-c", `echo x >> "$1"`, "sh", path); code == 0 {
			t.Errorf("%s can be written: %s", path, out)
		}
	}
	socket := sandbox.SocketDir + "/" + sandbox.SocketName
	if out, code := c.run("rm", "-f", socket); code == 0 {
		t.Errorf("the keeper's socket can be removed: %s", out)
	}
	for _, script := range []string{
		"mount -t tmpfs tmpfs /mnt", "umount " + sandbox.WorkspacePath, "mount -o remount,rw /usr",
		"mknod /tmp/sda b 8 0 && cat /tmp/sda", "echo b > /proc/sysrq-trigger",
		"echo x > /proc/sys/kernel/core_pattern", "mount -o remount,rw " + sandbox.SocketDir + " && touch " + sandbox.SocketDir + "/x",
	} {
		if out, code := c.run("sh", "-c", script); code == 0 && !allowedInside(script, out) {
			t.Errorf("%q worked: %s", script, out)
		}
	}
}

// allowedInside reports whether a success is harmless: a kernel of the sandbox's own
// may take a setting that changes nothing outside.
func allowedInside(script, _ string) bool {
	return strings.Contains(script, "core_pattern") && !hostCorePatternChanged()
}

func hostCorePatternChanged() bool {
	b, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	return err == nil && strings.TrimSpace(string(b)) == "x"
}

func wallsProcesses(t *testing.T, c *cell) {
	out := c.sh("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done")
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, sandbox.KeeperPath+" keeper") && !strings.HasPrefix(line, "sh ") && !strings.HasPrefix(line, "tr ") {
			t.Errorf("a process of somebody else is visible: %s", line)
		}
	}
	c.run("sh", "-c", "kill -KILL -1")
	if got := c.must("echo", "alive"); got != "alive\n" {
		t.Errorf("after kill -KILL -1: %q", got)
	}
	// Neither another process' memory nor the keeper's secret.
	out, _ = c.run("sh", "-c", "env; cat /proc/1/environ; cat /proc/self/environ")
	if strings.Contains(out, token(t, c)) {
		t.Error("the keeper's token can be read in the sandbox")
	}
}

// wallsKillKeeper lets a sandbox kill its own process 1. Kernels differ in whether that
// works; either way the driver tells the truth afterwards.
func wallsKillKeeper(t *testing.T, c *cell) {
	p := link.StartParams{ProcessID: "kill", Argv: []string{"sh", "-c", "kill -KILL $PPID"}, Cwd: "/"}
	if err := c.client.Start(within(t), p); err == nil {
		r, err := c.client.Read(within(t), link.ReadParams{ProcessID: "kill", Wait: link.MaxWait})
		for err == nil && !r.Closed {
			r, err = c.client.Read(within(t), link.ReadParams{ProcessID: "kill", AfterSeq: r.NextSeq - 1, Wait: link.MaxWait})
		}
		if err == nil {
			c.must("echo", "alive")
			return
		}
	}
	ended(t, c)
}

// token digs the keeper's token out of the handle: a run of 64 hexadecimal digits.
func token(t *testing.T, c *cell) string {
	t.Helper()
	data := string(c.Handle().Data)
	run := 0
	for i, r := range data {
		if strings.ContainsRune("0123456789abcdef", r) {
			run++
		} else {
			run = 0
		}
		if run == 64 {
			return data[i-63 : i+1]
		}
	}
	t.Fatal("the handle has no token")
	return ""
}

func wallsNetwork(t *testing.T, c *cell) {
	if got := c.must(sandbox.KeeperPath, commandInside, "interfaces"); got != "lo\n" {
		t.Errorf("interfaces = %q, want lo alone", got)
	}
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	addresses := []string{fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("[::1]:%d", port), "169.254.169.254:80"}
	ifAddrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range ifAddrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			addresses = append(addresses, fmt.Sprintf("%s:%d", ip.IP, port))
		}
	}
	if got := c.must(append([]string{sandbox.KeeperPath, commandInside, "connect"}, addresses...)...); got != "" {
		t.Errorf("the sandbox can reach %q", got)
	}
	if out := c.sh("tail -n +2 /proc/net/route || true"); strings.TrimSpace(out) != "" && !strings.Contains(out, "No such file") {
		t.Errorf("the sandbox has routes: %q", out)
	}
	// Abstract sockets belong to a network namespace.
	name := "sojourn-sandboxtest-" + rand.Text()
	abs, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer abs.Close()
	if out := c.sh("grep " + name + " /proc/net/unix || true"); out != "" && !strings.Contains(out, "No such file") {
		t.Errorf("the sandbox sees abstract sockets of the host: %q", out)
	}
}

func wallsPlaces(t *testing.T, c *cell) {
	out := c.sh("echo $HOME; cd ~ && pwd; echo x > ~/f && echo x > /tmp/f && echo x > /workspace/f && cat ~/f /tmp/f /workspace/f; test -c /dev/null && echo y > /dev/null; echo $PATH")
	want := "/home/agent\n/home/agent\nx\nx\nx\n"
	if !strings.HasPrefix(out, want) || !strings.Contains(out, "/usr/bin") {
		t.Errorf("places = %q, want %q and a PATH", out, want)
	}
	// With a server that is not root the sandbox's user may be the server's; it has a
	// name in any case.
	out = c.sh("id -un && getent hosts localhost && (ls /dev/shm /dev/pts && echo z > /dev/shm/z) >/dev/null && head -c 8 /dev/urandom | wc -c")
	if !strings.Contains(out, "root") && os.Geteuid() == 0 {
		t.Errorf("user = %q", out)
	}
}

// wallsReaping leaves orphans behind, as long sessions do.
func wallsReaping(t *testing.T, c *cell) {
	c.sh("i=0; while [ $i -lt 40 ]; do (sleep 0.01 &); i=$((i+1)); done; sleep 0.5")
	deadline := time.Now().Add(patience)
	for {
		out := c.sh("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l; ls -d /proc/[0-9]* | wc -l")
		var zombies, all int
		if _, err := fmt.Sscan(out, &zombies, &all); err != nil {
			t.Fatalf("count processes: %q: %v", out, err)
		}
		if zombies == 0 && all < 10 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d zombies among %d processes", zombies, all)
		}
	}
}

func wallsFreeze(t *testing.T, c *cell) {
	c.launch("ticker", "sh", "-c", "while :; do echo x >> ticks; done")
	ticks := filepath.Join(c.Dirs().Workspace, "ticks")
	grows(t, ticks)
	if n, err := c.client.Freeze(within(t)); err != nil || n < 1 {
		t.Fatalf("Freeze = %d, %v, want at least 1", n, err)
	}
	if err := c.client.Sync(within(t)); err != nil {
		t.Fatalf("Sync = %v", err)
	}
	before := size(t, ticks)
	time.Sleep(50 * time.Millisecond) // a chance to grow
	if after := size(t, ticks); after != before {
		t.Errorf("a frozen process wrote %d bytes", after-before)
	}
	if err := c.client.Thaw(within(t)); err != nil {
		t.Fatalf("Thaw = %v", err)
	}
	grows(t, ticks)
	if _, err := c.client.Terminate(within(t), "ticker", 0); err != nil {
		t.Fatalf("Terminate = %v", err)
	}
}

// grows waits until the file is larger than now.
func grows(t *testing.T, path string) {
	t.Helper()
	before := size(t, path)
	for end := time.Now().Add(patience); size(t, path) <= before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not grow", path)
		}
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func wallsTerminal(t *testing.T, c *cell, d sandbox.Driver) {
	if !d.Capabilities().PTY {
		t.Skip("SKIPPED: the driver claims no terminals")
	}
	p := link.StartParams{ProcessID: "tty", Argv: []string{"sh", "-c", "tty; stty size"}, Cwd: "/", TTY: true, Rows: 30, Cols: 90}
	if err := c.client.Start(within(t), p); err != nil {
		t.Fatalf("start with a terminal: %v", err)
	}
	var out strings.Builder
	for after := int64(0); ; {
		r, err := c.client.Read(within(t), link.ReadParams{ProcessID: "tty", AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			t.Fatal(err)
		}
		for _, chunk := range r.Chunks {
			out.Write(chunk.Data)
		}
		after = r.NextSeq - 1
		if r.Closed {
			break
		}
	}
	if got := out.String(); !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "30 90") {
		t.Errorf("terminal = %q, want /dev/pts/N and 30 90", got)
	}
}

// wallsToken lets an impostor knock at the keeper's socket while the keeper has a
// connection, and while it needs one.
func wallsToken(t *testing.T, c *cell) {
	c.launch("impostor", sandbox.KeeperPath, commandInside, "knock", "200", sandbox.SocketDir+"/"+sandbox.SocketName)
	for out := ""; !strings.Contains(out, "knocked"); {
		r, err := c.client.Read(within(t), link.ReadParams{ProcessID: "impostor", Wait: link.MaxWait})
		if err != nil {
			t.Fatal(err)
		}
		out = ""
		for _, chunk := range r.Chunks {
			out += string(chunk.Data)
		}
		if r.Closed {
			t.Fatalf("the impostor ended: %q", out)
		}
	}
	if got := c.must("echo", "hi"); got != "hi\n" {
		t.Errorf("beside an impostor: %q", got)
	}
	again := connect(t, c.Sandbox)
	if got := again.must("echo", "hi"); got != "hi\n" {
		t.Errorf("after reconnecting beside an impostor: %q", got)
	}
}
