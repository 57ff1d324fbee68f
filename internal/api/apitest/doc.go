// Package apitest runs the golden scripts of a contract against a whole server.
//
// A script is a testscript archive. Its comment quotes the sentence of the
// contract that it proves; what the server answers is compared with files of the
// archive, which "go test -update" rewrites. Ids and instants are masked: an id
// that the script has named with "set" by that name, every other one as <id>.
//
// The commands are:
//
//	serve [exec] [hold=D] [ceiling=D] [workspacemax=N] [conversationmax=N] [heartbeat=D]
//	      [fee=N] [isolation=WALL] [nocompute] [env=NAME=VALUE]
//	    starts the server of the script; "$URL" and "$ADMIN" are its address and key.
//	    With exec the script is about contract B: its sandboxes run the programs of
//	    the host, await and log read its logs. An exec costs N micro-cents; the
//	    sandboxes claim to have the wall
//	http [-key KEY] [-H NAME:VALUE] METHOD PATH [BODY]
//	    makes a call and prints status, contract headers and the indented body;
//	    with "!" it must not succeed. KEY "none" sends no key, "@FILE" as BODY
//	    sends a file
//	set NAME PATH
//	    names the value at a path of the last answer, such as session.id
//	is PATH VALUE
//	    compares a value of the last answer; "absent" and "null" are values too,
//	    and "~REGEXP" matches
//	near PATH D
//	    checks that an instant of the last answer is D from now, give or take 3 s
//	later PATH INSTANT
//	    checks that an instant of the last answer is behind another one
//	await SESSION TYPE [PATH=VALUE]
//	    follows the session's log from where the last await ended until an event
//	    has the type (and the value, or "~REGEXP"), and takes that event for the last answer
//	log SESSION [REGEXP]
//	    prints the types of the session's events that match
//	lose SESSION, freeze SESSION, thaw SESSION
//	    does that to the sandboxes of a session
//	faults [slow=D] [fail]
//	    makes the making of sandboxes take D, or fail; without arguments neither
//	restart
//	    ends the server as a crash would, and starts it on the same data
package apitest
