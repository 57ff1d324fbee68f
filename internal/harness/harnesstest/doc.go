// Package harnesstest is the suite that every harness passes, and the bench it
// stands on: a real keeper in memory for the sandbox, a ledger for the database.
//
// Words: a [Sandbox] is a keeper with a workspace and a home that outlive its
// connections; a [Ledger] is what the engine would have made durable; a [Port]
// is one drive's access to the ledger, and can be told to die at any commit.
//
// Invariants: the ledger applies a batch whole or not at all, and refuses what
// the engine would refuse, such as a question before the run is active.
//
// Concurrency: a ledger and its ports may be used by several goroutines.
//
// Failure: what the bench cannot provide fails the test at once.
package harnesstest
