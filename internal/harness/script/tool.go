package script

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// shownBytes bounds what a tool shows of a file or of a command's output.
const shownBytes = 64 << 10

// errWithdrawn ends the wait for an answer that is no longer wanted.
var errWithdrawn = errors.New("withdrawn")

// host says where a path of the sandbox lies; a relative one is in the
// session's working directory.
func (t *turn) host(name string) string {
	if !path.IsAbs(name) {
		name = path.Join(or(t.s.cwd, t.a.p.Dir), name)
	}
	return t.a.p.MapPath(name)
}

// call is a tool call that is being shown.
type call struct {
	t    *turn
	id   string
	head object
}

// show shows a new tool call.
func (t *turn) show(kind, title string) call {
	t.calls++
	c := call{t: t, id: "call_" + strconv.Itoa(t.calls)}
	c.head = object{"toolCallId": c.id, "title": title, "kind": kind, "status": "pending", "rawInput": object{"arg": title}}
	c.update("tool_call", c.head)
	return c
}

func (c call) update(kind string, fields object) {
	u := object{"sessionUpdate": kind, "toolCallId": c.id}
	for k, v := range fields {
		u[k] = v
	}
	c.t.a.update(c.t.s, u)
}

func (c call) done(status, text string) {
	c.update("tool_call_update", object{
		"status":  status,
		"content": []object{{"type": "content", "content": object{"type": "text", "text": text}}},
	})
}

// allowed asks for permission if the prompt wants that, and shows a refusal.
func (c call) allowed() (bool, error) {
	if c.t.ask {
		option, err := c.t.permission(c.head)
		if err != nil {
			return false, err
		}
		if option != "yes" {
			c.done("failed", "rejected")
			return false, nil
		}
	}
	c.update("tool_call_update", object{"status": "in_progress"})
	return true, nil
}

func permissionParams(s *session, toolCall object) object {
	return object{"sessionId": s.id, "toolCall": toolCall, "options": []object{
		{"optionId": "yes", "name": "Allow", "kind": "allow_once"},
		{"optionId": "no", "name": "Reject", "kind": "reject_once"},
	}}
}

// permission asks and returns the chosen option. A question that is answered
// as cancelled cancels the turn.
func (t *turn) permission(toolCall object) (option string, err error) {
	raw, err := t.a.call(t.ctx, "session/request_permission", permissionParams(t.s, toolCall))
	if err != nil {
		return "", err
	}
	var r struct {
		Outcome struct{ Outcome, OptionID string }
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return "", err
	}
	if r.Outcome.Outcome != "selected" {
		return "", errCancelled
	}
	return r.Outcome.OptionID, nil
}

func (t *turn) askUser(arg string) error {
	t.calls++
	option, err := t.permission(object{"toolCallId": "call_" + strconv.Itoa(t.calls), "title": arg, "kind": "other"})
	if err == nil {
		t.say("chosen: " + option)
	}
	return err
}

func (t *turn) withdraw(arg string) error {
	t.calls++
	id, ch := t.a.request("session/request_permission",
		permissionParams(t.s, object{"toolCallId": "call_" + strconv.Itoa(t.calls), "title": arg, "kind": "other"}))
	ctx, cancel := context.WithTimeoutCause(t.ctx, 100*time.Millisecond, errWithdrawn)
	defer cancel()
	if _, err := t.a.await(ctx, id, ch); !errors.Is(err, errWithdrawn) {
		return err
	}
	t.a.send(object{"method": "$/cancel_request", "params": object{"requestId": id}})
	t.say("withdrawn")
	return nil
}

func (t *turn) requestClient(method string) error {
	result, err := t.a.call(t.ctx, method, object{"sessionId": t.s.id})
	var refused *rpcError
	switch {
	case errors.As(err, &refused):
		t.say(fmt.Sprintf("refused: %d", refused.Code))
	case err != nil:
		return err
	default:
		t.say("result: " + string(result))
	}
	return nil
}

func (t *turn) toolCall(arg string) error {
	id, title, _ := strings.Cut(arg, " ")
	c := call{t: t, id: id}
	c.update("tool_call", object{"title": title, "kind": "other", "status": "pending"})
	c.done("completed", title)
	return nil
}

