// Package cgroup makes one control group a sandbox: the kernel then bounds the memory,
// the processor time and the processes of everything in it together, and counts what
// they use.
//
// # Words
//
// A hierarchy is a mounted tree of groups. With version 1 of control groups there are
// several, each for some controllers; with version 2 there is one. A [Tree] holds the
// groups of one owner, which is a directory of a driver; a [Group] is one sandbox's.
// Delegation is the permission to make groups below one's own, which systemd gives a
// service with Delegate=yes.
//
// # Invariants
//
//   - The groups of an owner lie below a parent that is named after the owner, so two
//     servers on a host never touch each other's.
//   - A group is named after its sandbox and can be found without any record.
//   - A process is born in its group: it runs no instruction outside.
//   - A limit is in force before the group has a member, or making the group fails.
//
// # Concurrency
//
// All methods may be called at the same time, also by several processes.
//
// # Failure
//
// What a machine does not allow is said by [Tree.Support] and is no error: groups are
// then not made. Removing a group ends its members first and can be tried again.
package cgroup
