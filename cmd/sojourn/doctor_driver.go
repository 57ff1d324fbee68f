package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/host"
	"github.com/sojourn-dev/sojourn/internal/link"
	"github.com/sojourn-dev/sojourn/internal/server"
	"github.com/sojourn-dev/sojourn/internal/terminal"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// trialSession names the sandboxes of doctor.
const trialSession = "doctor"

// trialTime bounds what is done with a driver after its probe, and cleanTime what is
// done to undo it.
const (
	trialTime = 60 * time.Second
	cleanTime = 30 * time.Second
)

// trial is how drivers are tried.
type trial struct {
	set  *setup
	dir  string // to work in
	exe  string
	deep bool
}

// driver tries one driver the way serve takes it: it probes it, opens it with the same
// options, and then makes a sandbox as a session's that asks for nothing.
func (t trial) driver(ctx context.Context, row driverRow) driverReport {
	o := t.set.options()
	r := driverReport{Report: runProbe(ctx, row, t.dir, t.exe, o)}
	r.Driver = row.name
	if !r.Available {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	d, err := row.open(filepath.Join(t.dir, "sandboxes", row.name), t.exe, o)
	if err == nil {
		r.Capabilities = new(d.Capabilities())
		err = t.use(ctx, d, &r)
	}
	if err != nil {
		r.Available, r.unusable, r.Capabilities, r.Proxy, r.Processes = false, true, nil, nil, nil
		r.Reason = fmt.Sprintf("A sandbox was made, and the driver does not work as it is to be used: %s.", terminal.Line(err.Error(), 1000))
		r.Fix = "Look at the configuration, or choose another driver."
	}
	return r
}

// use makes a sandbox, looks at it, and leaves nothing of it.
func (t trial) use(ctx context.Context, d sandbox.Driver, r *driverReport) (err error) {
	defer func() { err = errors.Join(err, leave(ctx, d)) }()
	if err := removeAll(ctx, d); err != nil { // of a doctor that was killed
		return err
	}
	spec := server.PlainSpec(t.set.sandbox, d.Capabilities())
	spec.Session, spec.Image = trialSession, "" // nothing is fetched from anywhere
	sb, err := d.Create(ctx, spec)
	if err != nil {
		return err
	}
	c, err := t.dial(ctx, sb)
	if err != nil {
		return err
	}
	defer c.Close()
	if m, ok := sb.(sandbox.Meter); ok {
		if u, err := m.Usage(ctx); err == nil { // unknown otherwise
			r.IdleBytes = u.MemoryBytes
		}
	}
	r.Proxy = new(t.proxy(ctx, sb, c))
	r.Processes = new(t.processes(ctx, d, sb, c, spec))
	return nil
}

// leave removes all that a driver has and closes it.
func leave(ctx context.Context, d sandbox.Driver) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	err := removeAll(ctx, d)
	if u, ok := d.(sandbox.Uninstaller); ok && err == nil {
		err = u.Uninstall(ctx)
	}
	return errors.Join(err, d.Close())
}

func removeAll(ctx context.Context, d sandbox.Driver) error {
	hs, err := d.List(ctx)
	for _, h := range hs {
		err = errors.Join(err, d.Remove(ctx, h))
	}
	return err
}

func (t trial) dial(ctx context.Context, sb sandbox.Sandbox) (*link.Client, error) {
	conn, err := sb.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return link.Open(ctx, link.Framed(conn), link.Options{Epoch: sb.Handle().Epoch})
}

// proxy asks the server's proxy from inside the sandbox for something that the policy
// does not allow: the answer can only come from the proxy.
func (t trial) proxy(ctx context.Context, sb sandbox.Sandbox, c *link.Client) host.Check {
	check := host.Check{Name: "proxy", State: host.Works, Says: "The server's proxy was asked from inside and refused what the policy none does not allow."}
	if err := t.askProxy(ctx, sb, c); err != nil {
		check.State = host.Fails
		check.Says = fmt.Sprintf("Sandboxes have no way to the network: %s.", terminal.Line(strings.TrimSpace(err.Error()), 300))
		check.Fix = "Choose another driver for sessions that need the network."
	}
	return check
}

