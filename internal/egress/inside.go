package egress

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/sojourn-dev/sojourn"
)

// What the keeper asks a gate, on the socket and in origin form. Whoever else asks in
// the sandbox learns what trying would tell.
const (
	insidePath = "/.sojourn/"
	// ResolvePath answers 204 when there is a port at which the policy allows the
	// name in the query's "name", and 403 when there is none.
	ResolvePath = insidePath + "resolve"
	// PortsPath answers a JSON array of the ports on which programs that know no
	// proxy are to be served.
	PortsPath = insidePath + "ports"
)

// commonPorts are those that policies open without naming them, or that programs
// without a proxy use most.
var commonPorts = []int{80, 443, 22, 9418}

// answerInside answers the keeper.
func (g *Gate) answerInside(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	g.mu.Lock()
	filter := g.filter
	g.mu.Unlock()
	switch r.URL.Path {
	case ResolvePath:
		name := r.URL.Query().Get("name")
		if ok, reason := filter.AllowsName(name); !ok {
			g.ledger.add(name, 0, false, reason)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case PortsPath:
		ports := []int{}
		if m := filter.Mode(); m == sojourn.NetworkAllow || m == sojourn.NetworkOpen {
			ports = append(ports, commonPorts...)
			for _, p := range filter.Ports() {
				if !slices.Contains(ports, p) {
					ports = append(ports, p)
				}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(ports) // the client may be gone
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}
