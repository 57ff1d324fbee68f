// Package filter keeps system calls that no sandbox needs from the host's kernel.
//
// # Words
//
// The list is the one of container engines, for containers without capabilities. What
// no sandbox gets is taken away from it: the calls that make or enter namespaces and
// mounts or act on the machine, kinds of sockets that hardly any program uses, and
// requests that type into terminals.
//
// # Invariants
//
//   - A filter goes with a thread to all that it starts, and is never taken off.
//   - Calls of another processor's interface end the process, so that none comes by
//     under another number.
//
// # Concurrency
//
// A filter belongs to the calling thread, which must be locked and is about to become
// another program.
//
// # Failure
//
// An error means that nothing is filtered.
package filter
