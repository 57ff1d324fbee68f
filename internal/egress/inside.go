package egress

import (
	"encoding/json"
	"net/http"
)

// What the keeper asks a gate, on the socket and in origin form. Whoever else asks in
// the sandbox learns what trying would tell.
const (
	insidePath = "/.sojourn/"
	// ResolvePath answers 200 and a JSON array of the ports at which programs that
	// know no proxy are to be served for the name in the query's "name", or 403 when
	// the policy allows the name at no port.
	ResolvePath = insidePath + "resolve"
)

// commonPorts are those on which such programs are served where every port is allowed.
var commonPorts = []int{22, 80, 443, 9418}

// answerInside answers the keeper.
func (g *Gate) answerInside(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != ResolvePath:
		w.WriteHeader(http.StatusNotFound)
		return
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	g.mu.Lock()
	filter := g.filter
	g.mu.Unlock()
	name := r.URL.Query().Get("name")
	ports, all, reason := filter.PortsOf(name)
	switch {
	case all:
		ports = commonPorts
	case reason != "":
		g.ledger.add(name, 0, false, reason)
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(ports) // the client may be gone
}
