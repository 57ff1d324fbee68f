package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/output"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// TestOutputIsFollowedWhileItIsWritten: who opens it early, even before the exec has
// started, sees each byte once and then the end.
func TestOutputIsFollowedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	before := s.start(s.gated("go", "true"))
	x := s.start(sh("for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.03; done; head -c 100000 /dev/zero"))
	short, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("no longer"))
	defer cancel()
	if _, err := s.engine().ExecOutput(short, s.ref, x.ID); err == nil || err.Error() != "no longer" {
		t.Errorf("the output of an exec that waits: %v", err)
	}
	type read struct {
		all [2]strings.Builder
		err error
	}
	done := make(chan *read, 1)
	go func() {
		var got read
		defer func() { done <- &got }()
		r, err := s.engine().ExecOutput(s.patient(), s.ref, x.ID)
		if err != nil {
			got.err = err
			return
		}
		defer r.Close()
		for at := int64(0); ; {
			pieces, end, err := r.Next(s.patient(), at, 100)
			if err != nil || end {
				_, finished := r.Sizes()
				if got.err = err; err == nil && !finished {
					got.err = errors.New("it ended unfinished")
				}
				return
			}
			for _, p := range pieces {
				which := 0
				if p.Stderr {
					which = 1
				}
				got.all[which].Write(p.Data)
				at = p.Offset + int64(len(p.Data))
			}
		}
	}()
	s.open("go")
	s.wait(before)
	s.want("code", code(s.wait(x)), 0)
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	s.want("stdout", got.all[0].String(), "out1\nout2\nout3\n"+strings.Repeat("\x00", 100_000))
	s.want("stderr", got.all[1].String(), "err1\nerr2\nerr3\n")

	s.start(s.gated("again", "true"))
	never := s.start(sh("true"))
	if _, err := s.engine().CancelExec(s.patient(), s.ref, never.ID, false); err != nil {
		t.Fatal(err)
	}
	s.want("of one that never ran", s.output(never, output.All), "")
	s.open("again")
}

// TestExecsFindTheModels: the variables that the SDKs of model providers look for.
func TestExecsFindTheModels(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{Models: oneAPI{}}, sojourn.Limits{})
	x := s.run(sh(`echo "$SOJOURN_MODEL_URL $SOJOURN_MODEL_TOKEN $ANTHROPIC_BASE_URL $ANTHROPIC_API_KEY ${OPENAI_API_KEY-none}"`))
	got := strings.Fields(s.output(x, output.Stdout))
	if len(got) != 5 || !strings.HasSuffix(got[0], "/model") || got[1] != "token-1" || got[2] != got[0]+"/anthropic" || got[3] != "token-1" || got[4] != "none" {
		t.Errorf("the variables are %q", got)
	}
}

// oneAPI offers a model of one API.
type oneAPI struct{}

func (oneAPI) Choose(api, _ string) (string, error) {
	if api != "anthropic" {
		return "", sojourn.Errorf(sojourn.CodeInvalid, "There is none.")
	}
	return "best", nil
}

func (oneAPI) Token(_ sojourn.SessionID, epoch int64) string { return "token-" + itoa(epoch) }

// TestOldFactsTakeNoOutputAway: a follow that began although its exec had ended leaves
// what the exec has written where it is.
func TestOldFactsTakeNoOutputAway(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	for script, want := range map[string]string{"printf little": "little", "true": ""} {
		x := s.run(sh(script))
		s.engine().FollowFromOldFacts(t, x)
		s.want(script, s.output(x, output.All), want)
	}
}

// TestOutputIsCountedWhileItRuns: who asks for the counts sees what there is to read.
func TestOutputIsCountedWhileItRuns(t *testing.T) {
	t.Parallel()
	s := beginExecs(t, servertest.Config{}, sojourn.Limits{})
	in := sh("echo out; echo error >&2; cat")
	in.Spec.Stdin = sojourn.StdinStream
	x := s.start(in)
	s.until("both streams", func() bool { return s.at(x).Result.Stderr > 0 && s.at(x).Result.Stdout > 0 })
	now := s.at(x)
	s.want("state", now.State, sojourn.ExecRunning)
	s.want("stdout bytes", now.Result.Stdout, int64(len("out\n")))
	s.want("stderr bytes", now.Result.Stderr, int64(len("error\n")))
	s.want("note", now.Result.KeptNote, "")
	all, err := s.engine().Execs(s.patient(), s.ref, 0, 1)
	if err != nil || len(all) != 1 {
		t.Fatalf("the list: %v, %v", all, err)
	}
	s.want("bytes in the list", all[0].Result, now.Result)
	if err := s.engine().WriteExec(s.patient(), s.ref, x.ID, "w", 0, []byte("more"), true); err != nil {
		t.Fatal(err)
	}
	s.want("stdout bytes in the end", s.wait(x).Result.Stdout, int64(len("out\nmore")))
}
