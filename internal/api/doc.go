// Package api is the HTTP mechanics that the contracts share.
//
// # Words
//
// A [Contract] says how one HTTP API answers: a [Reply] for each domain code and
// an envelope for errors. A [Service] serves the operations of one contract. A
// [Problem] is an error in the words of a contract.
//
// # Invariants
//
//   - Every answer has an x-request-id; an unknown path, an unknown method, a
//     body that cannot be read and a panic are answered in the contract's
//     envelope like every other error.
//   - Who is calling and whether the key may do this are decided before a body
//     is read.
//   - What is not part of the contract is refused, never ignored: unknown
//     fields, unknown query parameters, trailing data, a body where none is due.
//   - The text of an error that is not a [sojourn.Error] never leaves the
//     process. Secrets and query strings are never logged.
//   - A stream sends events in order, each once, and marks its heartbeats as
//     comments. It ends when its key is revoked, when the server stops, or when
//     its reader takes nothing for [WriteTimeout]; a reader resumes by the number
//     of the last event that it has.
//
// # Concurrency
//
// A Service is set up by one goroutine and then used by any number. It starts
// none: a stream runs in the goroutine of its request.
//
// # Failure
//
// Handlers return errors; the service maps them by the contract's table, and logs
// those that the table calls internal.
package api
