package sojourn

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestRandomCommandsKeepTheInvariants is the model test of the domain: any
// commands, in any order, with any ids, known, stale or made up, on sessions with
// and without an agent.
func TestRandomCommandsKeepTheInvariants(t *testing.T) {
	reached := map[EventType]int{}
	histories(t, reached, newWorld, modelCommands, (*world).progress)
	histories(t, reached, newBareWorld, benchCommands(), (*world).serve)
	// The model is worth what it reaches: every event that decisions emit.
	notes := []EventType{EventSessionUpdated, EventAgentUpdate, EventAgentLog}
	for _, e := range EventTypes {
		if reached[e] == 0 && !slices.Contains(notes, e) {
			t.Errorf("no random history reached %s: %v", e, reached)
		}
	}
}

// aCommand draws a command and its arguments. The arguments are often right, so
// that histories get far, and often wrong.
type aCommand func(*rapid.T, *world) func(*Decision) error

// histories lets random histories of sessions unfold, and counts the events that
// they reach.
func histories(t *testing.T, reached map[EventType]int, begin func(*rapid.T) *world, commands map[string]aCommand, honest func(*world, *rapid.T)) {
	names := slices.Sorted(maps.Keys(commands))
	what := rapid.SampledFrom([]string{"honest", "honest", "honest", "honest", "one", "one", "one", "several", "wait"})
	waits := []time.Duration{1, time.Second, time.Minute, DefaultHold - 1, DefaultHold, 6 * time.Hour, DefaultCeiling}
	for range 8 {
		rapid.Check(t, func(t *rapid.T) {
			w := begin(t)
			for range rapid.IntRange(10, 120).Draw(t, "steps") {
				switch what.Draw(t, "what") {
				case "honest":
					honest(w, t)
				case "one":
					_ = w.decide(t, commands[rapid.SampledFrom(names).Draw(t, "command")](t, w))
				case "several":
					var several []func(*Decision) error
					for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 2, 3).Draw(t, "commands") {
						several = append(several, commands[name](t, w))
					}
					_ = w.decide(t, several...)
				case "wait":
					w.now = w.now.Add(rapid.SampledFrom(waits).Draw(t, "wait"))
				}
			}
			for _, e := range w.events {
				reached[e.Type]++
			}
		})
	}
}

func newWorld(t *rapid.T) *world {
	return create(t, NewSession{
		ID: "s", Project: DefaultProject, Contract: ContractCloud, Runtime: "script",
		Limits: Limits{Cost: rapid.SampledFrom([]Money{0, 0, 10}).Draw(t, "budget")},
	})
}

func create(t *rapid.T, in NewSession) *world {
	w := &world{now: noon, work: map[string]time.Time{}, inputs: map[ExecID][]byte{}, tools: map[string]Tool{}}
	w.log = benchLog{countedAt: noon, execs: map[ExecID][]EventType{}, approvals: map[InteractionID][]EventType{}}
	d, err := Create(noon, in)
	if err != nil {
		t.Fatal(err)
	}
	w.session = d.facts.Session
	w.apply(t, d.Change())
	w.check(t)
	return w
}

