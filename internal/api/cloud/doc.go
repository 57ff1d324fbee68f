// Package cloud serves contract C: sessions whose compute is shown as a
// projection and whose work carries over from one sandbox to the next.
//
// # Words
//
// On the wire a session has a workspace (what it shows of its lease) and a
// continuation (what a next turn would get). Event types and scopes carry the
// prefix "wamp.", error codes "cloud_". Casing is camelCase, instants are
// ISO 8601 in UTC with milliseconds, and an optional field without a value is
// absent; only activeRun is present with null.
//
// # Invariants
//
//   - Every status is a pure function of facts and now; nothing is decided here.
//   - No sandbox, driver, isolation or host path is ever shown.
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
package cloud
