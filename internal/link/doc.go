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
// Bytes are bytes: output and input travel as a payload behind the JSON of their
// message, or as base64 in it where one side knows no payloads; paths travel as file
// URIs. Nothing is re-coded. What our extensions are has a number ([Revision]), and
// both sides keep to the lower one. A chunk once delivered never changes and a sequence
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
// # The stock exec-server
//
// Tried with codex-cli 0.166.0; a test repeats it. It reads our messages as
// they are and ignores what stands under "sojourn". It differs from a keeper:
//
//   - It answers the calls of a connection one after another, so that a long
//     poll holds up the rest, unless started with --concurrent-requests; so
//     Read waits for two seconds at most there.
//   - Paths are file URIs and nothing else, and there is no default directory;
//     Start fills in the one that environment/info names.
//   - What its state does not allow is "invalid request" (-32600), whatever the
//     reason; the method tells which typed error is meant. -32010 says that
//     the session is still attached to another connection.
//   - A missing program or directory is an error of process/start (-32603),
//     and no process remains to be read.
//   - Death by signal n is exit code 128+n. closed may come with chunks left.
//   - Output is a ring; notifications are always sent; the only signal is
//     interrupt; terminate kills. Stdin cannot be closed.
//   - File names in listings that are not UTF-8 come out damaged.
//   - A session whose connection is gone can be resumed for a while (about
//     30 seconds), and then ends with its processes.
//
// # Failure
//
// A broken connection fails its calls with an error that is [ErrDisconnected];
// an answer from the far side is an [*Error] and matches the typed errors of
// this package with errors.Is. A connection on which a call waits and nothing
// is heard for a minute counts as broken. Whether there is still somebody behind a Peer
// that accepts connections is what [Peer.AwaitSilence] says. A Peer repeats only what is safe to repeat:
// reads by sequence, starts by process id, writes by write id.
package link
