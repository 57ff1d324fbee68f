// Package local is the half that drivers of sandboxes on this machine share: a
// directory with one subdirectory a sandbox, the socket that each keeper dials, and
// the watching and ending of processes.
//
// # Words
//
// A [Machine] keeps all sandboxes of one directory. A [Cell] is one sandbox as it is
// on disk. A [Launcher] is what a driver adds: how the processes of a cell start and
// how all of them end; a [Kernel] is one whose sandboxes have a kernel of their own. The
// [Door] is the host's end of the keeper's socket. A spare, or
// warm cell, is one that runs and belongs to no session yet.
//
// # Invariants
//
//   - The directory of a cell exists before anything else of it, and its record
//     says which process runs in it before Create returns. So a server that is
//     killed between two instructions leaves something that List shows.
//   - The id of a cell follows from the driver's directory, its session and its
//     epoch alone, so that its processes can be found without a record. That of a
//     spare is random and in the name of its directory.
//   - A spare becomes a session's by one step, a link in the session's place, and
//     until then it is nobody's: what no link leads to is ended by the next Open. It
//     belongs to that session until it is removed.
//   - A process is known by its id, its start time and the boot it belongs to. No
//     signal is sent to a process that merely has the same id.
//   - Every process of a cell is born in the cell's control group, where there are any,
//     and the group's limits are in force before. Groups and disks follow from the
//     cell's id and directory and are removed with it.
//   - Files of a sandbox are only ever removed relative to an open directory, and
//     no link in them is followed.
//
// # Concurrency
//
// One operation at a time on a cell; cells do not wait for each other. Watching a
// process costs a goroutine and no thread.
//
// # Failure
//
// A Create that fails ends and removes the cell before it returns. If even that
// fails the cell stays listed and Remove can be tried again. What an earlier server
// left and Open cannot remove does not keep Open from working: see Leftovers.
package local
