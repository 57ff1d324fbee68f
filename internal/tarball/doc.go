// Package tarball writes file trees as tar streams and takes such streams
// apart again, on the two sides of a copy between a sandbox and elsewhere.
//
// # Words
//
// The top of an archive is the first component of its names: an archive that
// [Write] makes of one file or directory has exactly one. A report counts what
// went through, and what was left out.
//
// # Invariants
//
//   - Names are bytes: one that is not UTF-8 comes back as it was.
//   - Write follows no link. A file is opened and then compared with what was
//     listed, so one that is swapped for a link meanwhile is left out.
//   - Extract trusts nothing: every name is checked, and every file operation
//     is one beneath a root, so no name, link or sequence of entries reaches
//     outside. A file is there whole under its name, or as it was before.
//   - An archive without its end mark is refused: entries may be missing.
//   - Set-user-id and set-group-id bits, owners, devices, pipes and sockets do
//     not travel.
//
// # Concurrency
//
// Calls share nothing. Memory does not grow with the size of files; a little is
// kept for each hard-linked file and each directory.
//
// # Failure
//
// Write goes on past a file that cannot be read, and its report says so; it
// fails when its writer does. Extract ends at the first thing that is wrong,
// with what came before it in place.
package tarball
