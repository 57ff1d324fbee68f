package acp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sojourn-dev/sojourn/internal/harness"
	"github.com/sojourn-dev/sojourn/internal/link"
)

const (
	readBytes = 1 << 20
	readWait  = 25 * time.Second
	// linger is how long output is awaited after the process has exited while
	// something that it left behind holds its pipes open.
	linger = 300 * time.Millisecond
)

// reading is one step of the reader.
type reading struct {
	chunks []link.Chunk
	// caughtUp says that everything that was there at first has been handed on.
	caughtUp bool
	exit     *exit // the last reading
	err      error // the last reading
}

// exit is how the agent's process ended.
type exit struct {
	unknown     bool // the keeper does not know the process
	missed      bool // output was dropped before it was read
	code        *int
	signal      string
	failure     string
	failureKind string
}

// read follows the output of a process from a position and hands it on, one
// piece at a time: it does not read on before the piece was taken.
func read(ctx context.Context, l harness.Link, process string, from cursor, to chan<- reading) {
	seq, end := from.Seq, from.End
	send := func(r reading) bool {
		select {
		case to <- r:
			return r.exit == nil && r.err == nil
		case <-ctx.Done():
			return false
		}
	}
	wait := time.Duration(0)
	for {
		res, err := l.Read(ctx, link.ReadParams{ProcessID: process, AfterSeq: seq, MaxBytes: readBytes, Wait: wait})
		if errors.Is(err, link.ErrUnknownProcess) {
			send(reading{exit: &exit{unknown: true}})
			return
		}
		if err != nil {
			send(reading{err: err})
			return
		}
		seq = max(seq, res.NextSeq-1)
		if n := len(res.Chunks); n > 0 {
			if res.Chunks[0].Offset > end {
				send(reading{exit: &exit{missed: true}})
				return
			}
			end = res.Chunks[n-1].Offset + int64(len(res.Chunks[n-1].Data))
			if !send(reading{chunks: res.Chunks}) {
				return
			}
		}
		over := res.Closed || res.Exited && len(res.Chunks) == 0 && wait == linger
		switch {
		case over:
			send(reading{exit: exited(res)})
			return
		case res.Exited:
			wait = linger
		case len(res.Chunks) == 0 && wait == 0:
			wait = readWait
			if !send(reading{caughtUp: true}) {
				return
			}
		}
	}
}

func exited(r link.ReadResult) *exit {
	return &exit{code: r.ExitCode, signal: r.Signal, failure: r.Failure, failureKind: r.FailureKind}
}

// missing reports whether the program could not be run at all. 126 and 127 are
// what a shell, or env, exits with then.
func (e *exit) missing() bool {
	return e.failureKind == link.FailureProgram || e.code != nil && (*e.code == 126 || *e.code == 127)
}

// text says how the process ended.
func (e *exit) text(command []string) string {
	switch {
	case e.unknown:
		return "its process is not known any more"
	case e.failure != "":
		return e.failure
	case e.signal != "":
		return "it was ended by " + e.signal
	case e.code != nil && *e.code == 127 && len(command) > 0:
		return fmt.Sprintf("%q was not found (exit status 127)", command[0])
	case e.code != nil:
		return fmt.Sprintf("exit status %d", *e.code)
	default:
		return "its exit status is unknown"
	}
}
