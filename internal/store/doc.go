// Package store is the persistence contract and all of its SQL.
//
// # Words
//
// A [Store] runs closures over a [Tx]. Rows are the domain's facts; the event
// log, the work table and the idempotency records commit together with them.
//
// # Invariants
//
//   - [Tx.Apply] writes a decision as a whole: rows, events, work orders.
//   - Event numbers of a session come from a counter on its row, raised in the
//     transaction that inserts the events: they start at 1 and have no gap.
//   - A session has at most one run and at most one lease that is not terminal:
//     unique indexes say so, not only the domain.
//   - No SQL is anywhere else. Every statement is a constant, portable between
//     SQLite and PostgreSQL; what differs is in [Dialect].
//   - Instants are whole microseconds in UTC; 0 stands for the zero time.
//
// # Concurrency
//
// A Store may be used by any number of goroutines, a Tx only by the closure that
// received it. Closures must be pure: they may run again, and several share one
// commit, so they do no I/O, wait for nothing and never call the Store.
//
// # Failure
//
// A closure's error undoes its writes and nobody else's. A missing row is an
// error with the code not_found; a full disk one with out_of_space, after which
// the store works on as soon as there is space.
package store
