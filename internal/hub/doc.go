// Package hub delivers the events of sessions to any number of live readers.
//
// # Words
//
// A [Cursor] is one reader's place in a session's log. A ring holds the latest
// events of a session that has readers, as [Frame]s that all of them share.
//
// # Invariants
//
//   - The log in the store is the truth, the ring a short cut: a cursor yields
//     every event behind its start once, in order, whatever was published.
//   - A reader is never waited for and never skipped: one that falls behind the
//     ring reads the store.
//   - A ring is bounded by bytes, and is gone with its last reader.
//
// # Concurrency
//
// The hub starts no goroutine. Publish only appends and wakes. A cursor belongs
// to one goroutine at a time.
//
// # Failure
//
// A publish that never came is noticed within the poll interval: a waiting
// cursor then looks at the store, one cursor for all of a session.
package hub
