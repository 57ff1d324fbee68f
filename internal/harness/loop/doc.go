// Package loop is our own agent: a loop of model and tools that runs on the
// server, with only its tools and its conversation in the sandbox.
//
// Words: a step is one request to the model and, if the reply has calls, their
// results; a segment is a file of the conversation, written once; a pin names a
// conversation together with the digest of all of it; a call has effects when
// doing it twice could differ from doing it once.
//
// A run goes through its steps, each in two stages that are durable before what
// follows from them happens:
//
//	prompt ──▶ ask ── reply without calls ──▶ ended
//	            ▲ └── reply with calls ──▶ call ──┐
//	            └────────── results ──────────────┘
//
// A server that takes a run up asks the model again, which has no effects, or
// goes on with the calls by what the journal in the state says of each: one that
// waits is begun; one that is done has its result; one that was started is
// looked for. A command is found by its process, whose name is that of the call;
// a file is compared with what it was and what it was to become. What cannot be
// known is told to the model as such. No call is ever begun twice.
//
// The conversation lies below the home, so that checkpoints carry it like any
// agent's. It is hostile input when it is read back: the pin, which the database
// holds, says what it has to be to the byte.
//
// Invariants: items of the conversation are sent as the model gave them; each
// call in it is answered before the model is asked again, if only with
// "cancelled"; results are bounded; the state is small, whatever the
// conversation's size; the model's key is in nothing that is stored.
//
// Concurrency: one goroutine owns a drive's state. Helpers (the request to the
// model, the calls of a step, waits for answers) hand their news to it and end
// before Drive returns. A slow port slows the model's stream.
//
// Failure: what model and tools do wrong is an outcome with a code (see the Code
// constants) or a result that the model reads. An error is returned when the
// port or the link fails or the context ends.
package loop
