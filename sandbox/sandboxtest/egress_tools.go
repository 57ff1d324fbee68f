package sandboxtest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// testEgressTools lets the programs that agents use fetch something through the allow
// list, from servers of this process.
func testEgressTools(t *testing.T, s *Suite) {
	w := openWayOut(t, s, "tools", "git.test", "git.test:9418", "npm.test", "pip.test", "go.test", "apt.test", "web.test", "example.com")
	for _, tool := range []struct {
		name string
		try  func(*testing.T, *wayOut)
	}{
		{"git", fetchByGit}, {"npm", fetchByNPM}, {"node", fetchByNode}, {"pip", fetchByPip}, {"python", fetchByPython}, {"go", fetchByGo}, {"apt", fetchByAPT},
	} {
		t.Run(tool.name, func(t *testing.T) { tool.try(t, w) })
	}
}

// ok fails the test unless the script succeeds and its output holds want.
func (w *wayOut) ok(t *testing.T, how string, out string, code int, want string) {
	t.Helper()
	if code != 0 || !strings.Contains(out, want) {
		t.Errorf("%s = %d %.2000s, want %q", how, code, out, want)
	}
}

func fetchByGit(t *testing.T, w *wayOut) {
	w.needs(t, "git")
	exe, err := exec.LookPath("git")
	if err != nil {
		t.Skipf("SKIPPED: no git on this host to serve with: %v", err)
	}
	root := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command(exe, args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=n", "GIT_AUTHOR_EMAIL=e@example.com", "GIT_COMMITTER_NAME=n", "GIT_COMMITTER_EMAIL=e@example.com")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "--bare", "repo.git")
	tree := git("-C", "repo.git", "hash-object", "-w", "-t", "tree", "/dev/null")
	git("-C", "repo.git", "update-ref", "HEAD", git("-C", "repo.git", "commit-tree", "-m", "one", tree))
	backend := &cgi.Handler{Path: exe, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}}
	w.out.mux.Handle("git.test/", backend)
	w.out.mux.Handle("example.com/repo.git/", backend)
	w.out.serve(9418, serveGitDaemon(t, exe, root))
	for i, url := range []string{"http://git.test/repo.git", "-c http.sslCAInfo=/workspace/roots.pem https://example.com/repo.git"} {
		script := fmt.Sprintf("cd /tmp && git clone -q %s p%d && git -C p%d log --format=%%s", url, i, i)
		out, code := w.proxied(script)
		w.ok(t, "with proxy, "+url, out, code, "one\n")
		out, code = w.direct(strings.ReplaceAll(script, fmt.Sprintf("p%d", i), fmt.Sprintf("d%d", i)))
		w.ok(t, "without proxy, "+url, out, code, "one\n")
	}
	out, code := w.direct("cd /tmp && git clone -q git://git.test/repo.git d9 && git -C d9 log --format=%s")
	w.ok(t, "git protocol", out, code, "one\n")
}

// serveGitDaemon speaks git's own protocol.
func serveGitDaemon(t *testing.T, exe, root string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f, err := c.(*net.TCPConn).File()
			c.Close()
			if err != nil {
				return
			}
			cmd := exec.Command(exe, "daemon", "--inetd", "--export-all", "--base-path="+root)
			cmd.Stdin, cmd.Stdout = f, f
			_ = cmd.Run() // what went wrong the client says
			f.Close()
		}
	}()
	return ln.Addr().String()
}

func fetchByNPM(t *testing.T, w *wayOut) {
	w.needs(t, "node", "npm")
	var tgz bytes.Buffer
	gz := gzip.NewWriter(&tgz)
	tw := tar.NewWriter(gz)
	for name, text := range map[string]string{
		"package/package.json": `{"name":"left","version":"1.0.0","main":"index.js"}`,
		"package/index.js":     `module.exports = "left of npm"`,
	} {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	w.out.mux.HandleFunc("npm.test/left", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprint(rw, `{"name":"left","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"left","version":"1.0.0","dist":{"tarball":"http://npm.test/left/-/left-1.0.0.tgz"}}}}`)
	})
	w.out.mux.HandleFunc("npm.test/left/-/left-1.0.0.tgz", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(tgz.Bytes()) })
	out, code := w.direct(`mkdir /tmp/npm && cd /tmp/npm && echo '{}' >package.json &&
		npm install --registry=http://npm.test --no-audit --no-fund --no-update-notifier left && node -p 'require("left")'`)
	w.ok(t, "without proxy", out, code, "left of npm")
}

func fetchByNode(t *testing.T, w *wayOut) {
	w.needs(t, "node")
	out, code := w.direct(`node -e 'fetch("http://web.test/").then(r => r.text()).then(console.log)'`)
	w.ok(t, "fetch", out, code, "this is web.test")
}

