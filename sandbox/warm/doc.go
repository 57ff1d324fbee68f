// Package warm keeps sandboxes ready in front of a driver, so that a session that
// starts does not wait for one to be made.
//
// # Words
//
// A kind is what a spec asks for, whoever it is for. The demand for a kind is the most
// sandboxes of it that were asked for within a short time, lately: as many had to be
// ready for none to wait. To fill is to make one sandbox ready.
//
// # Invariants
//
//   - What is ready belongs to nobody; the driver gives it to one session, once.
//   - There are never more than Config.Max sandboxes ready, over all kinds.
//   - One sandbox is filled at a time, and none while a session waits for another to
//     be made: a fill that is under way then either becomes that session's sandbox or
//     is broken off.
//   - Nothing is filled while the host is short of memory. When it gets worse, what is
//     ready is given back.
//
// # Concurrency
//
// As package sandbox says. One goroutine fills; Close waits for it.
//
// # Failure
//
// When nothing can be made ready, sandboxes are made when they are asked for, as without
// this package. A kind that fails is left alone for a while, longer each time.
package warm
