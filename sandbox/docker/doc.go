// Package docker is the sandbox driver for machines that have a container engine:
// Docker, or Podman with its Docker-compatible service, on this machine.
//
// # Words
//
// The engine is the service behind a Unix socket. A runtime is what the engine starts a
// sandbox with: runc and crun share the host's kernel (container), runsc is gVisor, and
// those of the Kata and Firecracker kind put each sandbox into a machine of its own
// (microvm). The root image is the engine's copy of the zero-install root directory.
//
// # Invariants
//
//   - The wall is the one that was asked for or there is no sandbox. The engine's word
//     is checked against the process that it has started.
//   - A sandbox has the name and the labels of its cell and of this driver's directory.
//     What belongs to another directory is never listed and never touched.
//   - Sandboxes have no network, no capability but the few that root needs among its own
//     files, no new privileges, and a system call filter where they share the kernel.
//   - Nothing of the host is writable but workspace and home. A directory of the host is
//     shown with everything that is mounted below it, each part read-only.
//   - All files that a sandbox makes in workspace and home can be read and removed by
//     the server. Where the server is not root, the sandbox gets no second user.
//   - A sandbox that the engine was still making when the server died is listed as soon
//     as the engine shows it.
//
// A runtime of the microvm kind must pass Unix sockets of shared directories into its
// machines, because the keeper calls through one; file systems that share files alone do
// not. Probe finds out by making a sandbox, and without it there is none.
//
// # Concurrency
//
// As in package sandbox. The engine does one thing at a time to a sandbox.
//
// # Failure
//
// An engine that does not answer is an error and never an end: the sandbox's process
// is watched by the kernel's means, so that it outlives a restart of the engine where the
// engine lets it.
package docker
