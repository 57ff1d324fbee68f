// Package process makes sandboxes of ordinary processes that restrict themselves: for
// development, and for machines on which nothing else works, as in a container without
// any privilege. It needs no root, no namespace and no program but our own.
//
// # Words
//
// The guard is the first process of a sandbox, outside its walls. It starts the
// confined process, which becomes the keeper, takes in what that leaves behind, and ends
// all of it when the keeper ends or the server says so.
//
// # Invariants
//
//   - Files can be written in the workspace, the home and a directory for temporary
//     files, and of the host's files the programs and libraries can be read, and of its
//     settings those that hold no secrets. Landlock says so to the kernel.
//   - There are no sockets but those with a path and, where the kernel's Landlock knows
//     how to tell, those between the processes of the sandbox.
//   - Nothing that is inside has a capability, can gain one, or can signal or trace what
//     is outside; the last where the kernel's Landlock knows signals.
//   - No process outlives Destroy: the guard is the parent of all orphans, and each
//     process has a mark in its environment in case the guard is killed.
//
// It is no wall for strangers' programs: they see the host's processes, share its users
// and its kernel, and can connect to sockets with a path that their user may connect to,
// unless the kernel is very new. Memory, processors and processes have limits where the
// server can make control groups.
//
// The fixed paths of package sandbox do not exist for programs. The protocol has them:
// the keeper translates working directories, files, and the arguments and variables that
// are such paths. What a program has in its text it has to take from its working
// directory and from HOME.
//
// # Concurrency
//
// As package sandbox says.
//
// # Failure
//
// A kernel without Landlock is refused. The confined process tells the server what
// failed, and exits.
package process
