// Package sandbox is the contract between the engine and the drivers that make
// sandboxes: disposable pieces of compute with one workspace, one home and one
// keeper inside.
//
// A [Driver] owns a directory. Everything that exists of its sandboxes — running,
// half made or half destroyed — can be found from that directory alone, so that a
// server which was killed at any moment can find its sandboxes again ([Driver.List],
// [Driver.Recover]) or clean up behind itself ([Driver.Remove]).
//
// # Words
//
// A sandbox is known by its session and its epoch, the fencing number of the lease
// that it was made for. A [Handle] is the serialisable form that outlives the
// server. The keeper is the process with id 1 in the sandbox; it dials the server
// and is what [Sandbox.Dial] connects to. Host means the machine outside.
//
// # Invariants
//
//   - Create is idempotent on session and epoch, and a sandbox never comes into
//     being without a trace in the directory.
//   - A sandbox outlives the server process: neither Close nor the death of the
//     server ends it. Only Kill, Destroy, Remove, its own exit or the loss of the host do.
//   - ErrGone means that the sandbox does not run any more and never will again. A
//     driver that cannot tell answers with another error.
//   - A sandbox whose keeper answers nobody can still be ended, and its files be read:
//     Kill asks nothing of what is inside.
//   - After Destroy or Remove returned nil, no process and no file of the sandbox
//     is left on the host.
//   - What a driver cannot do is refused with ErrUnsupported, never ignored.
//
// # Concurrency
//
// All methods of drivers and sandboxes are safe for concurrent use. A driver
// directory belongs to one Driver value at a time.
//
// # Failure
//
// A Create that fails leaves nothing behind. A Destroy that fails can be repeated.
package sandbox
