// Package checkpoint captures a session's files into immutable objects of a
// bucket and restores them bit by bit.
//
// # Purpose
//
// A checkpoint holds up to two trees under one root: the workspace (a whole
// directory) and the conversation (chosen files below a home directory). One
// root means that files and conversation can never differ in version.
//
// # Words
//
//   - A chunk is a run of file bytes named by its SHA-256. A file of at most
//     512 KiB is one chunk; longer ones are cut by content (FastCDC).
//   - A segment is up to 512 KiB of chunks compressed together, or one longer
//     chunk. It is the unit of reading.
//   - A pack, p/<id>, is an object of segments, pages and a footer. Its name is
//     a unique id and never a content hash: a name that was deleted is never
//     used again.
//   - A page is about 128 entries of a tree in depth-first order, named by its
//     SHA-256. Where pages end depends on the paths alone, so a change rewrites
//     the pages it touches and shares the others with the parent.
//   - The root, r/<sha256>, names packs and pages. Its digest is what the
//     caller keeps; every other byte is verified from it.
//   - The digest of a tree covers names, metadata and content, and no pack
//     positions: two captures of equal trees have equal digests.
//
// # Invariants
//
//   - Nothing refers to an object until the caller records the Ref, which is
//     the only atomic point. Before it, everything written is an orphan.
//   - An object is never overwritten, and is on stable storage before Capture
//     returns (see durable.go for local buckets).
//   - Capture never follows a link and never opens what is no regular file or
//     directory. Restore never writes outside its targets.
//   - Bytes from a bucket are hostile until their digest was checked; lengths
//     and counts are bounded before anything is allocated for them.
//   - A tree that could not be read in full is left out with a Reason; it is
//     never stored as if it were whole.
//   - The stat cache only ever saves reading. Its rules are in statcache.go.
//
// What is kept of an entry: name bytes, type, permission bits with setuid,
// setgid and sticky, uid and gid (given back when privileged), mtime to the
// nanosecond, link targets, hard links, user.* attributes, POSIX ACLs, file
// capabilities (when privileged), holes. Sockets, fifos and devices are
// skipped and counted.
//
// # Concurrency
//
// A Store is safe for concurrent use; captures of one workspace are the
// caller's to serialise. The caller stops all writers of a tree before
// capturing it; a file that moves all the same is noticed and makes the tree
// torn. Every method returns only after its goroutines have ended.
//
// # Failure
//
// A failed Capture leaves at most orphans, which Orphans lists. A failed
// Restore leaves a target that the caller must discard. Errors wrap ErrCorrupt,
// ErrMissing, ErrExists, ErrNoSpace, ErrNotEmpty or ErrLimit where a caller
// could act on the difference.
package checkpoint
