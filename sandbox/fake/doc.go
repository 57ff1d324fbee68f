// Package fake is a sandbox driver for tests and demonstrations: directories of the
// host, and a keeper that runs programs written in Go inside this process.
//
// It uses no sockets and no processes, so it works inside testing/synctest bubbles.
// It isolates nothing.
//
// # Words
//
// A Driver is both the driver and the machine that its sandboxes live on: it stays
// usable after Close, as the machine would be for the next driver, so that a test
// restarts everything but the Driver and recovers its sandboxes. Shutdown turns the
// machine off. Faults say what goes wrong.
//
// # Invariants
//
//   - Sandbox paths map below the sandbox's own directory, whatever they look like.
//   - Without faults it behaves as package sandbox says, and passes its suite.
//   - Limits are accepted and do nothing. Layers can be written.
//
// # Concurrency
//
// As package sandbox says. A keeper's goroutines end with its sandbox; Shutdown ends
// all of them and waits.
//
// # Failure
//
// Only what Faults, Kill, Freeze and Cut ask for, and errors of the file system.
package fake
