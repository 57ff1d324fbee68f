// Package keeper is the server that runs inside every sandbox, as its PID 1,
// and runs processes for the engine outside.
//
// # Words
//
// A process has the name its caller chose; its output goes into a spool, in
// chunks that are numbered per process. The main process is the one that was
// started; its tree is its process group, its session, all descendants, and
// whoever holds one of its output pipes. A program runs inside the keeper's
// own process instead (the fake driver uses that). The builtins are programs
// that every keeper has; their names begin with "sojourn:" and mean nothing
// else, whatever lies in the sandbox. To freeze is to stop every process in the
// sandbox for a while; programs stop changing files.
//
// # Invariants
//
// The exit of the main process decides: exited is known at once, closed after
// a drain of at most 500 ms in which leftovers may still write. Everything
// the main process wrote before it ended is delivered, whatever the drain
// cuts. Leftovers are kept, their later output is read, counted and dropped,
// until process/terminate or a signal to the tree ends them. A leftover that
// has left group and session, lost its parent and let go of its output is out
// of reach of that; the target "all" reaches it where the keeper is PID 1.
//
// An acknowledged spool never loses a byte: when it is full the keeper stops
// reading, and the process waits in its write. A ring drops its oldest chunks
// and says so. A followed spool is a ring that waits for a reader who keeps
// coming. Stdin is empty unless it was asked for. The environment is
// exactly what the caller gave. An exit code is always a real one; a program
// that could not be started has 126 or 127 and a failure text, a missing
// working directory a failure text alone, and nothing has run.
//
// Terminate sends TERM to the tree and KILL after the grace; a timeout does the
// same, whether or not a client is connected. What got the TERM gets the KILL
// also when it has lost its parent in between. What is in the session of another
// main process is never part of the tree. A freeze undoes itself after a minute.
//
// # Concurrency
//
// One goroutine reads each connection; calls run beside each other, except
// that those which start, feed or close the input of one process keep the
// order in which they came on their connection. One place waits for children
// (reaper). Processes belong to the keeper, not to connections: they run on
// when the client goes away, and any later connection finds them.
//
// # Failure
//
// Whatever a client sends is answered with a typed error and cannot end the
// keeper. A connection of an older epoch than the newest seen is refused, and
// ended when the newer one arrives.
package keeper
