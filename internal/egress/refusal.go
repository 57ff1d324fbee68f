package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/sojourn-dev/sojourn"
)

// The other reasons of refusals. Those of policies are in the domain.
const (
	reasonPolicyChanged = "policy_changed"
	reasonNameMismatch  = "sni_mismatch"  // TLS names another host than the tunnel
	reasonNameMissing   = "sni_missing"   // TLS names no host
	reasonHostMismatch  = "host_mismatch" // HTTP names another host than the tunnel
	reasonNotTLS        = "not_tls"       // on 443, by a rule without a port
	reasonBadHello      = "bad_client_hello"
	reasonBadRequest    = "bad_request"
)

// reasonHeader tells programs why a request was refused.
const reasonHeader = "Sojourn-Refused"

// refusal is why a host was not reached.
type refusal struct {
	reason string
	cause  error
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return r.reason + ": " + r.cause.Error()
	}
	return r.reason
}

func (r *refusal) Unwrap() error { return r.cause }

// refused reports whether somebody decided that the host must not be reached. The
// opposite is that it could not be.
func (r *refusal) refused() bool { return r.reason != reasonUnresolved && r.reason != reasonNoAnswer }

// refusalOf returns the refusal in an error of a request.
func refusalOf(ctx context.Context, err error) *refusal {
	if r, ok := errors.AsType[*refusal](context.Cause(ctx)); ok {
		return r // why it was cut
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	return &refusal{reasonNoAnswer, err}
}

// refuse answers a request that was refused. The text is for the person who reads it
// in the output of a program, or for an agent.
func (g *Gate) refuse(w http.ResponseWriter, host string, port int, r *refusal) {
	status := http.StatusForbidden
	if !r.refused() {
		status = http.StatusBadGateway
		if t, ok := errors.AsType[net.Error](r.cause); ok && t.Timeout() {
			status = http.StatusGatewayTimeout
		}
	}
	h := w.Header()
	h.Set(reasonHeader, r.reason)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "sojourn: %s\n", g.explain(host, port, r.reason)) // the client may be gone
}

// explain says in a sentence or two why a host was not reached, and what can be done.
func (g *Gate) explain(host string, port int, reason string) string {
	mode := g.mode()
	at := net.JoinHostPort(shown(host), strconv.Itoa(port))
	switch reason {
	case sojourn.NetworkReasonNone:
		return fmt.Sprintf("network policy %q lets this sandbox reach nothing, so %s is refused. "+
			"Whoever owns the session can give it the mode allow with rules, or open.", mode, at)
	case sojourn.NetworkReasonNoRule:
		return fmt.Sprintf("network policy %q has no rule for %s. Whoever owns the session can add one.", mode, at)
	case sojourn.NetworkReasonBadName, sojourn.NetworkReasonBadPort, reasonBadRequest:
		return fmt.Sprintf("%s is no host and port that can be asked for (%s).", at, reason)
	case reasonUnresolved:
		return shown(host) + " has no address."
	case reasonNoAnswer:
		return at + " does not answer."
	case reasonPolicyChanged:
		return fmt.Sprintf("network policy %q no longer allows %s.", mode, at)
	case reasonHostMismatch, reasonNameMismatch, reasonNameMissing:
		return fmt.Sprintf("a connection to %s must name that host (%s).", at, reason)
	case reasonNotTLS, reasonBadHello:
		return fmt.Sprintf("a connection to %s must be TLS (%s). A rule that names the port allows others.", at, reason)
	default:
		return fmt.Sprintf("%s leads to an address that sandboxes are not let to (%s). Only the operator can make an exception.", at, reason)
	}
}

// shown makes a host that a sandbox asked for fit to be read and stored.
func shown(host string) string {
	const most = 253
	b := []byte(host[:min(len(host), most)])
	for i, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-', c == '_', c == ':':
		default:
			b[i] = '?'
		}
	}
	return string(b)
}
