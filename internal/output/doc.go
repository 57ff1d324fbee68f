// Package output keeps what execs wrote, byte for byte and in order, readable
// at any offset while it is still being written.
//
// # Purpose
//
// An exec's output must outlive its sandbox, its caller and this process, may
// be larger than memory, and is most often tiny. Up to [Config.InlineBytes] stay
// in memory and end as a small blob in the caller's database, without touching
// a file. What is longer goes to two files below the directory of its session.
//
// # Words
//
//   - The total offset of a byte counts the bytes of both streams that arrived
//     before it; its stream offset counts those of its own stream only.
//   - A run is consecutive bytes of one stream.
//   - The data file, EXEC.data, holds all bytes in the order they arrived, so
//     that a total offset is a place in it.
//   - The index file, EXEC.index, holds two slots and one record of 16 bytes for
//     each run, all with checksums. A slot is a whole state; the newer of the
//     valid ones says how much of both files counts.
//   - The tail is what has arrived and is not in the files yet: at most
//     InlineBytes. An output that has no files is all tail.
//   - An output is cut when not all of it was kept. What was kept is then a
//     prefix, and the rest is counted.
//
// # Invariants
//
//   - A byte is never shown under a stream that it was not written to. Data is
//     written first, then the records of its runs, then a slot: what no slot
//     covers is cut off when the files are opened again.
//   - A slot is written over the older of the two, never over the one in force.
//   - What a reader was shown at an offset stays there. Bytes that a slot covers
//     are never written again, and a tail behind files has its room reserved. The
//     tail of a writer that dies is appended again by who still has it, see
//     [Writer.Durable].
//   - Each file of an exec has at most [Config.MaxBytes], headers aside, whatever
//     the exec does. The memory of a writer is bounded by InlineBytes, that of
//     a reader by what it asks for.
//
// # Concurrency
//
// All methods may be called from any goroutine. An output has at most one
// [Writer] in a process, and one process has the directory. Readers never hold
// a writer: they look at a snapshot, and wait for the next one. The package
// starts no goroutine.
//
// # Failure
//
// A kill of the process loses what lies behind [Writer.Durable] and nothing else.
// A loss of power may also take output that was not finished; what Finish
// returned for is on stable storage. When the disk is full nothing fails: the
// output is cut, and says so. Other failures of the file system are returned and
// leave the output as it was, so that the same bytes can be appended again.
// Damaged files give [ErrCorrupt].
package output
