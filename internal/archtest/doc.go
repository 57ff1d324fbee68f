// Package archtest holds the policies of the repository as tests, so that
// nobody has to remember them: who may import whom, one package comment each,
// the purity of the domain, the length of files, what documents must name, and
// words that have no place here.
//
// # Words
//
// A policy is stated as data with its reason, and fails with a sentence that
// says what to do. Change that data in a commit of its own, with the reason, and
// never to make a build pass.
//
// # Failure
//
// The tests read the source tree and run nothing: they need no compiler, no
// network and well under a second.
package archtest
