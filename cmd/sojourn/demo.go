package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// demo shows, on a real server with real sandboxes, that a session survives the
// loss of its sandbox and of its server. It checks every claim it makes.
func demo(ctx context.Context, io stdio, args []string) error {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(io.err)
	driver := fs.String("driver", "auto", "sandbox driver: auto, gvisor, namespace or docker")
	runtime := fs.String("runtime", "script", "agent program; the demo's turns are written for script")
	keep := fs.Bool("keep", false, "keep the data directory")
	if err := fs.Parse(args); err != nil {
		return asUsage(err)
	}
	if fs.NArg() > 0 {
		return usagef("demo takes no arguments")
	}
	if *runtime != "script" {
		return usagef("the demo's turns are written for the runtime script; %q is not shown by it yet", *runtime)
	}
	if err := becomeStatic(ctx, io); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sojourn-demo-")
	if err != nil {
		return err
	}
	key := make([]byte, 24)
	rand.Read(key)
	s := &demoServer{
		exe: exe, dir: dir, key: "demo-" + hex.EncodeToString(key), listen: "127.0.0.1:0",
		flags: []string{"--driver", *driver},
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	d := &demoRun{stdio: io, server: s, client: &demoClient{server: s}, began: time.Now()}
	err = d.tell(ctx)
	if cleanErr := d.clean(*keep); err == nil {
		err = cleanErr
	}
	return d.summary(err)
}

// asUsage gives a flag error the exit code of a usage error.
func asUsage(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return &exitError{exitUsage, errors.New("")} // the flag package has said why
}

// demoRun is one showing.
type demoRun struct {
	stdio
	server  *demoServer
	client  *demoClient
	session string
	follow  *follower
	stop    context.CancelFunc // of the follower
	stopped chan struct{}
	began   time.Time
	checks  []demoCheck
}

// demoCheck is one claim and whether it held.
type demoCheck struct {
	claim string
	err   error
}

func (d *demoRun) say(format string, args ...any) {
	fmt.Fprintf(d.out, "\n%5.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// check records a claim and shows whether it held.
func (d *demoRun) check(ok bool, claim string, args ...any) {
	c := demoCheck{claim: fmt.Sprintf(claim, args...)}
	mark := "ok  "
	if !ok {
		c.err, mark = errors.New("does not hold"), "FAIL"
	}
	d.checks = append(d.checks, c)
	fmt.Fprintf(d.out, "        %s %s\n", mark, c.claim)
}

// tell shows the story.
func (d *demoRun) tell(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.startServer, d.createSession, d.firstTurn, d.loseSandbox, d.secondTurn, d.loseServer, d.checkLog, d.archive,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demoRun) startServer(ctx context.Context) error {
	d.say("Starting a server on a new data directory.")
	if err := d.server.start(ctx); err != nil {
		return err
	}
	var out struct {
		Capabilities struct {
			Environments []struct {
				Label        string
				Availability struct{ State string }
			}
		}
	}
	if err := d.client.call(ctx, http.MethodGet, "/v1/capabilities", nil, &out); err != nil {
		return err
	}
	env := out.Capabilities.Environments
	d.check(len(env) == 1 && env[0].Availability.State == "available", "the server at %s has somewhere to run", d.server.url())
	return nil
}

func (d *demoRun) createSession(ctx context.Context) error {
	var out struct{ Session demoSession }
	body := map[string]any{"title": "demo", "runtime": "script"}
	if err := d.client.call(ctx, http.MethodPost, "/v1/sessions", body, &out); err != nil {
		return err
	}
	s := out.Session
	d.session = s.ID
	d.say("Created session %s. Following its events from the start.", s.ID)
	d.check(s.Workspace.State == "unavailable" && s.Continuation.State == "fresh",
		"creating it provisioned nothing (workspace %s, continuation %s)", s.Workspace.State, s.Continuation.State)
	d.follow = newFollower(d.client, s.ID, d.show)
	var fctx context.Context
	fctx, d.stop = context.WithCancel(ctx)
	d.stopped = make(chan struct{})
	go func() {
		defer close(d.stopped)
		d.follow.run(fctx)
	}()
	return nil
}

// submit gives the session a turn and returns its run.
func (d *demoRun) submit(ctx context.Context, lines ...string) (run string, err error) {
	var out struct{ Run struct{ ID string } }
	body := map[string]any{"input": strings.Join(lines, "\n")}
	err = d.client.call(ctx, http.MethodPost, "/v1/sessions/"+d.session+"/turns", body, &out)
	return out.Run.ID, err
}

// ended waits for the end of a run and returns the type of its last event.
func (d *demoRun) ended(ctx context.Context, run string) (string, error) {
	e, err := d.follow.await(ctx, "the end of the run", func(e demoEvent) bool {
		switch e.Type {
		case "wamp.run.completed", "wamp.run.failed", "wamp.run.crashed", "wamp.run.cancelled":
			return e.RunID == run
		}
		return false
	})
	return e.Type, err
}

func (d *demoRun) firstTurn(ctx context.Context) error {
	d.say("Turn 1: the agent learns a fact and writes files.")
	run, err := d.submit(ctx,
		"@say I will remember that the harbour is called Vlissingen.",
		"@remember harbour Vlissingen",
		"@write notes/plan.md # The plan: sail at dawn",
		"@run mkdir -p src && seq 1 1000 > src/numbers.txt && ln -s numbers.txt src/link && chmod 700 src/numbers.txt",
		"@sha .",
	)
	if err != nil {
		return err
	}
	end, err := d.ended(ctx, run)
	if err != nil {
		return err
	}
	d.check(end == "wamp.run.completed", "turn 1 completed")
	s, err := d.client.session(ctx, d.session)
	if err != nil {
		return err
	}
	d.check(s.Workspace.State == "attached" && s.Continuation.State == "live" && s.Continuation.BoundaryRunID == run,
		"the sandbox is held (until %s) and run 1 is sealed as a checkpoint", s.Workspace.ExpiresAt)
	return nil
}

func (d *demoRun) loseSandbox(ctx context.Context) error {
	d.say("Killing the sandbox with SIGKILL.")
	n := killSandboxes(d.server.dir, d.server.cmd.Process.Pid)
	d.check(n > 0, "killed the %d processes that were the sandbox", n)
	var s demoSession
	for {
		var err error
		if s, err = d.client.session(ctx, d.session); err != nil {
			return err
		}
		if s.Workspace.State != "attached" {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the session to say that its sandbox is lost: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	c := s.Continuation
	d.check(s.Workspace.State == "expired" || s.Workspace.State == "unavailable", "the session says so: workspace is %s", s.Workspace.State)
	d.check(c.State == "restorable" && c.CanContinue && c.Reason == nil,
		"before a cent is spent it says that the next turn will carry the work: %s, conversation %s, files %s, no reason against it",
		c.State, c.Conversation.Fidelity, c.Workspace.Fidelity)
	return nil
}

func (d *demoRun) secondTurn(ctx context.Context) error {
	d.say("Turn 2: a fresh sandbox must know what the first one knew.")
	run, err := d.submit(ctx, "@recall harbour", "@cat notes/plan.md", "@run wc -l < src/link", "@sha .")
	if err != nil {
		return err
	}
	end, err := d.ended(ctx, run)
	if err != nil {
		return err
	}
	events, _, _ := d.follow.all()
	text := agentText(events, run)
	d.check(end == "wamp.run.completed", "turn 2 completed")
	d.check(happened(events, "wamp.workspace.restored"), "it ran in a fresh sandbox, restored from the checkpoint")
	d.check(strings.Contains(text, "Vlissingen"), "the conversation came back: the agent recalls the harbour")
	d.check(strings.Contains(text, "sail at dawn"), "the files came back: the plan is there")
	first, second := digestIn(agentText(events, firstRun(events))), digestIn(text)
	d.check(first != "" && first == second, "the whole tree came back bit for bit (digest %.12s)", second)
	return nil
}

// happened reports whether an event of that type is among events.
func happened(events []demoEvent, kind string) bool {
	for _, e := range events {
		if e.Type == kind {
			return true
		}
	}
	return false
}

func firstRun(events []demoEvent) string {
	for _, e := range events {
		if e.RunID != "" {
			return e.RunID
		}
	}
	return ""
}

// digestIn finds the SHA-256 that @sha said; the last one in text.
func digestIn(text string) string {
	found := ""
	for _, w := range strings.Fields(text) {
		w = strings.Trim(w, ",.")
		if _, err := hex.DecodeString(w); err == nil && len(w) == 64 {
			found = w
		}
	}
	return found
}

// demoSteps is how many steps the long turn has, and demoStepMS how long each.
const (
	demoSteps  = 20
	demoStepMS = 250
)

func (d *demoRun) loseServer(ctx context.Context) error {
	d.say("Turn 3: a long turn. The server is killed in the middle of it.")
	run, err := d.submit(ctx, fmt.Sprintf("@work %d %d", demoSteps*demoStepMS, demoStepMS), "@recall harbour")
	if err != nil {
		return err
	}
	half := func(e demoEvent) bool { return e.RunID == run && chunkText(e) != "" }
	n := 0
	if _, err := d.follow.await(ctx, "the long turn's progress", func(e demoEvent) bool {
		if half(e) {
			n++
		}
		return n >= demoSteps/4
	}); err != nil {
		return err
	}
	d.say("Killing the server with SIGKILL.")
	d.server.kill()
	before, _, _ := d.follow.all()
	agents := sandboxProcesses(d.server.dir)
	d.check(len(agents) > 0, "the server is gone, the sandbox with the agent is not")
	time.Sleep(1500 * time.Millisecond)
	d.say("Starting the server again.")
	if err := d.server.start(ctx); err != nil {
		return err
	}
	end, err := d.ended(ctx, run)
	if err != nil {
		return err
	}
	events, _, breaks := d.follow.all()
	text := agentText(events, run)
	d.check(end == "wamp.run.completed", "the run completed")
	d.check(happened(events[len(before):], "wamp.run.recovered"), "the server took the run up where its log ended, at event %d", len(before))
	d.check(d.everyStep(events, run) == nil, "all %d steps of the agent are in the log once, also those made while no server ran%s",
		demoSteps, why(d.everyStep(events, run)))
	d.check(strings.Contains(text, "Vlissingen"), "the agent is the same one: it still knows the harbour")
	d.check(breaks > 0, "the client's stream was cut and resumed with Last-Event-ID")
	return nil
}

func why(err error) string {
	if err == nil {
		return ""
	}
	return " (" + err.Error() + ")"
}

// everyStep checks that each numbered step of the long turn was said once.
func (d *demoRun) everyStep(events []demoEvent, run string) error {
	next := 1
	for _, e := range events {
		var i, of int
		if e.RunID != run {
			continue
		}
		if _, err := fmt.Sscanf(chunkText(e), "step %d of %d", &i, &of); err != nil {
			continue
		}
		if i != next {
			return fmt.Errorf("step %d came where step %d was due", i, next)
		}
		next++
	}
	if next != demoSteps+1 {
		return fmt.Errorf("%d steps", next-1)
	}
	return nil
}

func (d *demoRun) checkLog(ctx context.Context) error {
	d.say("Comparing what the client saw with the log.")
	events, wrong, _ := d.follow.all()
	d.check(wrong == "", "the client saw every sequence number from 1 to %d exactly once, across two deaths%s", len(events), wrong)
	var page struct{ Events []demoEvent }
	if err := d.client.call(ctx, http.MethodGet, "/v1/sessions/"+d.session+"/events?limit=1000", nil, &page); err != nil {
		return err
	}
	same := len(page.Events) >= len(events)
	for i := range events {
		same = same && page.Events[i].Sequence == events[i].Sequence && page.Events[i].Type == events[i].Type &&
			sameJSON(page.Events[i].Data, events[i].Data)
	}
	d.check(same, "the log has the same %d events in the same order", len(events))
	return nil
}

func sameJSON(a, b json.RawMessage) bool { return string(a) == string(b) }

func (d *demoRun) archive(ctx context.Context) error {
	d.say("Archiving the session: its sandbox is given back.")
	var out struct{ Session demoSession }
	if err := d.client.call(ctx, http.MethodPost, "/v1/sessions/"+d.session+"/archive", nil, &out); err != nil {
		return err
	}
	d.check(out.Session.Continuation.State == "unavailable", "the session is readable and takes no more work")
	for len(sandboxProcesses(d.server.dir, d.server.cmd.Process.Pid)) > 0 {
		select {
		case <-ctx.Done():
			return errors.New("the sandbox was not destroyed")
		case <-time.After(20 * time.Millisecond):
		}
	}
	d.check(true, "no process of the sandbox is left")
	return nil
}

// clean ends all that the demo started and removes what it wrote.
func (d *demoRun) clean(keep bool) error {
	if d.stop != nil {
		d.stop()
		<-d.stopped
	}
	err := d.server.stop()
	killSandboxes(d.server.dir)
	for range 100 { // the kernel needs a moment to end what was killed
		if len(sandboxProcesses(d.server.dir)) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if left := sandboxProcesses(d.server.dir); len(left) > 0 && err == nil {
		err = fmt.Errorf("processes are left: %v", left)
	}
	if keep {
		fmt.Fprintf(d.out, "\nThe data directory is kept: %s\n", filepath.Join(d.server.dir, "data"))
		return err
	}
	if rmErr := os.RemoveAll(d.server.dir); err == nil {
		err = rmErr
	}
	return err
}

// summary says what held. The error is nil only when everything did.
func (d *demoRun) summary(err error) error {
	failed := 0
	for _, c := range d.checks {
		if c.err != nil {
			failed++
		}
	}
	fmt.Fprintf(d.out, "\n%d of %d claims held, in %.1f s.\n", len(d.checks)-failed, len(d.checks), time.Since(d.began).Seconds())
	switch {
	case err != nil:
		return fmt.Errorf("the demo did not finish: %w", err)
	case failed > 0:
		return errors.New("the demo's claims did not all hold")
	}
	fmt.Fprintln(d.out, "A session outlived its sandbox and its server. Nothing was left behind.")
	return nil
}
