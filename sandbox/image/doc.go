// Package image keeps root file systems for sandboxes on this machine: pulled from
// registries or read from disk, checked, unpacked once, and shared read-only by all
// sandboxes that start from them.
//
// # Words
//
// A reference is how an image is asked for: "debian:bookworm" and everything else that a
// registry understands, "name@sha256:…" for one content for good, and on this host
// "oci-archive:/path" (an archive in OCI layout or as "docker save" writes it, "#NAME"
// chooses one of several), "oci:/path" (a layout directory), "rootfs:/path" (a tar, gzip
// or zstd archive of a root) and "dir:/path" (a tree that is there, used as it is). A name
// is the operator's own word for a reference. A digest is what names the content: of the
// manifest for the platform, of the configuration in Docker's archives, of the archive.
//
// # Invariants
//
//   - Which references a session may name is the operator's decision: names and rules of
//     the configuration, and nothing else. A path of the host is only ever one that the
//     configuration has in full.
//   - Nothing is unpacked from a network before all of it has come and has the digest
//     that its manifest says, and no tree is used whose archives did not have the digests
//     that its configuration says.
//   - An archive is hostile. Entries are made beneath the root by the kernel's own
//     resolution; links are kept, and followed inside only. Devices and pipes are left
//     out. Sizes, entries, depth and all descriptions have bounds.
//   - A tree is made under another name, written to disk, and renamed. It is there wholly
//     or not at all, whenever the server is killed. What a dead server was making is
//     removed by the next.
//   - A tree is compared with its record, by names, sizes and times, when it is first used
//     after a boot. [Store.Verify] reads all of it.
//   - Nothing is removed that a sandbox was made with and that is still recorded, or that
//     was used within the last minutes.
//
// As root a tree has the owners that the archive names, and files keep set-user-id bits
// and capabilities: nobody else can enter the store. Without root all files are the
// server's user's own, which is root in its sandboxes, and its owner can read all of them.
//
// # Concurrency
//
// All methods are safe for concurrent use, and several servers can share a directory:
// whoever wants an image that is being made waits for it, and can stop waiting.
//
// # Failure
//
// Downloads that break off are tried again, at mirrors and at the registry in turn. When a
// registry cannot be asked what a tag means, what it meant last is used, and a warning is
// logged.
package image
