// Package harness states the contract for what drives an agent through a run.
//
// Words: a runtime is an agent program; a harness is our code that drives it
// over the link to its sandbox. The engine calls [Harness.Drive] with a [Job]
// and offers a [Port] through which everything the harness learns becomes
// durable before anybody sees it.
//
// Invariants: a harness keeps nothing that matters outside [Batch.State]; every
// write to the agent carries a write id that is the same after a restart, so
// that repeating it is harmless; output is acknowledged only after the batch
// that accounts for it was committed.
//
// Concurrency: Drive owns all goroutines it starts and waits for them. Port
// methods may be called from one goroutine at a time, except Answer and
// Cancelled.
//
// Failure: what the agent does wrong is an [Outcome]; an error from Drive means
// that the run is not over and will be taken up again.
package harness