func (t trial) askProxy(ctx context.Context, sb sandbox.Sandbox, c *link.Client) error {
	gate, err := t.set.egress.Open(ctx, egress.Spec{
		Session: trialSession, Dir: sb.Dirs().Sockets, Policy: sojourn.NetworkPolicy{Mode: sojourn.NetworkNone},
	})
	if err != nil {
		return err
	}
	defer gate.Close()
	const id = "proxy"
	if err := c.Start(ctx, link.StartParams{ProcessID: id, Argv: []string{link.ProgramDial, sandbox.EgressAddress}, Cwd: sandbox.WorkspacePath, PipeStdin: true}); err != nil {
		return err
	}
	// The end of what is asked for is not sent: that would end the connection.
	request := "GET http://doctor.invalid/ HTTP/1.1\r\nHost: doctor.invalid\r\nConnection: close\r\n\r\n"
	if err := c.Write(ctx, id, "1", []byte(request)); err != nil && !errors.Is(err, link.ErrStdinClosed) {
		return err
	}
	answer, err := read(ctx, c, id, func([]byte) bool { return false })
	switch {
	case err != nil:
		return err
	case !bytes.HasPrefix(answer, []byte("HTTP/1.1 403 ")):
		return fmt.Errorf("it is answered %q", answer)
	}
	return nil
}

// maxAnswer bounds what is read of a program of doctor.
const maxAnswer = 64 << 10

// read returns what a program writes until enough says so or its end. A program that
// ends without having written anything has failed: the error is its last words.
func read(ctx context.Context, c *link.Client, id string, enough func([]byte) bool) ([]byte, error) {
	var errs, out []byte
	for after := int64(0); ; {
		r, err := c.Read(ctx, link.ReadParams{ProcessID: id, AfterSeq: after, Wait: link.MaxWait})
		if err != nil {
			return nil, err
		}
		for _, chunk := range r.Chunks {
			if chunk.Stream == "stderr" {
				errs = append(errs, chunk.Data...)
			} else {
				out = append(out, chunk.Data...)
			}
		}
		after = r.NextSeq - 1
		switch {
		case enough(out), len(out)+len(errs) > maxAnswer, r.Closed && len(out) > 0:
			return out, nil
		case r.Closed:
			return nil, errors.New(cmp.Or(strings.TrimSpace(string(errs)), r.Failure, "it said nothing"))
		}
	}
}

// processes says whether processes of a sandbox can be saved, and with deep tries it.
func (t trial) processes(ctx context.Context, d sandbox.Driver, sb sandbox.Sandbox, c *link.Client, spec sandbox.Spec) host.Check {
	check := host.Check{Name: "processes", State: host.Untried, Says: "They can be saved and resumed; sojourn doctor --deep tries it."}
	switch {
	case !d.Capabilities().ProcessSnapshot:
		check.State, check.Says = host.Off, "This driver cannot save processes: a session that goes on has its files and conversation, and its programs are started anew."
	case t.deep:
		says, err := t.saveAndResume(ctx, d, sb, c, spec)
		if check.State, check.Says = host.Works, says; err != nil {
			check.State = host.Fails
			check.Says = fmt.Sprintf("A running program could not be saved and resumed: %s.", terminal.Line(err.Error(), 1000))
			check.Fix = "Sessions go on with their files and conversation all the same; report it with this text."
		}
	}
	return check
}

// saveAndResume saves a sandbox in which a program runs and has it go on in another.
func (t trial) saveAndResume(ctx context.Context, d sandbox.Driver, sb sandbox.Sandbox, c *link.Client, spec sandbox.Spec) (string, error) {
	const id = "echo"
	if err := c.Start(ctx, link.StartParams{ProcessID: id, Argv: []string{"/bin/cat"}, PipeStdin: true, Cwd: sandbox.WorkspacePath}); err != nil {
		return "", err
	}
	if err := expect(ctx, c, id, "before\n", "before\n"); err != nil {
		return "", err
	}
	dir := filepath.Join(t.dir, "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	defer os.RemoveAll(dir) // the place is removed after it, and complains
	began := time.Now()
	saved, err := sb.(sandbox.Snapshotter).Snapshot(ctx, dir)
	if err != nil {
		return "", err
	}
	saving := time.Since(began)
	began = time.Now()
	spec.Epoch, spec.Resume = spec.Epoch+1, &sandbox.Resume{Dir: dir, Snapshot: saved}
	if _, err := d.(sandbox.Resumer).Prepare(ctx, spec); err != nil {
		return "", err
	}
	next, err := d.Create(ctx, spec)
	if err != nil {
		return "", err
	}
	c, err = t.dial(ctx, next)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := expect(ctx, c, id, "after\n", "before\nafter\n"); err != nil {
		return "", err
	}
	return fmt.Sprintf("A running program was saved (%s, %.1f s) and went on in another sandbox (%.1f s).",
		host.Bytes(saved.Bytes), saving.Seconds(), time.Since(began).Seconds()), nil
}

// expect sends text to a program that repeats it, and waits for all that it has said.
func expect(ctx context.Context, c *link.Client, id, text, want string) error {
	if err := c.Write(ctx, id, text, []byte(text)); err != nil {
		return err
	}
	got, err := read(ctx, c, id, func(out []byte) bool { return len(out) >= len(want) })
	if err == nil && string(got) != want {
		err = fmt.Errorf("the program said %q, not %q", got, want)
	}
	return err
}
