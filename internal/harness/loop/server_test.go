package loop_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/harness/loop"
	"github.com/sojourn-dev/sojourn/internal/model"
	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// patience bounds waits; it is reached only when something is wrong.
const patience = time.Minute

// whole is a session on a whole server whose only runtime is the loop.
type whole struct {
	*testing.T
	*servertest.Server
	id string
}

func newWhole(t *testing.T, m *mock) *whole {
	t.Helper()
	h, err := loop.New(loop.Config{Models: func(string) (model.Endpoint, error) { return m.endpoint(model.Responses), nil }})
	if err != nil {
		t.Fatal(err)
	}
	row, _ := harness.RuntimeByID("loop")
	w := &whole{T: t, Server: servertest.Start(t, servertest.Config{Harness: harness.Mux{harness.HarnessLoop: h}, Runtimes: []harness.Runtime{row}})}
	var out struct{ Session struct{ ID string } }
	w.Must(http.MethodPost, "/v1/sessions", map[string]any{"title": "whole"}, &out)
	w.id = out.Session.ID
	return w
}

func (w *whole) submit(prompt string) string {
	w.Helper()
	var out struct{ Run struct{ ID string } }
	w.Must(http.MethodPost, "/v1/sessions/"+w.id+"/turns", map[string]any{"input": prompt}, &out)
	return out.Run.ID
}

func (w *whole) completes(run string) {
	w.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		var out struct {
			Run struct {
				State     string
				LastError struct{ Code, Message string }
			}
		}
		w.Must(http.MethodGet, "/v1/sessions/"+w.id+"/runs/"+run, nil, &out)
		switch {
		case out.Run.State == "completed":
			return
		case slices.Contains([]string{"failed", "crashed", "cancelled"}, out.Run.State), time.Since(begun) > patience:
			w.Fatalf("run %s is %s: %+v", run, out.Run.State, out.Run.LastError)
		}
	}
}

// TestWholeServerLosesSandboxAndServer goes through three turns twice: calmly,
// and with a sandbox that dies between two of them and a server that ends
// in the middle of one. The model must not notice.
func TestWholeServerLosesSandboxAndServer(t *testing.T) {
	t.Parallel()
	third := func(faults bool) []byte {
		m := newMock(t)
		w := newWhole(t, m)
		w.completes(w.submit(`@think so` + "\n" + `call write {"path":"a.txt","content":"one\n"}` + "\n--\nsay One."))
		if faults {
			w.Fake.Kill(w.id)
		}
		reached, goOn := make(chan struct{}), make(chan struct{})
		m.mu.Lock()
		at := len(m.bodies) + 2
		m.fault = func(n int, _ http.ResponseWriter, r *http.Request) bool {
			if n == at && faults { // the model is asked for the second reply of the second turn
				close(reached)
				select {
				case <-goOn:
				case <-r.Context().Done():
				}
			}
			return false
		}
		m.mu.Unlock()
		run := w.submit(`@call read {"path":"a.txt"}` + "\n" + `call edit {"path":"a.txt","old_text":"one","new_text":"one one"}` +
			"\n--\n" + `call read {"path":"a.txt"}` + "\n--\nsay Two.")
		if faults {
			select {
			case <-reached:
			case <-time.After(patience):
				t.Fatal("the second turn did not come to its second request")
			}
			w.Restart()
			close(goOn)
		}
		w.completes(run)
		w.completes(w.submit("@say Three."))
		return m.last()
	}
	calm, harsh := third(false), third(true)
	if !bytes.Equal(calm, harsh) {
		t.Errorf("the third request differs:\n calm %s\nharsh %s", calm, harsh)
	}
	if got, want := fmt.Sprintf("%q", results(harsh)), `["Wrote /workspace/a.txt: 4 bytes." "1\tone" "Wrote /workspace/a.txt: 8 bytes." "1\tone one"]`; got != want {
		t.Errorf("results %s, want %s", got, want)
	}
}
