// Package host looks at what a machine offers to a server of sandboxes, and says
// what an operator can do about what it does not.
//
// # Words
//
// A check is one thing that was looked at: its state, one sentence that says what
// was seen, and where it is not as it should be one sentence that says what to
// install or to allow.
//
// # Invariants
//
//   - Looking changes nothing on the machine.
//   - The package looks at conditions. Whether a sandbox can really be made is tried
//     by the drivers, and their word counts more.
//
// # Concurrency
//
// A [Machine] is not changed by looking at it; several may do so at once.
//
// # Failure
//
// What cannot be found out is [Untried], with the reason. It is no error.
package host
