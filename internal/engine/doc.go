// Package engine runs sessions. It is the only writer of session state.
//
// # Words
//
// A command is what a contract asks for; it is one transaction. A drive is one
// worker taking one run to its end under a claim. A compute is a lease's
// sandbox together with the link to its keeper. A visit is a stay of a person or
// a tool in it, which keeps it in use. A flight is the making of a
// compute: one per session at a time, which everybody else waits for. A bench is
// one worker driving a session without an agent while it is open: its sandbox, its
// rotations and its execs. A follow drives one of these execs, from the start of its
// process to the writing of its end.
//
// # Invariants
//
//   - A decision is made by the domain from facts read in the transaction that
//     writes its change. Nothing slow, and nothing that another system can see,
//     happens inside it.
//   - Whatever a command accepted is a row in the work table before the reply,
//     so it reaches exactly one end, whichever process dies.
//   - All that a drive writes is written under its claim's fence.
//   - A sandbox of an epoch that is not that of an open lease is destroyed.
//   - A process of an exec is started once, and its exec charged once: it is started
//     after the commit that says so, under a name that its keeper knows until the end
//     of the exec is written down. What a keeper does not know was never started.
//   - Output is released in a keeper when a kill of this process cannot lose it.
//
// # Concurrency
//
// Commands may be called from any goroutine. [Engine.Run] owns every goroutine
// and returns when they have. Drives run side by side, one per session.
//
// # Failure
//
// When the process is killed, agents go on in their sandboxes. [Engine.Run]
// adopts the sandboxes of live leases again, ends the leases whose sandbox is
// gone, removes what no lease owns, and takes every run up where its last
// commit left it.
package engine
