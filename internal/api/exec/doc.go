// Package exec serves contract B: budgeted sessions whose callers run execs in a
// sandbox that is replaced under them.
//
// # Words
//
// On the wire an exec is an execution, a carryover the context, an interaction of
// an exec an approval. A status is one of seven words, computed from facts. Names
// are in camelCase; snake_case is read too, and written to "Accept-Case: snake".
// Costs are in cents, rounded up, and beside them exactly in micro-cents.
//
// # Invariants
//
//   - Every status is a pure function of facts and now; nothing is decided here.
//   - The bytes of an output are never changed: what is not UTF-8 is base64, and
//     its encoding is named beside it.
//   - What a caller keys itself (variables, custom state, metadata, the input and
//     the schema of a tool) is never respelled.
//   - Bad input is status 400. Every domain code has a row in the table of replies.
//   - openapi.yaml is what the handlers say, byte for byte; a test compares.
//
// # Concurrency
//
// The handler holds no state of its own and may serve any number of requests. A
// caller that waits for an exec and leaves does not end it.
//
// # Failure
//
// What the engine refuses is answered by the table; all else is internal. An exec
// that fails is no failure of its call: the call says truly how it ended.
package exec
