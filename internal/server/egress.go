package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/egress"
	"github.com/sojourn-dev/sojourn/internal/engine"
	"github.com/sojourn-dev/sojourn/internal/gateway"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// Way is the way out of sandboxes as the engine sees it: the proxy, and behind its
// own address the model gateway. It is a [Config]'s Egress and Models.
type Way struct {
	egress  *egress.Egress
	gateway *gateway.Gateway // nil for none
	key     []byte
	engine  *engine.Engine // set by the server before the first sandbox is made
}

var (
	_ engine.Egress = (*Way)(nil)
	_ engine.Models = (*Way)(nil)
)

// NewWay joins a proxy and a gateway, which may be nil. key is what the tokens of
// sandboxes are made from: secret, and the same after a restart.
func NewWay(e *egress.Egress, g *gateway.Gateway, key []byte) *Way {
	return &Way{egress: e, gateway: g, key: key}
}

// bind tells whom calls of models are reported to.
func (w *Way) bind(e *engine.Engine) { w.engine = e }

// Check implements engine.Egress.
func (w *Way) Check(p sojourn.NetworkPolicy) error { return w.egress.Check(p) }

// Open implements engine.Egress.
func (w *Way) Open(ctx context.Context, s engine.EgressSpec) (engine.Gate, error) {
	spec := egress.Spec{Session: string(s.Session), Epoch: s.Epoch, Dir: s.Dir, Policy: s.Policy, Report: s.Report}
	if w.gateway != nil {
		spec.Local = w.gateway.Handler(gateway.Binding{
			Session: s.Session, Project: s.Project, Epoch: s.Epoch, Token: w.Token(s.Session, s.ProcessEpoch),
			Admit: func(ctx context.Context) error { return w.engine.AdmitModelCall(ctx, s.Session, s.Epoch) },
			Report: func(ctx context.Context, c gateway.Call) error {
				return w.engine.NoteModelCall(ctx, s.Session, s.Epoch, c)
			},
		})
	}
	return w.egress.Open(ctx, spec)
}

// Choose implements engine.Models.
func (w *Way) Choose(api, want string) (string, error) {
	if w.gateway == nil {
		return "", sojourn.Errorf(sojourn.CodeInvalid, "This installation has no models: name one in the configuration, under models.")
	}
	for _, o := range w.gateway.Models() {
		if string(o.API) == api && (want == "" || want == o.Name) {
			return o.Name, nil
		}
	}
	if want == "" {
		return "", sojourn.Errorf(sojourn.CodeInvalid, "There is no model for the API %s: name one in the configuration, under models.", api)
	}
	if w.gateway.Offers(gateway.API(api), want) {
		return want, nil
	}
	return "", sojourn.Errorf(sojourn.CodeInvalid, "model: there is no %q for the API %s.", want, api)
}

// Token implements engine.Models. It can be computed again by the next server, and
// says nothing of the key.
func (w *Way) Token(id sojourn.SessionID, epoch int64) string {
	h := hmac.New(sha256.New, w.key)
	fmt.Fprintf(h, "model gateway\x00%s\x00%d", id, epoch)
	return "sjm_" + hex.EncodeToString(h.Sum(nil))
}

// PlainSpec is what the sandbox of a session is made from that asks for nothing.
func PlainSpec(s sojourn.SandboxSpec, c sandbox.Capabilities) sandbox.Spec {
	return engine.PlainSpec(s, c)
}
