// Package link is the client of the one protocol that everything running work
// speaks: the keeper inside a sandbox, an executor on a caller's machine, and
// a stock "codex exec-server --listen".
//
// # Words
//
// A Transport carries whole messages. A Client is one connection: it opens
// with initialize and multiplexes calls until the connection ends. A Peer is
// the place behind the connection: it dials again when a connection breaks
// and repeats the call, so a caller sees one long conversation. The epoch is
// the fencing number of the lease under which the client speaks; a server
// that has seen a newer one refuses it.
//
// # Invariants
//
// Bytes are bytes: output and input travel as base64, paths as file URIs, so
// nothing is re-coded. A chunk once delivered never changes and a sequence
// number is never used twice. Closed in a [ReadResult] means that everything
// the process wrote has been handed over. A frame is at most [MaxFrameBytes];
// memory for it is only taken as its bytes arrive.
//
// # Concurrency
//
// Client and Peer may be used by any number of goroutines; no call waits for
// another. Ending one call's context abandons that call alone. Close waits
// for the goroutines of the connection.
//
// # Failure
//
// A broken connection fails its calls with an error that is [ErrDisconnected];
// an answer from the far side is an [*Error] and matches the typed errors of
// this package with errors.Is. A Peer repeats only what is safe to repeat:
// reads by sequence, starts by process id, writes by write id.
package link
