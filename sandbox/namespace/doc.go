// Package namespace makes sandboxes with the namespaces of the host's kernel, in Go and
// without any program but our own. They start fast and cost next to nothing; what is
// inside calls the host's kernel directly, so the wall is as good as that kernel.
//
// # Words
//
// The init is our own executable in fresh namespaces: it builds the sandbox around
// itself, gives up all that it does not need and becomes the keeper. See [Init].
//
// # Invariants
//
//   - The sandbox has its own user, mount, process, network, IPC, host name and cgroup
//     namespaces. Root in it is an unprivileged user of the host: the server's own
//     user, or if that is root a user id in a range that nobody else has.
//   - The host's root directory is read-only. Writable are the workspace, the home, /tmp
//     and /dev/shm. An image is covered by an overlay: all of it can be changed, and the
//     changes are files of the sandbox and go with it. Where the file system of the
//     driver's directory cannot hold them they are kept in memory, and where the kernel
//     has no overlays the image is read-only, too; the sandbox's record says which.
//   - The init starts with one thread of its own and nothing of the server's but the
//     files in its plan. Before it becomes the keeper it drops all capabilities that
//     do not concern files, users and signals of the sandbox, forbids itself to gain
//     any, restricts itself by Landlock as far as the kernel knows it, and installs
//     a list of allowed system calls.
//   - The init waits for its plan until the server has recorded it, and ends if the
//     server dies first.
//
// # Concurrency
//
// As package sandbox says. The init is one locked thread, because capabilities and
// filters belong to threads.
//
// # Failure
//
// The init tells the server what failed, and exits. A sandbox ends as a whole with
// its keeper, which is process 1 in it.
package namespace