func (t *turn) writeFile(arg string) error {
	name, text, _ := strings.Cut(arg, " ")
	c := t.show("edit", "write "+name)
	if ok, err := c.allowed(); !ok {
		return err
	}
	file := t.host(name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(text+"\n"), 0o644)
	}
	if err != nil {
		c.done("failed", err.Error())
		return nil
	}
	c.done("completed", "wrote "+name)
	return nil
}

// command prepares a shell command that ends, with all it has started, when
// the turn is cancelled.
func (t *turn) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.WaitDelay = t.host("."), time.Second
	cmd.Env = append(append([]string(nil), t.a.p.Env...), "HOME="+t.a.p.MapPath(or(t.a.env["HOME"], "/")))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func (t *turn) run(arg string) error {
	c := t.show("execute", arg)
	if ok, err := c.allowed(); !ok {
		return err
	}
	ctx := t.ctx
	if !t.a.obeys() {
		ctx = t.a.ctx
	}
	out, err := t.command(ctx, arg).CombinedOutput()
	text := shown(out)
	if t.ctx.Err() != nil {
		c.done("failed", text+"cancelled")
		return context.Cause(t.ctx)
	}
	if err != nil {
		c.done("failed", text+err.Error())
		return nil
	}
	c.done("completed", text)
	return nil
}

// shown is what is shown of a command's output: all of it, or its beginning and
// its end, and how much was left out between them.
func shown(out []byte) string {
	if len(out) > shownBytes {
		const half = shownBytes / 2
		cut := fmt.Sprintf("\n[%d of %d bytes are not shown]\n", len(out)-2*half, len(out))
		out = slices.Concat(out[:half], []byte(cut), out[len(out)-half:])
	}
	return string(bytes.ToValidUTF8(out, []byte("?")))
}

// fork leaves a process behind that nobody waits for. It keeps our standard
// output open, as helpers of real agents do.
func (t *turn) fork(arg string) error {
	cmd := t.command(context.Background(), arg)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if t.a.process {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	if err := cmd.Start(); err != nil {
		t.say("fork: " + err.Error())
		return nil
	}
	pid := cmd.Process.Pid
	if !t.a.process {
		go func() { _ = cmd.Wait() }() // reaps it; it is meant to outlive us
	}
	t.say("forked " + strconv.Itoa(pid))
	return nil
}

func (t *turn) cat(arg string) error {
	f, err := os.Open(t.host(arg))
	if err != nil {
		t.say("cat: no such file: " + arg)
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, shownBytes+1))
	if err != nil {
		t.say("cat: " + arg + " cannot be read")
		return nil
	}
	text := strings.ToValidUTF8(string(b[:min(len(b), shownBytes)]), "?")
	if len(b) > shownBytes {
		text += fmt.Sprintf("\n[what follows after %d bytes is not shown]", shownBytes)
	}
	t.say(text)
	return nil
}

func (t *turn) sha(arg string) error {
	sum, n, err := digest(t.host(or(arg, ".")))
	if err != nil {
		t.say("sha: " + err.Error())
		return nil
	}
	t.say(fmt.Sprintf("sha256 %s, %d entries", sum, n))
	return nil
}

// digest is the SHA-256 of names, kinds, permissions, link targets and
// contents of a tree, in the order of names.
func digest(root string) (sum string, entries int, err error) {
	h := sha256.New()
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		entries++
		fmt.Fprintf(h, "%q %v\n", filepath.ToSlash(rel), info.Mode())
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			fmt.Fprintf(h, "%q\n", target)
			return err
		case info.Mode().IsRegular():
			return hashFile(h, name)
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), entries, err
}

func hashFile(h io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(h, f)
	fmt.Fprintf(h, "\n%d\n", n)
	return err
}

// die ends the agent as a signal would.
func (t *turn) die(name string) error {
	sig, ok := map[string]syscall.Signal{
		"SEGV": syscall.SIGSEGV, "KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM,
	}[strings.TrimPrefix(name, "SIG")]
	if !ok {
		t.say("unknown signal: " + name)
		return nil
	}
	if !t.a.process {
		return exiting(128 + int(sig))
	}
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		return err
	}
	return t.sleep(time.Minute)
}
