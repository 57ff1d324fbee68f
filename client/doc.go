// Package client talks to a Sojourn server over the operator contract.
//
// # Words
//
// A [Client] makes calls; what it returns has the shapes of the contract. An
// answer that is not a success is an [*Error] with the server's code. [Follow]
// reads a session's event log as it grows.
//
// # Invariants
//
//   - What a stream delivers is gap-free and in order: a missing number is
//     [ErrGap], never passed over. A cut is resumed behind the last event that
//     was delivered.
//   - An event may have any size.
//   - A command that makes something carries an idempotency key, so repeating it
//     after a lost connection makes nothing twice.
//   - The key is sent in a header and appears in no error.
//
// # Concurrency
//
// A Client may be used by any number of goroutines.
//
// # Failure
//
// A call that never reached a server returns the error of the connection. One
// that did, and got no answer however often it was repeated, returns [ErrLost]:
// it may have been carried out.
package client
