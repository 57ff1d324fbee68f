// Package work does what is due: timers, jobs and long duties, each a row of the
// work table.
//
// # Words
//
// A [Key] names a piece of work; at most one row exists for it. Scheduling makes
// the row or moves its due time. An engine claims what is due: the [Claim] is its
// own until the policy's lease has passed without a heartbeat. Each claim has a
// fence, a number that is never used twice.
//
// # Invariants
//
//   - Work that was scheduled is done, at least once, whatever dies. Work that
//     is scheduled while it is being done is done again.
//   - In one process at most one handler runs for a key. Elsewhere another may
//     start only after the context of the first has ended.
//   - What a handler writes through [Claim.Commit] is written only while its
//     fence holds. What it does outside the store it may do twice.
//
// # Concurrency
//
// [Engine.Run] owns every goroutine and returns when all handlers have. Kinds
// have slots of their own, so a kind that is busy for hours delays no other.
//
// # Failure
//
// An error or a panic of a handler is an attempt: the work is due again after
// the policy's backoff, and is given up after its number of attempts. Such dead
// work is kept for people to see; scheduling it again revives it. While the
// store fails, claims are not taken and handlers end before theirs can lapse.
package work
