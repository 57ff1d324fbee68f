// Package auth says who is calling: it makes, checks and revokes API keys.
//
// # Words
//
// A key is a record with a kind and scopes; its secret is text of the form
// sjn_<kind>_<43 characters>, shown once when it is made. Presenting a valid
// secret makes a [sojourn.Principal].
//
// # Invariants
//
//   - A secret is never stored, logged or put into an error: only its SHA-256
//     is kept, and looking that up is the whole comparison, so nothing about a
//     secret can be learned from how long a refusal takes.
//   - A made secret has 256 random bits. A secret that the operator chose is as
//     strong as the operator made it.
//   - Nothing is cached: a revoked key fails from the next call on, in every
//     process on the same store.
//
// # Concurrency
//
// A [Keys] may be used by any number of goroutines.
//
// # Failure
//
// A refusal is a [sojourn.Error] with the code unauthenticated, and says the
// same for an unknown, a malformed and a revoked secret.
package auth
