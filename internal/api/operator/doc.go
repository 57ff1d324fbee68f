// Package operator serves our own contract, for those who run an installation:
// sessions of every contract, with what they really stand on, and API keys.
//
// # Words
//
// The words are the domain's: states are shown as they are stored, error codes
// have no prefix. Casing is camelCase, instants are ISO 8601 in UTC with
// milliseconds, and an optional field without a value is absent.
//
// # Invariants
//
//   - Only admin keys are admitted, and see only their own project.
//   - A key's secret is in the answer that made it and nowhere else.
//   - Every domain code has a row in the table of replies.
//   - openapi.yaml is what the handlers say, byte for byte; a test compares.
//
// # Concurrency
//
// The handler holds no state of its own and may serve any number of requests.
//
// # Failure
//
// What the engine refuses is answered by the table; all else is internal.
package operator
