package harness

import (
	"context"
	"fmt"

	"github.com/sojourn-dev/sojourn"
)

// The names of harnesses in a [Runtime].
const (
	HarnessACP  = "acp"
	HarnessLoop = "loop"
)

// Mux drives each job with the harness that its runtime names.
type Mux map[string]Harness

var _ Harness = Mux(nil)

// Drive is [Harness]. A runtime whose harness this server does not have is an
// outcome: another attempt would find it no more.
func (m Mux) Drive(ctx context.Context, job Job, port Port) (Outcome, error) {
	name := job.Runtime.Harness
	if name == "" {
		name = HarnessACP
	}
	h := m[name]
	if h == nil {
		return Outcome{
			State: sojourn.RunFailed,
			Error: &sojourn.RunError{
				Code:    string(sojourn.CodeRuntimeUnavailable),
				Message: fmt.Sprintf("This server does not drive the runtime %s: it has no harness %q.", job.Runtime.ID, name),
			},
		}, nil
	}
	return h.Drive(ctx, job, port)
}
