// Package sqlite keeps a store in one directory of this machine, for one
// process.
//
// # Words
//
// The writer is the one goroutine that runs updates. It takes all that wait, up
// to 256, into one transaction, so that they share one flush of the disk.
//
// # Invariants
//
//   - The directory belongs to one process: a lock on sojourn.lock says so.
//   - An acknowledged commit is on the disk (synchronous=FULL).
//   - sojourn.db appears complete or not at all, so an empty one is damage, and
//     a damaged one is refused and left as it is.
//
// # Concurrency
//
// Readers have connections of their own and never wait for the writer. Commits
// are published in their order, by the writer, before their callers return.
//
// # Failure
//
// A closure that fails or panics undoes only its own writes: if need be, the
// batch runs once more with a savepoint for each. When the disk is full the
// transaction is undone as a whole, and its closures run again, each alone.
package sqlite
