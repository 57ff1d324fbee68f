// Package files reads, writes and lists single files for somebody who is not in
// the sandbox and who may only reach a part of what the sandbox reaches.
//
// # Words
//
// A [Where] is a directory, and says what the paths below it may do. A confined
// one is a tree that no path leads out of: a name, ".." or link that would is
// refused with [Escapes]. An open one is the root of a file system, where links
// lead wherever they lead for a program that has this root.
//
// # Invariants
//
//   - A path is walked one name at a time, from the descriptor of one directory to
//     that of the next, and what is found at its end is opened from the last of
//     them without following a link. To check a path and to use it is one step, so
//     no rename in between leads elsewhere.
//   - A link is read and walked by us; the kernel never follows one.
//   - Names are bytes.
//   - A file is there whole under its name, or as it was before.
//   - A listing follows no link and goes down into each directory once.
//   - What /proc shows is no file to us: it would be of the process that looks.
//
// # Concurrency
//
// Calls share nothing. Memory is bounded whatever is in the tree.
//
// # Failure
//
// What a caller can act on is an [Error] with a [Kind]; the rest is the system's
// error. A write that fails leaves the old file and nothing beside it.
package files
