// Package script is an agent that needs no model: the prompt is its program. It
// speaks the Agent Client Protocol, version 1, like any other agent, and ships
// in the binary for the demo and for tests.
//
// A prompt is read line by line; lines that do not begin with @ are ignored. A
// prompt without any instruction is answered with "echo: " and its text.
//
//	@say TEXT            says TEXT
//	@think TEXT          thinks TEXT
//	@plan A; B; C        shows a plan, its first entry in progress
//	@usage USED SIZE     shows the use of its context
//	@call ID TITLE       shows a tool call with that id, and its end
//	@write PATH TEXT     writes TEXT and a line end to the file
//	@run COMMAND         runs COMMAND with sh and shows its output
//	@permission on|off   whether @write and @run ask before; each prompt begins with off
//	@ask TEXT            asks for permission and says which option was chosen
//	@withdraw TEXT       asks for permission and takes the question back
//	@request METHOD      requests METHOD of the client and says what came of it
//	@remember KEY VALUE  keeps VALUE in the conversation
//	@recall KEY          says what the conversation holds under KEY
//	@history             says the texts of all prompts so far, as a JSON array
//	@cat PATH            says what is in the file
//	@sha DIR             says the digest of the tree and how many entries it has
//	@env NAME            says the value of an environment variable
//	@sleep MS            waits, until it is cancelled
//	@work MS STEP_MS     works for MS and says a numbered line each STEP_MS
//	@flood N BYTES       says N numbered chunks in a row, each padded by BYTES
//	@big N               says one chunk of N bytes
//	@late TEXT           says TEXT after the turn was answered
//	@noise TEXT          writes TEXT to standard output, outside the protocol
//	@noise-bytes N       writes N bytes of such lines
//	@raw LINE            writes LINE to standard output as it is
//	@stderr TEXT         writes TEXT to standard error
//	@fork COMMAND        starts COMMAND in a session of its own and leaves it behind
//	@ignore-cancel       from here on obeys neither session/cancel nor SIGTERM
//	@stop REASON         ends the turn with REASON
//	@stop-no-reason      ends the turn without a reason
//	@error MESSAGE       ends the turn with an error
//	@exit CODE           ends the process
//	@signal NAME         ends the process by a signal: SEGV, KILL or TERM
//
// In @say and @noise, "\n" and "\e" stand for a line end and an escape.
//
// The conversation is one JSON line a message in $HOME/.script-agent/ID.jsonl,
// synced before the turn is answered: a copy of that file is the conversation.
//
// Its faults are chosen by the environment, so that a test can have them in one
// start and not in the next:
//
//	SCRIPT_AGENT_NO_RESUME=1   does not offer session/resume
//	SCRIPT_AGENT_NO_LOAD=1     does not offer session/load
//	SCRIPT_AGENT_LOAD=WHAT     load and resume answer notfound, error, or success with empty history
//	SCRIPT_AGENT_REPLAY=N      a load replays N updates; "late:N" does so after its answer
//	SCRIPT_AGENT_CRASH=WHERE   exits with status 41 in initialize, new, after-new, load or prompt
//	SCRIPT_AGENT_HANG=METHOD   never answers METHOD
//	SCRIPT_AGENT_BANNER=TEXT   writes TEXT to standard output before anything else
//	SCRIPT_AGENT_PROTOCOL=N    answers initialize with protocol version N
//	SCRIPT_AGENT_ROOT=DIR      takes absolute paths to lie below DIR, outside a sandbox
//
// Invariants: output is one whole line a message. Everything that is said in a
// turn is in the conversation before the turn is answered.
//
// Concurrency: requests run beside each other, so that a cancel is heard while
// a prompt is worked on. Run owns its goroutines and waits for them.
//
// Failure: an instruction that fails says so in its tool call or in the text;
// only an unwritable conversation fails the turn.
package script
