package link

import (
	"errors"
	"fmt"
	"io/fs"
)

// The codes of JSON-RPC, and our own beside them.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeNoMethod       = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603

	CodeNotFound = -32004 // a file does not exist; the public protocol's own

	// Ours keep away from -32010, with which a stock exec-server says that a
	// session is attached elsewhere.
	CodeStaleEpoch     = -32040
	CodeProcessExists  = -32041
	CodeUnknownProcess = -32042
	CodeLimit          = -32043 // a bound of the server: processes, memory, size of a file
	CodeUnknownSession = -32044
	CodeUnsupported    = -32045
	CodeExists         = -32046 // a file exists
	CodePermission     = -32047
)

var (
	// ErrGone says that what the link led to no longer exists and never will.
	ErrGone = errors.New("gone")
	// ErrProcessExists answers a start whose process id is in use.
	ErrProcessExists = errors.New("process exists")
	// ErrUnknownProcess answers a call for a process the server does not know.
	ErrUnknownProcess = errors.New("unknown process")
	// ErrStaleEpoch answers a client whose lease has been superseded.
	ErrStaleEpoch = errors.New("stale epoch")
	// ErrUnknownSession answers a client that wants to resume a session which
	// the server does not have: it was restarted, and its processes are gone.
	ErrUnknownSession = errors.New("unknown session")
	// ErrStdinClosed answers a write to a process that takes no input any more.
	ErrStdinClosed = errors.New("stdin closed")
	// ErrLimit answers a call that would pass a bound of the server.
	ErrLimit = errors.New("limit reached")
	// ErrUnsupported answers a call that this server cannot do.
	ErrUnsupported = errors.New("not supported")
	// ErrDisconnected fails the calls of a connection that has ended.
	ErrDisconnected = errors.New("disconnected")
	// ErrFrameTooLarge fails a frame over MaxFrameBytes, in either direction.
	ErrFrameTooLarge = errors.New("frame too large")
	// ErrFrameTruncated fails a stream that ended inside a frame.
	ErrFrameTruncated = errors.New("frame truncated")
	// ErrMalformed fails bytes that are not a JSON-RPC message.
	ErrMalformed = errors.New("malformed message")
)

// GapError answers a write with an offset that lies behind what was taken.
type GapError struct{ Taken int64 }

func (e *GapError) Error() string { return fmt.Sprintf("the input was taken up to byte %d", e.Taken) }

// Error is an error answer of the far side.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// sentinels gives each code the errors it matches.
var sentinels = map[int]error{
	CodeNotFound:       fs.ErrNotExist,
	CodeExists:         fs.ErrExist,
	CodePermission:     fs.ErrPermission,
	CodeStaleEpoch:     ErrStaleEpoch,
	CodeProcessExists:  ErrProcessExists,
	CodeUnknownProcess: ErrUnknownProcess,
	CodeLimit:          ErrLimit,
	CodeUnknownSession: ErrUnknownSession,
	CodeUnsupported:    ErrUnsupported,
	CodeNoMethod:       ErrUnsupported,
}

// Is reports whether target is the typed error that the code stands for.
func (e *Error) Is(target error) bool {
	s, ok := sentinels[e.Code]
	return ok && s == target
}