// modelCommands are those on a session with an agent.
var modelCommands = map[string]aCommand{
	"submit": func(t *rapid.T, w *world) func(*Decision) error {
		turn, run := TurnID(w.id("turn")), RunID(w.id("run"))
		return func(d *Decision) error {
			can := d.Facts().Continuation(d.Now()).CanContinue
			err := d.Submit(turn, run, hello)
			if err == nil && !can {
				t.Fatal("a turn was accepted that cannot continue")
			}
			return err
		}
	},
	"start": func(t *rapid.T, w *world) func(*Decision) error {
		id := w.aRun(t)
		return func(d *Decision) error { return d.StartRun(id) }
	},
	"activate": func(t *rapid.T, w *world) func(*Decision) error {
		id, epoch := w.aRun(t), w.anEpoch(t)
		return func(d *Decision) error { return d.ActivateRun(id, epoch) }
	},
	"finish": func(t *rapid.T, w *world) func(*Decision) error {
		id, final := w.aRun(t), rapid.SampledFrom(slices.Sorted(maps.Keys(runMoves))).Draw(t, "final")
		return func(d *Decision) error { return d.FinishRun(id, final, "end_turn") }
	},
	"end run": func(t *rapid.T, w *world) func(*Decision) error {
		id, to := w.aRun(t), rapid.SampledFrom(slices.Sorted(maps.Keys(runMoves))).Draw(t, "to")
		stop := rapid.SampledFrom([]string{"", StopWorkspaceLost, StopExecutionDeadline, StopAgentExited}).Draw(t, "stop")
		return func(d *Decision) error { return d.EndRun(id, to, stop, &RunError{Code: "x"}) }
	},
	"cancel": func(t *rapid.T, w *world) func(*Decision) error {
		id := w.aRun(t)
		return func(d *Decision) error { _, err := d.CancelRun(id); return err }
	},
	"recover": func(t *rapid.T, w *world) func(*Decision) error {
		id := w.aRun(t)
		return func(d *Decision) error { return d.RecoverRun(id) }
	},
	"ask": func(t *rapid.T, w *world) func(*Decision) error {
		i := Interaction{
			ID: InteractionID(w.id("question")), Run: w.aRun(t), Kind: "permission", Options: yesOrNo,
			Ref: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "ref"),
		}
		return func(d *Decision) error { return d.Ask(i) }
	},
	"answer": func(t *rapid.T, w *world) func(*Decision) error {
		if len(w.interactions) == 0 {
			return func(*Decision) error { return nil }
		}
		id := rapid.SampledFrom(w.interactions).Draw(t, "interaction").ID
		a := rapid.SampledFrom([]Answer{{OptionID: "yes"}, {OptionID: "no"}, {OptionID: "maybe"}, {Text: "hm"}, {}}).Draw(t, "answer")
		return func(d *Decision) error { return d.Answer(w.interaction(d, id), a) }
	},
	"withdraw": func(t *rapid.T, w *world) func(*Decision) error {
		run, ref := w.aRun(t), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "ref")
		return func(d *Decision) error { d.Withdraw(run, ref); return nil }
	},
	"request lease": func(t *rapid.T, w *world) func(*Decision) error {
		return func(d *Decision) error { _, err := d.RequestLease("fake", "none", Terms{}); return err }
	},
	"hold": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		restored := rapid.SampledFrom([]CheckpointID{w.session.Head, w.session.Head, w.session.Head, "", "another"}).Draw(t, "restored")
		return func(d *Decision) error { return d.HoldLease(epoch, []byte(`{}`), restored) }
	},
	"set conversation": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error { return d.SetConversation(epoch, w.id("conversation")) }
	},
	"touch": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error {
			was := d.Facts()
			if live := d.TouchLease(epoch); live && was.Workspace(d.Now()).State != WorkspaceAttached {
				t.Fatal("a touch found a live lease where none is attached")
			}
			return nil
		}
	},
	"end lease": func(t *rapid.T, w *world) func(*Decision) error {
		epoch, to := w.anEpoch(t), rapid.SampledFrom(slices.Sorted(maps.Keys(leaseMoves))).Draw(t, "to")
		return func(d *Decision) error { return d.EndLease(epoch, to, "the model says so") }
	},
	"begin checkpoint": func(t *rapid.T, w *world) func(*Decision) error {
		run, epoch := w.aRun(t), w.anEpoch(t)
		return func(d *Decision) error {
			_, err := d.BeginCheckpoint(CheckpointID(w.id("checkpoint")), run, epoch)
			return err
		}
	},
	"seal": func(t *rapid.T, w *world) func(*Decision) error {
		c, ok := w.aCheckpoint(t)
		if !ok {
			return func(*Decision) error { return nil }
		}
		return func(d *Decision) error { return d.Seal(asSeen(d, c), CaptureNotes{}) }
	},
	"abandon": func(t *rapid.T, w *world) func(*Decision) error {
		c, ok := w.aCheckpoint(t)
		if !ok {
			return func(*Decision) error { return nil }
		}
		return func(d *Decision) error { d.AbandonCheckpoint(asSeen(d, c)); return nil }
	},
	"visit": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error {
			if d.VisitLease(epoch) && !d.Facts().Unsaved() {
				t.Fatal("what a visit may have left is taken for saved")
			}
			return nil
		}
	},
	"drain": func(t *rapid.T, w *world) func(*Decision) error {
		epoch, save := w.anEpoch(t), rapid.Bool().Draw(t, "save")
		return func(d *Decision) error { return d.DrainLease(epoch, "the model says so", save) }
	},
	"begin drain": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error {
			_, err := d.BeginDrain(CheckpointID(w.id("checkpoint")), epoch)
			return err
		}
	},
	"call off drain": func(t *rapid.T, w *world) func(*Decision) error {
		c, ok := w.aCheckpoint(t)
		if !ok {
			return func(*Decision) error { return nil }
		}
		return func(d *Decision) error { return d.CallOffDrain(asSeen(d, c), CaptureNotes{}) }
	},
	"seal drain": func(t *rapid.T, w *world) func(*Decision) error {
		c, ok := w.aCheckpoint(t)
		if !ok {
			return func(*Decision) error { return nil }
		}
		to := rapid.SampledFrom([]LeaseState{LeaseReleased, LeaseExpired, LeaseHeld}).Draw(t, "to")
		return func(d *Decision) error {
			was := d.Facts().Continuation(d.Now())
			err := d.SealDrain(asSeen(d, c), CaptureNotes{}, to)
			if now := d.Facts().Continuation(d.Now()); err == nil && was.CanContinue && was.Reason == "" && now.Reason != "" {
				t.Fatal("draining a lease took from the session what it could go on with")
			}
			return err
		}
	},
	"resume processes": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error { return d.ResumeProcesses(epoch) }
	},
	"lose processes": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error { d.LoseProcesses(epoch, "the model says so"); return nil }
	},
	"note limits": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error { d.NoteLimits(epoch, map[string]int64{"memory": 1}); return nil }
	},
	"note silence": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error { d.NoteSilence(epoch, time.Minute); return nil }
	},
	"set network": func(t *rapid.T, w *world) func(*Decision) error {
		p := rapid.SampledFrom([]NetworkPolicy{{}, {Mode: NetworkNone}, {Mode: NetworkOpen, Raw: true}}).Draw(t, "policy")
		return func(d *Decision) error { return d.SetNetwork(p) }
	},
	"note network": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		return func(d *Decision) error {
			d.NoteNetwork(epoch, []NetworkDecision{{Host: "example.com", Port: 443, Count: 1}})
			return nil
		}
	},
	"note model call": func(t *rapid.T, w *world) func(*Decision) error {
		epoch := w.anEpoch(t)
		failure := rapid.SampledFrom([]ModelFailure{"", ModelStatus, ModelCut, ModelCancelled}).Draw(t, "failure")
		return func(d *Decision) error {
			was := d.Facts().Active
			d.NoteModelCall(epoch, ModelCall{Failure: failure, CostMicroCents: 9})
			r := d.Facts().Active
			if r != nil && r.Epoch == epoch && failure != ModelCancelled && (r.ModelError != nil) != (failure != "") {
				t.Fatalf("after a call with failure %q the run remembers %+v", failure, r.ModelError)
			}
			if r != nil && r.Epoch != epoch && r.ModelError != was.ModelError && *r.ModelError != *was.ModelError {
				t.Fatal("a call from another sandbox changed the run")
			}
			return nil
		}
	},
	"archive": func(t *rapid.T, w *world) func(*Decision) error {
		if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
			return func(*Decision) error { return nil }
		}
		return (*Decision).Archive
	},
}

