// Package sojourn is the domain of a server for durable agent sessions: its
// nouns, their states, and every decision about them.
//
// # Words
//
// A session is the durable record of one agent's work. A caller submits a turn;
// a run executes it on a sandbox that the session holds under a lease. What
// happens becomes events, numbered per session without a gap. When a run ends
// well, conversation and files are sealed together as a checkpoint, from which
// a later lease, on another sandbox, is restored.
//
// # Invariants
//
//   - Nothing here does I/O, reads a clock, draws a random number or starts a
//     goroutine: now and new ids are arguments. Only the standard library is
//     imported.
//   - Facts are stored, statuses are projected: [Facts.Workspace] and
//     [Facts.Continuation] are pure functions of the facts and now.
//   - Each noun with states has one table of moves; a move that the table does
//     not list is refused.
//   - A decision returns a [Change]: rows, events and effects that the store
//     writes together or not at all.
//
// # Concurrency and failure
//
// All values are plain data. Methods on [Facts] never modify their receiver. A
// refused decision is an [*Error] with a [Code]; the text is for people.
package sojourn
