// Package server puts the parts of one server process together: store, hub,
// engine, keys and the HTTP contracts. Which store, sandbox driver and blob
// store these are is the caller's choice: the command and the tests make it.
//
// Failure: [Open] either returns a server or has closed all that it opened.
// [Server.Run] serves until its context ends; sandboxes keep running then.
package server
