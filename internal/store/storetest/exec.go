package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/store"
)

// createBare makes an open session without an agent; change may alter it.
func createBare(t testing.TB, s store.Store, id sojourn.SessionID, change ...func(*sojourn.NewSession)) {
	t.Helper()
	update(t, s, func(tx *store.Tx) error {
		in := sojourn.NewSession{
			ID: id, Project: sojourn.DefaultProject, Contract: sojourn.ContractExec, Runtime: sojourn.RuntimeNone,
		}
		for _, c := range change {
			c(&in)
		}
		d, err := sojourn.Create(tx.Now(), in)
		if err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
	decide(t, s, id, (*sojourn.Decision).Start)
}

// provide has a session hold a sandbox.
func provide(t testing.TB, s store.Store, id sojourn.SessionID) {
	t.Helper()
	decide(t, s, id, func(d *sojourn.Decision) error {
		l, err := d.RequestLease("fake", "none", sojourn.Terms{})
		return errors.Join(err, d.HoldLease(l.Epoch, []byte(`{}`), d.Facts().Session.Head))
	})
}

// execute has a session accept an exec.
func execute(t testing.TB, s store.Store, id sojourn.SessionID, exec sojourn.ExecID, change ...func(*sojourn.NewExec)) (x sojourn.Exec) {
	t.Helper()
	in := sojourn.NewExec{
		ID: exec, Spec: sojourn.ExecSpec{Argv: []string{"true"}, Timeout: time.Minute}, Interaction: sojourn.InteractionID("ask-" + exec),
	}
	for _, c := range change {
		c(&in)
	}
	update(t, s, func(tx *store.Tx) error {
		f, err := tx.Facts(id)
		if err != nil {
			return err
		}
		open, err := tx.CountOpenExecs(id)
		if err != nil {
			return err
		}
		d := f.Decide(tx.Now())
		if x, err = d.Execute(in, open, sojourn.ExecRate{Exec: 1}); err != nil {
			return err
		}
		return tx.Apply(d.Change())
	})
	return x
}

func detached(in *sojourn.NewExec) { in.Spec.Detached = true }
func asking(in *sojourn.NewExec)   { in.Spec.Ask = true }

func given(data string) func(*sojourn.NewExec) {
	return func(in *sojourn.NewExec) { in.Spec.Stdin, in.Input = sojourn.StdinGiven, []byte(data) }
}

func testEveryFieldOfAnExecIsKept(t *testing.T, open Open) {
	s := open(t, nil)
	createBare(t, s, "s")
	x := filled[sojourn.Exec](100)
	x.Session, x.Number, x.State = "s", 1, sojourn.ExecRunning
	tool, other, carryover := filled[sojourn.Tool](200), filled[sojourn.Tool](300), filled[sojourn.Carryover](400)
	tool.Session, other.Session, carryover.Session = "s", "s", "s"
	for key := range carryover.Custom {
		carryover.Custom[key] = json.RawMessage(`{"a":1}`)
	}
	apply := func() {
		t.Helper()
		update(t, s, func(tx *store.Tx) error {
			f, err := tx.Facts("s")
			if err != nil {
				return err
			}
			c := f.Decide(tx.Now()).Change()
			c.Execs, c.Tools, c.Carryover = []sojourn.Exec{x}, []sojourn.Tool{tool, other}, &carryover
			return tx.Apply(c)
		})
		view(t, s, func(tx *store.Tx) error {
			got, err := tx.Exec(x.ID)
			same(t, "exec", got, x)
			all, errAll := tx.Execs("s", 0, 0)
			same(t, "execs", all, []sojourn.Exec{x})
			gotTool, errTool := tx.Tool("s", tool.Name)
			same(t, "tool", gotTool, tool)
			tools, errTools := tx.Tools("s")
			same(t, "tools", tools, []sojourn.Tool{tool, other})
			gotCarryover, errCarryover := tx.Carryover("s")
			same(t, "carryover", gotCarryover, carryover)
			return errors.Join(err, errAll, errTool, errTools, errCarryover)
		})
	}
	apply()

	// Now every field that may change does. What identifies an exec, and what is to
	// be run, never does.
	was, next := x, filled[sojourn.Exec](1100)
	x = next
	x.ID, x.Session, x.Number, x.Spec, x.QueuedAt, x.State = was.ID, was.Session, was.Number, was.Spec, was.QueuedAt, sojourn.ExecEnded
	name := tool.Name
	tool, carryover = filled[sojourn.Tool](1200), filled[sojourn.Carryover](1400)
	tool.Session, tool.Name, carryover.Session = "s", name, "s"
	for key := range carryover.Custom {
		carryover.Custom[key] = json.RawMessage(`[]`)
	}
	apply()
	view(t, s, func(tx *store.Tx) error {
		empty, err := tx.Carryover("another")
		same(t, "carryover of a session that has none", empty, sojourn.Carryover{Session: "another"})
		_, errTool := tx.Tool("s", "no such tool")
		if code := sojourn.CodeOf(errTool); code != sojourn.CodeNotFound {
			t.Errorf("a missing tool: code %q, want not_found", code)
		}
		_, errExec := tx.Exec("no such exec")
		if code := sojourn.CodeOf(errExec); code != sojourn.CodeNotFound {
			t.Errorf("a missing exec: code %q, want not_found", code)
		}
		return err
	})
}

// testFactsHoldWhatMayStart: of many execs that are queued facts hold the first of
// either kind, and all that run or are parked.
func testFactsHoldWhatMayStart(t *testing.T, open Open) {
	s := open(t, nil)
	createBare(t, s, "s")
	held := func() (ids []sojourn.ExecID) {
		f := read(t, s, func(tx *store.Tx) (sojourn.Facts, error) { return tx.Facts("s") })
		for _, x := range f.Execs {
			ids = append(ids, x.ID)
		}
		return ids
	}
	ids := func(all ...sojourn.ExecID) []sojourn.ExecID { return all }
	for i := range 6 {
		execute(t, s, "s", sojourn.ExecID(fmt.Sprint("d", i)), detached)
	}
	for i := range 6 {
		execute(t, s, "s", sojourn.ExecID(fmt.Sprint("f", i)))
	}
	execute(t, s, "s", "p", asking)
	same(t, "execs before there is a sandbox", held(), ids("d0", "d1", "d2", "d3", "f0", "f1", "f2", "f3", "p"))
	provide(t, s, "s")
	start := func() {
		decide(t, s, "s", func(d *sojourn.Decision) error { d.StartExecs(sojourn.ExecRate{}); return nil })
	}
	start()
	same(t, "execs after some have started", held(), ids("d0", "d1", "d2", "d3", "d4", "d5", "f0", "f1", "f2", "f3", "f4", "p"))
	start()
	decide(t, s, "s", func(d *sojourn.Decision) error {
		d.EndExec("f0", sojourn.ExecResult{Code: new(0)}, "")
		d.EndExec("d3", sojourn.ExecResult{Code: new(0)}, "")
		return nil
	})
	same(t, "execs after two have ended", held(), ids("d0", "d1", "d2", "d4", "d5", "f1", "f2", "f3", "f4", "p"))
	same(t, "open execs", read(t, s, func(tx *store.Tx) (int, error) { return tx.CountOpenExecs("s") }), 11)
	var pages []int64
	for before := int64(0); ; {
		page := read(t, s, func(tx *store.Tx) ([]sojourn.Exec, error) { return tx.Execs("s", before, 5) })
		if len(page) == 0 {
			break
		}
		for _, x := range page {
			pages, before = append(pages, x.Number), x.Number
		}
	}
	same(t, "numbers, newest first", pages, []int64{13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1})
}

func testExecInput(t *testing.T, open Open) {
	s := open(t, nil)
	createBare(t, s, "s")
	execute(t, s, "s", "a", given("in\x00\xff"))
	execute(t, s, "s", "b")
	input := func(id sojourn.ExecID) []byte {
		return read(t, s, func(tx *store.Tx) ([]byte, error) { return tx.ExecInput(id) })
	}
	output := func(id sojourn.ExecID) []byte {
		return read(t, s, func(tx *store.Tx) ([]byte, error) { return tx.ExecOutput(id) })
	}
	same(t, "input", input("a"), []byte("in\x00\xff"))
	same(t, "input of one that reads none", input("b"), []byte(nil))
	same(t, "output before the end", output("a"), []byte(nil))
	provide(t, s, "s")
	decide(t, s, "s", func(d *sojourn.Decision) error { d.StartExecs(sojourn.ExecRate{}); return nil })
	same(t, "input while it runs", input("a"), []byte("in\x00\xff"))
	for _, want := range [][]byte{{}, {0, 255, 10}} {
		update(t, s, func(tx *store.Tx) error { return tx.PutExecOutput("a", want) })
		if got := output("a"); string(got) != string(want) {
			t.Errorf("output %q, want %q", got, want)
		}
	}
	decide(t, s, "s", func(d *sojourn.Decision) error { d.EndExec("a", sojourn.ExecResult{Code: new(0)}, ""); return nil })
	same(t, "input after the end", input("a"), []byte(nil))
	same(t, "output after the end", output("a"), []byte{0, 255, 10})
}

func testOneLiveSessionPerClient(t *testing.T, open Open) {
	s := open(t, nil)
	client := func(in *sojourn.NewSession) { in.Presence.Client = "ci" }
	again := func(id sojourn.SessionID, project sojourn.ProjectID) error {
		return s.Update(t.Context(), func(tx *store.Tx) error {
			d, err := sojourn.Create(tx.Now(), sojourn.NewSession{
				ID: id, Project: project, Runtime: sojourn.RuntimeNone, Presence: sojourn.Presence{Client: "ci"},
			})
			if err != nil {
				return err
			}
			return tx.Apply(d.Change())
		})
	}
	find := func() (sojourn.SessionID, error) {
		var got sojourn.Session
		err := s.View(t.Context(), func(tx *store.Tx) (err error) {
			got, err = tx.SessionOfClient(sojourn.DefaultProject, "ci")
			return err
		})
		return got.ID, err
	}
	createBare(t, s, "first", client)
	if err := again("second", sojourn.DefaultProject); !errors.Is(err, store.ErrConstraint) {
		t.Errorf("a second live session of the client: %v, want ErrConstraint", err)
	}
	if err := again("elsewhere", "another"); err != nil {
		t.Errorf("the same client in another project: %v", err)
	}
	createBare(t, s, "nobody's")
	createBare(t, s, "nobody's either")
	id, err := find()
	same(t, "live session of the client", id, sojourn.SessionID("first"))
	decide(t, s, "first", func(d *sojourn.Decision) error { return d.Close(sojourn.CloseCompleted, sojourn.StopRequested, "") })
	if _, gone := find(); err != nil || sojourn.CodeOf(gone) != sojourn.CodeNotFound {
		t.Errorf("after it was closed: %v, %v, want not_found", err, gone)
	}
	createBare(t, s, "third", client)
	id, err = find()
	if id != "third" || err != nil {
		t.Errorf("the live session of the client is %q, %v, want the third", id, err)
	}
}

func testSessionsWhere(t *testing.T, open Open) {
	s := open(t, nil)
	for i := range 6 {
		createBare(t, s, sojourn.SessionID(fmt.Sprint("s", i)))
	}
	create(t, s, "agent")
	decide(t, s, "s1", (*sojourn.Decision).Pause)
	for _, id := range []sojourn.SessionID{"s2", "s3"} {
		decide(t, s, id, func(d *sojourn.Decision) error { return d.Close(sojourn.CloseCompleted, sojourn.StopRequested, "") })
	}
	decide(t, s, "s3", (*sojourn.Decision).Delete)
	provide(t, s, "s4")
	decide(t, s, "s4", (*sojourn.Decision).RequestRotation)
	yes, no := true, false
	for _, c := range []struct {
		name  string
		query store.BareQuery
		want  string
		total int
	}{
		{"all", store.BareQuery{Contract: sojourn.ContractExec}, "[s5 s4 s2 s1 s0]", 5},
		{"of any contract", store.BareQuery{Limit: 1}, "[agent]", 6},
		{"a page", store.BareQuery{Contract: sojourn.ContractExec, Limit: 2, Offset: 1}, "[s4 s2]", 5},
		{"behind the end", store.BareQuery{Contract: sojourn.ContractExec, Offset: 9}, "[]", 5},
		{"a negative offset", store.BareQuery{Contract: sojourn.ContractExec, Offset: -1, Limit: 1}, "[s5]", 5},
		{"running", store.BareQuery{State: sojourn.SessionOpen, Rotating: &no}, "[s5 s0]", 2},
		{"rotating", store.BareQuery{State: sojourn.SessionOpen, Rotating: &yes}, "[s4]", 1},
		{"paused", store.BareQuery{State: sojourn.SessionPaused}, "[s1]", 1},
		{"completed", store.BareQuery{State: sojourn.SessionClosed, CloseReason: sojourn.CloseCompleted}, "[s2]", 1},
		{"failed", store.BareQuery{State: sojourn.SessionClosed, CloseReason: sojourn.CloseFailed}, "[]", 0},
		{"of another project", store.BareQuery{Project: "another"}, "[]", 0},
	} {
		if c.query.Project == "" {
			c.query.Project = sojourn.DefaultProject
		}
		view(t, s, func(tx *store.Tx) error {
			found, total, err := tx.SessionsWhere(c.query)
			ids := []sojourn.SessionID{}
			for _, f := range found {
				ids = append(ids, f.Session.ID)
			}
			same(t, c.name, fmt.Sprint(ids), c.want)
			same(t, c.name+": total", total, c.total)
			return err
		})
	}
}

func testPurge(t *testing.T, open Open) {
	s := open(t, nil)
	for _, id := range []sojourn.SessionID{"s", "other"} {
		createBare(t, s, id)
		provide(t, s, id)
		for i := range 5 {
			execute(t, s, id, sojourn.ExecID(fmt.Sprint(id, "-", i)), given("in"))
		}
		execute(t, s, id, sojourn.ExecID(id+"-asks"), asking)
		decide(t, s, id, func(d *sojourn.Decision) error {
			_, err := d.UpdateCarryover(sojourn.Carryover{}, sojourn.CarryoverPatch{Dir: new("src")})
			_, errTool := d.RegisterTool(sojourn.Tool{Name: "lint", Argv: []string{"lint"}}, 0)
			c, errCapture := d.BeginCapture(sojourn.CheckpointID("c-"+id), 1)
			c.Conversation, c.Workspace, c.Packs = sojourn.FidelityExact, sojourn.FidelityPortableTree, []string{"p1", "p2", "p3"}
			return errors.Join(err, errTool, errCapture, d.SealCapture(c, sojourn.CaptureNotes{}))
		})
		update(t, s, func(tx *store.Tx) error { return tx.PutExecOutput(sojourn.ExecID(fmt.Sprint(id, "-0")), []byte("out")) })
	}
	purge := func() (more bool) {
		update(t, s, func(tx *store.Tx) (err error) { more, err = tx.Purge("s", 2); return err })
		return more
	}
	left := func(id sojourn.SessionID) (n int) {
		view(t, s, func(tx *store.Tx) error {
			execs, err := tx.Execs(id, 0, 0)
			asked, errAsked := tx.Interactions(id, "")
			tools, errTools := tx.Tools(id)
			events, errEvents := tx.Events(id, 0, 0)
			checkpoints, errCheckpoints := tx.Checkpoints(id)
			carryover, errCarryover := tx.Carryover(id)
			input, errInput := tx.ExecInput(sojourn.ExecID(fmt.Sprint(id, "-1")))
			output, errOutput := tx.ExecOutput(sojourn.ExecID(fmt.Sprint(id, "-0")))
			n = len(execs) + len(asked) + len(tools) + len(events) + len(checkpoints) + len(carryover.Dir) + len(input) + len(output)
			return errors.Join(err, errAsked, errTools, errEvents, errCheckpoints, errCarryover, errInput, errOutput)
		})
		return n
	}
	was := left("other")
	if purge() || left("s") != was {
		t.Errorf("a session that is not deleted was purged: %d of %d rows are left", left("s"), was)
	}
	decide(t, s, "s", func(d *sojourn.Decision) error { return d.Close(sojourn.CloseCancelled, sojourn.StopCancelled, "") })
	decide(t, s, "s", (*sojourn.Decision).Delete)
	batches := 1
	for purge() {
		if batches++; batches > 100 {
			t.Fatal("purging never ends")
		}
	}
	if batches < 5 {
		t.Errorf("all rows went in %d batches of 2", batches)
	}
	same(t, "what is left of the session", left("s"), 0)
	same(t, "what is left of the other", left("other"), was)
	f := read(t, s, func(tx *store.Tx) (sojourn.Facts, error) { return tx.Facts("s") })
	if f.Session.DeletedAt.IsZero() || f.Session.Execs != 6 || f.Head != nil || f.Lease == nil {
		t.Errorf("the session's own row is %+v, with lease %+v", f.Session, f.Lease)
	}
	same(t, "more after the end", purge(), false)
}
