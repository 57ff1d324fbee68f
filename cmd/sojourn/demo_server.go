package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// demoServer is a real server process on a directory of its own.
type demoServer struct {
	exe, dir, key string
	flags         []string
	listen        string // HOST:PORT; port 0 until the first start
	cmd           *exec.Cmd
	exited        chan struct{}
}

// start runs the server and waits for its address. While a server is down, its
// port may be lent to somebody's outgoing connection; it is waited for.
func (s *demoServer) start(ctx context.Context) (err error) {
	for range 40 {
		if err = s.startOnce(ctx); err == nil || !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) {
			return err
		}
		time.Sleep(250 * time.Millisecond)
	}
	return err
}

func (s *demoServer) startOnce(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	args := append([]string{"serve", "--listen", s.listen, "--data", filepath.Join(s.dir, "data")}, s.flags...)
	s.cmd = exec.Command(s.exe, args...)
	s.cmd.Env = append(os.Environ(), "SOJOURN_ADMIN_KEY="+s.key)
	s.cmd.Stderr = log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo, which then cleans up
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	s.exited = make(chan struct{})
	address := make(chan string, 1)
	go func() {
		defer close(s.exited)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if _, url, ok := strings.Cut(line, "http://"); ok {
				select {
				case address <- strings.TrimSpace(url):
				default:
				}
			}
			if err != nil {
				break
			}
		}
		s.cmd.Wait()
	}()
	select {
	case s.listen = <-address:
		return nil
	case <-s.exited:
		return fmt.Errorf("the server ended at once; its log says:\n%s", s.logTail())
	case <-time.After(60 * time.Second):
		return errors.New("the server did not say its address within a minute")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *demoServer) url() string { return "http://" + s.listen }

// kill ends the server as a crash would.
func (s *demoServer) kill() {
	s.cmd.Process.Kill()
	<-s.exited
}

// stop ends the server in good order.
func (s *demoServer) stop() error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	select {
	case <-s.exited:
		return nil
	default:
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
		return nil
	case <-time.After(15 * time.Second):
		s.kill()
		return errors.New("the server did not stop within 15 seconds of being asked")
	}
}

func (s *demoServer) logTail() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "server.log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// sandboxProcesses returns the processes that belong to sandboxes below dir:
// those whose command line or mounts name it, but not the server's own.
func sandboxProcesses(dir string, except ...int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || contains(except, pid) {
			continue
		}
		if mentions(pid, "cmdline", dir) || mentions(pid, "mountinfo", dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func contains(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

func mentions(pid int, file, text string) bool {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), file))
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	return err == nil && bytes.Contains(b, []byte(text))
}

// killSandboxes kills the processes of all sandboxes below dir with SIGKILL and
// returns how many it killed.
func killSandboxes(dir string, except ...int) int {
	n := 0
	for _, pid := range sandboxProcesses(dir, except...) {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}