// aRun draws a run: mostly the active one.
func (w *world) aRun(t *rapid.T) RunID {
	ids := []RunID{w.session.ActiveRun, w.session.ActiveRun, w.session.ActiveRun, "no such run"}
	for _, r := range w.runs {
		ids = append(ids, r.ID)
	}
	return rapid.SampledFrom(ids).Draw(t, "run")
}

// anEpoch draws an epoch: mostly the latest.
func (w *world) anEpoch(t *rapid.T) int64 {
	last := w.session.LastEpoch
	return rapid.SampledFrom([]int64{last, last, last, last, last - 1, last + 1}).Draw(t, "epoch")
}

func (w *world) aCheckpoint(t *rapid.T) (Checkpoint, bool) {
	if len(w.checkpoints) == 0 {
		return Checkpoint{}, false
	}
	c := rapid.SampledFrom(w.checkpoints).Draw(t, "checkpoint")
	c.Conversation = rapid.SampledFrom([]Fidelity{FidelityExact, FidelityExact, FidelityResultOnly}).Draw(t, "conversation")
	c.Workspace = rapid.SampledFrom([]Fidelity{FidelityPortableTree, FidelityPortableTree, FidelityNone}).Draw(t, "workspace")
	if rapid.Bool().Draw(t, "processes") {
		c.Processes = &ProcessState{Epoch: 1, Object: "object", Snapshot: []byte("{}")}
	}
	return c, true
}

// asSeen is c in the state that the decision d sees it in.
func asSeen(d *Decision, c Checkpoint) Checkpoint {
	for _, row := range d.checkpoints {
		if row.ID == c.ID {
			c.State = row.State
		}
	}
	return c
}

