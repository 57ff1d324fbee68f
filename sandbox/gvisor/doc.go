// Package gvisor makes sandboxes with gVisor: a kernel in user space, written in Go,
// between the sandbox and the kernel of the host.
//
// gVisor is linked in. The driver starts our own executable again as gVisor's runtime,
// so that nothing has to be installed; see [IsReexec] and [Main].
//
// # Words
//
// runsc is gVisor's runtime. The sentry is the process that is the sandbox's kernel;
// the gofer is the process that opens host files for it. A bundle is a directory with
// the description of a container for runsc.
//
// # Invariants
//
//   - The sandbox has no network but its own loopback, and of the host's files only
//     /usr, /opt, a few files of /etc, its workspace, its home and its layers.
//   - The driver makes no mounts on the host, so there are none to undo.
//   - The sentry and the gofer are in a session of their own and hold no pipe of the
//     server. The server's death does not reach them.
//   - Everything but the workspace and the home is lost with the sandbox: the root
//     directory is written to in memory.
//
// # Concurrency
//
// As package sandbox says.
//
// # Failure
//
// What runsc wrote before it gave up is part of the error of Create, up to a limit.
// A sandbox whose sentry or gofer dies ends as a whole.
package gvisor
