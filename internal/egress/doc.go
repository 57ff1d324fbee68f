// Package egress is the way out of sandboxes: one proxy a sandbox, which decides by
// name what may be reached, resolves names itself and dials only what it has checked.
//
// # Words
//
// A gate is the proxy of one sandbox. It serves HTTP on a Unix socket in the sandbox's
// socket directory; the sandbox has no other way out. A flow is one request or tunnel
// that the gate let through. A refusal is the opposite, and has a reason, one word to
// branch on. The broker is the part of a gate that puts credentials into requests, so
// that the sandbox holds a placeholder only.
//
// # Invariants
//
// Nothing leaves a sandbox but by a flow, and a flow is to a host and port that the
// policy allows now: when the policy changes, flows that it no longer allows are cut.
//
// In every mode, addresses that are not public are refused after a name was resolved,
// unless the operator made an exception; one bad address of a name refuses the name.
// What is dialled is the address that was checked. The server's own listeners are
// refused even where there is an exception.
//
// A TLS connection names the host that its tunnel was opened to, and plain HTTP in a
// tunnel likewise: where the policy has rules, another name on the same address is not
// reached. What TLS hides is not looked at, so the Host field inside it can name
// whatever else that server serves.
//
// A gate answers requests in origin form itself: they are for its local handler, the
// model gateway, which works under every policy and leads nowhere else.
//
// A secret of the broker is sent to its hosts only, and is in no log, decision or
// error. A host to which it was sent can echo it: bodies are not looked through.
//
// # Concurrency
//
// All methods may be called from many goroutines. A gate owns its goroutines, and Close
// waits for them. Decisions are reported from one goroutine, at most once a second and
// in the long run about twice a minute, because they are kept for good.
//
// # Failure
//
// A refused request gets 403 and a sentence that names the policy; one that fails on
// the way 502 or 504. When the server is gone the socket refuses connections; the next
// server replaces it, and the sandbox's forwarder connects to the new one.
package egress