func fetchByPython(t *testing.T, w *wayOut) {
	w.needs(t, "python3")
	out, code := w.direct(`python3 -c 'import urllib.request; print(urllib.request.urlopen("http://web.test/").read())'`)
	w.ok(t, "urllib", out, code, "this is web.test")
}

func fetchByPip(t *testing.T, w *wayOut) {
	w.needs(t, "pip")
	wheel := zipped(t, map[string]string{
		"left.py":                          `side = "left of pip"`,
		"left-1.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: left\nVersion: 1.0\n",
		"left-1.0.dist-info/WHEEL":         "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"left-1.0.dist-info/RECORD":        "left.py,,\nleft-1.0.dist-info/METADATA,,\nleft-1.0.dist-info/WHEEL,,\nleft-1.0.dist-info/RECORD,,\n",
		"left-1.0.dist-info/INSTALLER":     "x\n",
		"left-1.0.dist-info/top_level.txt": "left\n",
	})
	w.out.mux.HandleFunc("pip.test/simple/left/", func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, `<!DOCTYPE html><a href="/left-1.0-py3-none-any.whl">left-1.0-py3-none-any.whl</a>`)
	})
	w.out.mux.HandleFunc("pip.test/left-1.0-py3-none-any.whl", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(wheel) })
	out, code := w.proxied(`pip install -q --disable-pip-version-check --target /tmp/pip --no-cache-dir \
		--index-url http://pip.test/simple --trusted-host pip.test left && PYTHONPATH=/tmp/pip python3 -c 'import left; print(left.side)'`)
	w.ok(t, "with proxy", out, code, "left of pip")
}

func fetchByGo(t *testing.T, w *wayOut) {
	w.needs(t, "/usr/local/go/bin/go")
	const mod = "module go.test/left\n"
	w.out.mux.HandleFunc("go.test/go.test/left/@v/list", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "v1.0.0") })
	w.out.mux.HandleFunc("go.test/go.test/left/@v/v1.0.0.info", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, `{"Version":"v1.0.0"}`) })
	w.out.mux.HandleFunc("go.test/go.test/left/@v/v1.0.0.mod", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, mod) })
	archive := zipped(t, map[string]string{"go.test/left@v1.0.0/go.mod": mod, "go.test/left@v1.0.0/left.go": "package left\n"})
	w.out.mux.HandleFunc("go.test/go.test/left/@v/v1.0.0.zip", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(archive) })
	for _, how := range []struct {
		name string
		run  func(string) (string, int)
	}{{"with proxy", w.proxied}, {"without proxy", w.direct}} {
		out, code := how.run(`rm -rf /tmp/go && mkdir /tmp/go && cd /tmp/go && export GOPATH=/tmp/go/path GOCACHE=/tmp/go/cache GOFLAGS=-modcacherw \
			GOPROXY=http://go.test GONOSUMDB=* GONOSUMCHECK=1 GOTOOLCHAIN=local PATH=$PATH:/usr/local/go/bin &&
			go mod init x.test/x && go get go.test/left@v1.0.0 && cat go.mod`)
		w.ok(t, how.name, out, code, "go.test/left v1.0.0")
	}
}

func fetchByAPT(t *testing.T, w *wayOut) {
	w.needs(t, "apt-get")
	packages := []byte("Package: left\nVersion: 1.0\nArchitecture: all\nMaintainer: n <e@example.com>\nDescription: left of apt\nFilename: ./left.deb\nSize: 1\nSHA256: " +
		strings.Repeat("0", 64) + "\n")
	sum := sha256.Sum256(packages)
	release := fmt.Sprintf("Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %s %d Packages\n", hex.EncodeToString(sum[:]), len(packages))
	w.out.mux.HandleFunc("apt.test/Packages", func(rw http.ResponseWriter, _ *http.Request) { rw.Write(packages) })
	w.out.mux.HandleFunc("apt.test/Release", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, release) })
	w.out.mux.HandleFunc("apt.test/InRelease", http.NotFound)
	w.out.mux.HandleFunc("apt.test/Release.gpg", http.NotFound)
	for _, how := range []struct {
		name string
		run  func(string) (string, int)
	}{{"with proxy", w.proxied}, {"without proxy", w.direct}} {
		out, code := how.run(`D=/tmp/apt; rm -rf $D; mkdir -p $D/etc/apt.conf.d $D/etc/preferences.d $D/etc/trusted.gpg.d $D/state/lists/partial $D/cache/archives/partial $D/log
			touch $D/status; echo 'deb [trusted=yes] http://apt.test/ ./' >$D/etc/sources.list
			O="-o Dir::Etc=$D/etc -o Dir::State=$D/state -o Dir::State::status=$D/status -o Dir::Cache=$D/cache -o Dir::Log=$D/log -o APT::Sandbox::User=root"
			apt-get $O update && apt-cache $O show left`)
		w.ok(t, how.name, out, code, "left of apt")
	}
}

// zipped makes an archive in memory.
func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
