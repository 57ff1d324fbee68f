// Package modeltest is a model server for tests, without a model.
//
// Purpose: agents, the gateway and the built-in loop are tested offline against the
// APIs that they speak: Anthropic Messages, OpenAI Responses and chat completions, and
// Gemini's generateContent, streamed and whole. What the model does is written in the
// prompt, next to what is tested:
//
//	@mock think I should write a file
//	@mock say Writing it now.
//	@mock write notes.txt hello world
//	@mock run cat notes.txt
//	@mock say Done.
//
// Words: a directive is such a line. say, think, history (the user's turns so far) and
// lasttool (what the last tool has answered) make text. write, run and tool end one
// reply with a call of a tool; the directives behind it make the next reply, which is
// asked for with the tool's result. delay MS waits before the reply, pace MS between its
// events. usage IN OUT [CACHED [REASONING]] says what it has used. Faults: error STATUS,
// retry SECONDS (with it), cut (the connection ends in the middle of the stream), short
// (the stream ends without its last event), fail TEXT (an error event in the stream).
// They work in whole answers where that has a meaning. A prompt without directives is
// answered with the number of the user's turns, so that one sees whether the history
// came along.
//
// Invariants: the server keeps no conversation: a reply is computed from its request
// alone. "write a file" and "run a command" become calls of whichever tools the agent
// offers, so that one prompt serves every agent. Where an agent sends a cancelled prompt
// again as the first part of the next, the last part with directives counts.
//
// Concurrency: a [Server] may be used by many goroutines. Failure: what it cannot read
// it answers with 400 in the form of the API.
package modeltest
