package sojourn

import (
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestExecCostIsExact compares with whole numbers of any size: rounded up once, and
// never more than the largest amount.
func TestExecCostIsExact(t *testing.T) {
	cost := func(rate ExecRate, ran time.Duration) Money {
		want := new(big.Int).Mul(big.NewInt(int64(rate.Second)), big.NewInt(int64(ran)))
		want.Add(want, big.NewInt(int64(time.Second)-1)).Div(want, big.NewInt(int64(time.Second)))
		want.Add(want, big.NewInt(int64(rate.Exec)))
		if want.Cmp(big.NewInt(math.MaxInt64)) > 0 {
			return math.MaxInt64
		}
		return Money(want.Int64())
	}
	largest := ExecRate{Second: math.MaxInt64}
	edge := 2 * time.Second // where the quotient is about to pass 64 bits
	for _, ran := range []time.Duration{0, 1, time.Second - 1, time.Second, time.Second + 1, edge, edge + 1, edge + 2, math.MaxInt64} {
		if got, want := largest.Cost(ran), cost(largest, ran); got != want {
			t.Errorf("the largest rate for %v costs %d, want %d", ran, got, want)
		}
	}
	if got := (ExecRate{Exec: -5, Second: -7}).Cost(-time.Hour); got != 0 {
		t.Errorf("negative figures cost %d, want 0", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		rate := ExecRate{Exec: Money(rapid.Int64Min(0).Draw(t, "exec")), Second: Money(rapid.Int64Min(0).Draw(t, "second"))}
		ran := time.Duration(rapid.Int64Min(0).Draw(t, "ran"))
		if got, want := rate.Cost(ran), cost(rate, ran); got != want {
			t.Fatalf("%+v for %d ns costs %d, want %d", rate, ran, got, want)
		}
	})
}

func TestExecsAreChecked(t *testing.T) {
	args := func(n, size int) []string {
		argv := make([]string, n)
		for i := range argv {
			argv[i] = strings.Repeat("x", size)
		}
		return argv
	}
	for _, c := range []struct {
		name string
		in   func(*NewExec)
		want Code
	}{
		{"a program", func(*NewExec) {}, ""},
		{"no program", func(in *NewExec) { in.Spec.Argv = nil }, CodeInvalid},
		{"an empty program", func(in *NewExec) { in.Spec.Argv = []string{"", "x"} }, CodeInvalid},
		{"an empty argument", func(in *NewExec) { in.Spec.Argv = []string{"x", ""} }, ""},
		{"a NUL", func(in *NewExec) { in.Spec.Argv = []string{"x", "a\x00b"} }, CodeInvalid},
		{"the most arguments", func(in *NewExec) { in.Spec.Argv = args(MaxExecArgs, 1) }, ""},
		{"one more", func(in *NewExec) { in.Spec.Argv = args(MaxExecArgs+1, 1) }, CodeTooLarge},
		{"the most bytes", func(in *NewExec) { in.Spec.Argv = args(1, MaxExecArgBytes-1) }, ""},
		{"a byte more", func(in *NewExec) { in.Spec.Argv = args(1, MaxExecArgBytes) }, CodeTooLarge},
		{"no timeout", func(in *NewExec) { in.Spec.Timeout = 0 }, CodeInvalid},
		{"no timeout, detached", func(in *NewExec) { in.Spec.Timeout, in.Spec.Detached = 0, true }, ""},
		{"999 ms", func(in *NewExec) { in.Spec.Timeout = 999 * time.Millisecond }, CodeInvalid},
		{"a second", func(in *NewExec) { in.Spec.Timeout = time.Second }, ""},
		{"ten minutes", func(in *NewExec) { in.Spec.Timeout = 10 * time.Minute }, ""},
		{"more", func(in *NewExec) { in.Spec.Timeout = 10*time.Minute + 1 }, CodeInvalid},
		{"more, detached", func(in *NewExec) { in.Spec.Timeout, in.Spec.Detached = time.Hour, true }, ""},
		{"a negative timeout", func(in *NewExec) { in.Spec.Timeout = -time.Minute }, CodeInvalid},
		{"the longest grace", func(in *NewExec) { in.Spec.Grace = MaxExecGrace }, ""},
		{"a longer one", func(in *NewExec) { in.Spec.Grace = MaxExecGrace + 1 }, CodeInvalid},
		{"a directory with a NUL", func(in *NewExec) { in.Spec.Dir = "a\x00" }, CodeInvalid},
		{"a bad variable", func(in *NewExec) { in.Spec.Env = map[string]string{"A-B": ""} }, CodeInvalid},
		{"the most input", func(in *NewExec) { in.Spec.Stdin, in.Input = StdinGiven, make([]byte, MaxExecInput) }, ""},
		{"a byte more", func(in *NewExec) { in.Spec.Stdin, in.Input = StdinGiven, make([]byte, MaxExecInput+1) }, CodeTooLarge},
		{"input that nothing reads", func(in *NewExec) { in.Input = []byte("x") }, CodeInvalid},
		{"an unknown kind of input", func(in *NewExec) { in.Spec.Stdin = "pipe" }, CodeInvalid},
	} {
		in := run("exec-1", "foreground")
		c.in(&in)
		_, err := bareScene(t, SessionOpen).Decide(noon.Add(time.Minute)).Execute(in, 0, theRate)
		refused(t, c.name, err, c.want)
	}
	_, err := bareScene(t, SessionOpen).Decide(noon.Add(time.Minute)).Execute(run("exec-1", ""), MaxOpenExecs, theRate)
	refused(t, "one more than may be open", err, CodeSessionBusy)
}

func TestForegroundExecsTakeTurnsAndDetachedDoNot(t *testing.T) {
	f := bareScene(t, SessionOpen)
	now := noon.Add(time.Minute)
	for _, in := range []NewExec{run("a", ""), run("b", ""), run("c", "detached"), run("d", "")} {
		f = execute(t, f, now, in)
	}
	running := func() (ids string) {
		for _, x := range f.Running() {
			ids += string(x.ID)
		}
		return ids
	}
	for _, step := range []struct{ end, want string }{{"", "ac"}, {"a", "bc"}, {"c", "b"}, {"b", "d"}} {
		f = must(t, f, now, func(d *Decision) error {
			d.EndExec(ExecID(step.end), ExecResult{Code: new(0)}, "")
			d.StartExecs(theRate)
			return nil
		})
		if got := running(); got != step.want {
			t.Errorf("after the end of %q run %q, want %q", step.end, got, step.want)
		}
	}
}

// TestTheBudgetCountsWhatRuns: with three iterations left and two detached execs
// running, one more is admitted and not two.
func TestTheBudgetCountsWhatRuns(t *testing.T) {
	f := bareScene(t, SessionOpen, withLimits(Limits{Iterations: 3}))
	now := noon.Add(time.Minute)
	for _, id := range []ExecID{"a", "b", "c"} {
		f = execute(t, f, now, run(id, "detached"))
	}
	_, err := f.Decide(now).Execute(run("d", "detached"), 3, theRate)
	refused(t, "a fourth of three", err, CodeBudgetExceeded)
	for _, id := range []ExecID{"a", "b", "c"} {
		f = must(t, f, now, func(d *Decision) error { d.EndExec(id, ExecResult{Code: new(1)}, ""); return nil })
	}
	s := f.Session
	if s.State != SessionClosed || s.CloseReason != CloseCompleted || s.Ending.Reason != StopBudget || s.Ending.Limit != LimitIterations {
		t.Errorf("after the third the session is %s (%s) for %+v", s.State, s.CloseReason, s.Ending)
	}
	_, err = f.Decide(now).Execute(run("e", ""), 0, theRate)
	refused(t, "an exec after the end", err, CodeBudgetExceeded)
}

// TestSpendingOnlyGrows is the field fault BU-01: a raised limit leaves what was
// used. After 3 execs it is 5, so 2 more are admitted and not a sixth.
func TestSpendingOnlyGrows(t *testing.T) {
	f := bareScene(t, SessionOpen, withLimits(Limits{Iterations: 4}))
	now := noon.Add(time.Minute)
	use := func(n int) {
		t.Helper()
		for range n {
			f = execute(t, f, now, run(ExecID(now.String()), ""))
			f = must(t, f, now, func(d *Decision) error { d.EndExec(ExecID(now.String()), ExecResult{Code: new(0)}, ""); return nil })
			now = now.Add(time.Second)
		}
	}
	use(3)
	f = must(t, f, now, func(d *Decision) error { return d.SetLimits(Limits{Iterations: 5}) })
	if got := f.Session.Budget.Remaining().Iterations; got != 2 {
		t.Errorf("after 3 of 5, %d remain", got)
	}
	use(2)
	if s := f.Session; s.Budget.Usage.Iterations != 5 || s.State != SessionClosed {
		t.Errorf("after 5 of 5: used %+v, the session is %s", s.Budget.Usage, s.State)
	}
	_, err := f.Decide(now).Execute(run("sixth", ""), 0, theRate)
	refused(t, "a sixth", err, CodeBudgetExceeded)
}

func TestOverrunEndsWhatCostsTooMuchMeanwhile(t *testing.T) {
	f := execute(t, bareScene(t, SessionOpen, withLimits(Limits{Cost: 62})), noon.Add(time.Minute), run("a", "detached"))
	before := f.Decide(noon.Add(2*time.Minute - time.Second)) // 59 seconds, and 2 for the exec
	if before.Overrun() {
		t.Error("an exec below the limit was taken for an overrun")
	}
	d := f.Decide(noon.Add(2 * time.Minute))
	if !d.Overrun() || d.Facts().Session.Ending.Limit != LimitCost {
		t.Errorf("at the limit: %+v", d.Facts().Session.Ending)
	}
	f = d.Facts()
	d = f.Decide(noon.Add(3 * time.Minute))
	d.EndExec("a", ExecResult{Signal: "SIGTERM", RunTime: 70 * time.Second}, ExecBudget)
	for _, e := range d.Change().Events {
		if e.Type == EventBudgetReached {
			t.Error("the limit was told twice")
		}
	}
	if got := d.Facts().Session.Budget.Usage.Cost; got != 72 {
		t.Errorf("charged %d, want 72: what it ran, and once", got)
	}
}

func TestEventsShowLittleOfAnArgv(t *testing.T) {
	argv := append([]string{strings.Repeat("x", 1000), "a\xff"}, make([]string, 100)...)
	got := clippedArgv(argv)
	if len(got) != shownArgs || len(got[0]) > shownArg+4 || got[1] != "a?" {
		t.Errorf("%d arguments, the first of %d bytes, the second %q", len(got), len(got[0]), got[1])
	}
}

// TestExecSaysWhatEndedItsSandbox: an exec that dies with its sandbox at the memory
// limit says so.
func TestExecSaysWhatEndedItsSandbox(t *testing.T) {
	for why, want := range map[string]ExecReason{"killed": ExecSandboxLost, "out_of_memory": ExecOutOfMemory} {
		f := execute(t, bareScene(t, SessionOpen), noon.Add(time.Minute), run("a", "detached"))
		d := f.Decide(noon.Add(2 * time.Minute))
		if err := d.EndLease(f.Lease.Epoch, LeaseLost, why); err != nil {
			t.Fatal(err)
		}
		got := d.Change().Execs
		if len(got) != 1 || got[0].State != ExecLost || got[0].Reason != want {
			t.Errorf("%s: %+v, want %s", why, got, want)
		}
	}
}

// TestAPauseCostsNothing: an exec whose process is saved while its session is paused
// is charged for what it ran, and while it is saved nothing grows.
func TestAPauseCostsNothing(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	f := bareScene(t, SessionOpen, withLimits(Limits{Cost: 1000}), func(in *NewSession) { in.Rotation.Processes = true })
	f = execute(t, f, at(10), run("a", "detached"))
	spent := func(now time.Time, want Money) {
		t.Helper()
		if got := f.BudgetAt(now).Usage.Cost; got != want {
			t.Errorf("after %v %d is spent, want %d", now.Sub(noon), got, want)
		}
		if d := f.Decide(now); d.Overrun() {
			t.Errorf("after %v it is an overrun", now.Sub(noon))
		}
	}
	resume := func(epoch int64, now time.Time) {
		t.Helper()
		f = must(t, f, now, (*Decision).Resume)
		f = must(t, f, now, func(d *Decision) error { _, err := d.RequestLease("fake", "none", benchTerms); return err })
		spent(now, f.BudgetAt(now.Add(-time.Second)).Usage.Cost)
		f = must(t, f, now, func(d *Decision) error {
			if err := d.HoldLease(epoch, nil, f.Head.ID); err != nil {
				return err
			}
			return d.ResumeProcesses(epoch)
		})
	}
	f = must(t, f, at(20), (*Decision).Pause)
	f = captured(t, f, at(29), "c1", true, true) // it is sealed one second later
	spent(at(31), 22)                            // 20 seconds, and 2 for the exec
	spent(at(50_000), 22)
	resume(2, at(50_000))
	spent(at(50_010), 32)

	f = must(t, f, at(50_010), (*Decision).Pause)
	f = captured(t, f, at(50_019), "c2", true, true)
	resume(3, at(90_000))
	spent(at(90_010), 52)

	lost := must(t, f, at(90_010), func(d *Decision) error { return d.EndLease(3, LeaseLost, "it is gone") })
	if got := lost.Session.Budget.Usage.Cost; got != 52 {
		t.Errorf("lost after 50 seconds it is charged %d, want 52", got)
	}
	d := f.Decide(at(90_011))
	d.EndExec("a", ExecResult{Code: new(0), RunTime: at(90_011).Sub(at(10))}, "")
	if got := d.Facts().Session.Budget.Usage.Cost; got != 53 {
		t.Errorf("ended after 51 seconds it is charged %d, want 53", got)
	}
}