// interaction reads an interaction as the decision d sees it.
func (w *world) interaction(d *Decision, id InteractionID) Interaction {
	if i, ok := d.interactions[id]; ok {
		return i
	}
	return w.interactions[slices.IndexFunc(w.interactions, func(i Interaction) bool { return i.ID == id })]
}

// agentStep is what an agent at work, or its caller, does next.
func (w *world) agentStep(t *rapid.T, f Facts) func(*Decision) error {
	r := f.Active
	switch what := rapid.IntRange(0, 5).Draw(t, "agent"); {
	case what == 0:
		i := Interaction{ID: InteractionID(w.id("question")), Run: r.ID, Kind: "permission", Options: yesOrNo, Ref: w.id("ref")}
		return func(d *Decision) error { return d.Ask(i) }
	case what == 1 && len(f.Open) > 0:
		return func(d *Decision) error { return d.Answer(f.Open[0], Answer{OptionID: "yes"}) }
	case what == 2 && len(f.Open) > 0:
		return func(d *Decision) error { d.Withdraw(r.ID, f.Open[0].Ref); return nil }
	default:
		return func(d *Decision) error { return d.FinishRun(r.ID, RunCompleted, "end_turn") }
	}
}

// progress takes the one step that a well-behaved engine would take next, so
// that random histories also get to their ends.
func (w *world) progress(t *rapid.T) {
	f := w.facts()
	r, l := f.Active, f.Lease
	var step func(*Decision) error
	switch {
	case l != nil && l.State == LeaseDraining:
		step = func(d *Decision) error {
			c, err := d.BeginDrain(CheckpointID(w.id("checkpoint")), l.Epoch)
			if err != nil {
				return err
			}
			c.Conversation, c.Workspace = FidelityExact, FidelityPortableTree
			c.Processes = &ProcessState{Epoch: 1, Object: "object", Snapshot: []byte("{}")}
			return d.SealDrain(c, CaptureNotes{}, LeaseReleased)
		}
	case r == nil && l != nil && l.Live(w.now) && rapid.IntRange(0, 3).Draw(t, "idle") == 0:
		step = func(d *Decision) error { return d.DrainLease(l.Epoch, "idle", true) }
	case r == nil && !f.Continuation(w.now).CanContinue:
		step = modelCommands["archive"](t, w)
	case r == nil:
		step = modelCommands["submit"](t, w)
	case l != nil && l.State == LeaseHeld && !l.Live(w.now):
		step = func(d *Decision) error { return d.EndLease(l.Epoch, LeaseExpired, "the deadline passed") }
	case r.State == RunQueued:
		step = func(d *Decision) error { return d.StartRun(r.ID) }
	case r.State == RunStarting && (l == nil || l.State != LeaseHeld) && !f.Continuation(w.now).CanContinue:
		step = func(d *Decision) error {
			return d.EndRun(r.ID, RunFailed, "", &RunError{Code: string(CodeResumeUnavailable)})
		}
	case r.State == RunStarting && (l == nil || l.State.Terminal()):
		step = modelCommands["request lease"](t, w)
	case r.State == RunStarting && l.State == LeaseRequested:
		step = func(d *Decision) error {
			err := d.HoldLease(l.Epoch, []byte(`{}`), f.Session.Head)
			if err == nil && f.Head != nil && f.Head.Processes != nil {
				err = d.ResumeProcesses(l.Epoch)
			}
			return err
		}
	case r.State == RunStarting:
		step = func(d *Decision) error { return d.ActivateRun(r.ID, l.Epoch) }
	case r.State == RunActive && l.State.Terminal():
		step = func(d *Decision) error { return d.EndRun(r.ID, RunCrashed, StopWorkspaceLost, nil) }
	case r.State == RunActive:
		step = w.agentStep(t, f)
	default:
		conversation := rapid.SampledFrom([]Fidelity{FidelityExact, FidelityExact, FidelityExact, FidelityResultOnly}).Draw(t, "captured")
		step = func(d *Decision) error {
			c, err := d.BeginCheckpoint(CheckpointID(w.id("checkpoint")), r.ID, f.Session.LastEpoch)
			if err != nil {
				return err
			}
			c.Conversation, c.Workspace = conversation, FidelityPortableTree
			return d.Seal(c, CaptureNotes{})
		}
	}
	if err := w.decide(t, step); err != nil && r != nil {
		t.Fatalf("a well-behaved step for a %s run was refused: %v", r.State, err)
	}
}
