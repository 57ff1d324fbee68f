// Package gvisor makes sandboxes with gVisor: a kernel in user space, written in Go,
// between the sandbox and the kernel of the host.
//
// gVisor is linked in. The driver starts our own executable again as gVisor's runtime,
// so that nothing has to be installed; see [IsReexec] and [Main]. An operator can name
// another runsc.
//
// # Words
//
// runsc is gVisor's runtime. The sentry is the process that is the sandbox's kernel;
// the gofer is the process that opens host files for it. A bundle is a directory with
// the description of a container for runsc. A build is the list of all that a snapshot
// needs again to be restored.
//
// # Invariants
//
//   - The sandbox has no network but its own loopback, unless its spec asks for an
//     interface, and of the host's files only /usr, /opt, a few files of /etc, its
//     workspace, its home and its layers.
//   - The driver makes no mounts on the host but that of a sandbox's disk, if it has a
//     limit, which is undone with the sandbox. Without root
//     every runsc is root in a user namespace of its own.
//   - All files that runsc makes, its control socket too, are in the directory of the
//     sandbox, however long its path is.
//   - The sentry and the gofer are in a session of their own and hold no pipe of the
//     server. The server's death does not reach them.
//   - Everything but the workspace and the home is lost with the sandbox, unless its
//     processes were saved: the root directory is written to in memory.
//   - A snapshot holds what programs have in memory, but not the programs: their text,
//     and that of libraries, is read again from where it was. So a snapshot is only
//     restored on the same build.
//
// # Concurrency
//
// As package sandbox says.
//
// # Failure
//
// What runsc wrote before it gave up is part of the error of Create, up to a limit.
// A sandbox whose sentry or gofer dies ends as a whole. Processes stand still while a
// snapshot is written; when that fails they go on, and so they do when the server dies
// over it and another one finds the sandbox. If it cannot be told whether they stand
// still the sandbox is ended; its files stay.
package gvisor
