// Package acp drives agents that speak the Agent Client Protocol, version 1,
// over the standard input and output of a process in the sandbox.
//
// Words: an update is one session/update of the agent; noise is output of the
// agent that is not a message of the protocol; the cursor is the position in
// the agent's output up to which everything has been accounted for; the outbox
// holds what is to be written to the agent and may not have arrived.
//
// A drive has two parts. The handshake starts the agent, initialises it and
// opens the conversation; nothing of it is durable, and after a crash it is
// done again with a fresh process. It is skipped when the agent of the last run
// still runs with the right conversation open. The turn begins with a commit;
// from there on every drive of the run takes up the output at the cursor and
// repeats writes under the same write ids, so that no update is lost, none is
// recorded twice and the prompt is given once.
//
//	(no state) ── handshake ──▶ prompt ── response, exit or kill ──▶ ended
//	     ▲                      ▲    │                                 │
//	     └─ server died ────────┘◀───┘ server died: go on at the cursor │
//	  next run, agent alive: straight to prompt ◀──────────────────────┘
//
// Invariants: a JSON-RPC response counts only when it is a whole JSON-RPC 2.0
// response under the very id that is waited for; output is acknowledged only
// after the commit that accounts for it, except in the handshake, whose output
// accounts for nothing; session/cancel is sent only while a prompt is open;
// updates that come before the prompt, such as the replay of a loaded
// conversation, are dropped; no value of the environment is ever put into an
// event.
//
// Concurrency: one goroutine owns a drive's state. A reader, a writer and one
// goroutine an open question serve it through channels and end before Drive
// returns. A slow Port stops the reading, and with it, through the keeper, the
// agent.
//
// Failure: what the agent does wrong is an outcome with a code (see the Code
// constants). Lines, noise, questions and errors are bounded. An error is
// returned when the port or the link fails or the context ends.
package acp
