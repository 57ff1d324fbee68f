// Package snapshot keeps saved processes of sandboxes in a blob store.
//
// # Words
//
// An object is the files of one directory, as one encrypted stream. Its key names
// when it was made and nothing of its content.
//
// # Invariants
//
//   - What is stored is encrypted before it leaves this process: the memory of
//     processes holds everything that they know.
//   - What is loaded is what was stored, or the load fails: each part of the
//     stream is authenticated, its end is marked, and it holds its own key, so that
//     no object can stand in the place of another.
//   - Only regular files come out of an object, directly below the directory that
//     they are loaded into.
//
// # Concurrency
//
// All methods are safe for concurrent use.
package snapshot
