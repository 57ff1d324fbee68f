// Package runtimes puts agents from npm into read-only layers that sandboxes get, and
// makes the table of runtimes of a server from the product's rows, the operator's
// configuration and what is installed.
//
// Words: a recipe says which packages a runtime consists of and what goes into its
// bin directory; a layer is the directory that an installation leaves, with a record
// beside the tree; the digest of a layer covers names, kinds, execute bits and
// contents of its tree, and nothing of where it came from.
//
// Invariants: a layer appears in one step, whole, and is never changed after that; no
// script of a package is run; each package has been compared with the hash that the
// registry gave for it, and the ones that a recipe names with the hash in the recipe;
// a tree has regular files, directories and links, and no file that is more than
// readable and executable to others.
//
// Concurrency: functions are safe for concurrent use, also by several processes: what
// changes the directory holds a lock on it.
//
// Failure: an installation that was interrupted leaves a directory that the next one
// removes. What npm has downloaded by then it need not download again.
package runtimes
