package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Size is that of a terminal, in cells.
type Size struct {
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// Shell says which shell to open and what it is connected with. Session is
// needed; a nil stream is empty, or discards.
type Shell struct {
	Session  string
	Name     string   // "" lets the server make one up
	Reattach bool     // go on with the shell of this name
	Argv     []string // the program; empty means a login shell
	Dir      string   // "" means the workspace
	TTY      bool
	Term     string // the kind of terminal
	Size     Size   // of the terminal at first

	// Stdin is read in a goroutine that may outlive the call by one Read.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Sizes          <-chan Size     // changes of the terminal
	Signals        <-chan string   // to send, such as SIGINT
	Detach         <-chan struct{} // closed to leave the shell running

	// Patience is how long to wait for a server that went away; 0 means one
	// minute. The shell goes on meanwhile, and no byte is lost or comes twice,
	// except that a screen may lose what it showed first.
	Patience time.Duration
	OnStart  func(name string) // told the name, and again after a cut
	OnCut    func(error)       // told why a connection was cut, before the next
}

// ShellEnd is how a shell, or our part in it, ended.
type ShellEnd struct {
	Name     string
	Code     *int   // the exit code
	Signal   string // that ended it, such as SIGKILL
	Failure  string // why it could not be started
	Detached bool   // it goes on without us
	Reason   string // why, if that was not our wish
	Lost     int64  // bytes of output that were not kept for us
}

// Shell opens a shell and carries it until it ends, or is left. A connection that
// is cut is made anew.
func (c *Client) Shell(ctx context.Context, o Shell) (ShellEnd, error) {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	t := &shellRun{
		carrier: carrier{c: c, patience: o.Patience, onCut: o.OnCut}, o: o, writer: rand.Text(), input: newInput(),
	}
	t.end.Name, t.have = o.Name, -1
	if !o.Reattach {
		t.have = 0
	}
	done := make(chan struct{})
	defer close(done)
	if o.Stdin != nil {
		go t.input.read(o.Stdin, done)
	}
	err := t.keep(ctx, t.connect, func() bool { return !t.begun }, func() string { return "shell " + t.end.Name })
	return t.end, err
}

// shellRun is the state of one [Client.Shell] over its connections.
type shellRun struct {
	carrier
	o      Shell
	writer string
	begun  bool // the shell is there
	have   int64
	end    ShellEnd
	stderr bool // which stream the next bytes belong to
	input  *input

	mu sync.Mutex // over o.Size
}

// query says which shell, and where both directions stand.
func (t *shellRun) query() url.Values {
	first := t.input.rewind()
	t.mu.Lock()
	defer t.mu.Unlock()
	v := url.Values{"tty": {strconv.FormatBool(t.o.TTY)}, "writer": {t.writer}, "sent": {strconv.FormatInt(first, 10)}}
	if t.end.Name != "" {
		v.Set("name", t.end.Name)
	}
	if t.begun || t.o.Reattach {
		v.Set("reattach", "true")
		if t.have >= 0 {
			v.Set("from", strconv.FormatInt(t.have, 10))
		}
	} else {
		v["argv"] = t.o.Argv
		if t.o.Dir != "" {
			v.Set("dir", t.o.Dir)
		}
	}
	if t.o.TTY && t.o.Size.Rows > 0 && t.o.Size.Cols > 0 {
		v.Set("rows", strconv.Itoa(int(t.o.Size.Rows)))
		v.Set("cols", strconv.Itoa(int(t.o.Size.Cols)))
	}
	if t.o.Term != "" {
		v.Set("term", t.o.Term)
	}
	return v
}

// connect carries the shell over one connection. It returns nil when there is
// nothing to go on with.
func (t *shellRun) connect(ctx context.Context) error {
	return t.converse(ctx, of(t.o.Session, "shell"), t.query(), t.send, t.hear)
}

// hear shows output, and heeds what the server says. over says that it was its last
// word.
func (t *shellRun) hear(ctx context.Context, ws *websocket.Conn, kind websocket.MessageType, frame io.Reader) (over bool, err error) {
	data, err := io.ReadAll(frame)
	if err != nil {
		return false, because(ctx, err)
	}
	if kind == websocket.MessageBinary {
		return false, t.show(ctx, ws, data)
	}
	return t.told(data)
}

// keepAlive pings, so that a network that died in silence is noticed.
func keepAlive(ctx context.Context, ws *websocket.Conn, every time.Duration, watch *time.Timer) {
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if ws.Ping(ctx) == nil {
			watch.Reset(2 * every)
		}
	}
}

// show writes output and says that it is here.
func (t *shellRun) show(ctx context.Context, ws *websocket.Conn, data []byte) error {
	to := t.o.Stdout
	if t.stderr {
		to = t.o.Stderr
	}
	if to != nil {
		if _, err := to.Write(data); err != nil {
			return &Error{Code: "output_closed", Message: "The output could not be written: " + err.Error()}
		}
	}
	if t.have += int64(len(data)); t.o.TTY {
		return nil
	}
	return say(ctx, ws, map[string]any{"taken": t.have})
}

func say(ctx context.Context, ws *websocket.Conn, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return ws.Write(ctx, websocket.MessageText, text)
}

// told heeds what the server says. over says that it was its last word.
func (t *shellRun) told(text []byte) (over bool, err error) {
	var m struct {
		Started *struct{ Name string }
		Stream  string
		Offset  *int64
		Gap     int64
		Taken   *int64
		Exit    *struct {
			Code            *int
			Signal, Failure string
		}
		Detached bool
		Reason   string
		Error    *struct{ Code, Message string }
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return true, fmt.Errorf("decode what the server says: %w", err)
	}
	if m.Stream != "" {
		t.stderr = m.Stream == "stderr"
	}
	if m.Offset != nil {
		t.have = *m.Offset
	}
	if m.Taken != nil {
		t.input.taken(*m.Taken)
	}
	t.end.Lost += m.Gap
	switch {
	case m.Started != nil:
		t.begun, t.end.Name = true, m.Started.Name
		if t.o.OnStart != nil {
			t.o.OnStart(m.Started.Name)
		}
	case m.Exit != nil:
		t.end.Code, t.end.Signal, t.end.Failure = m.Exit.Code, m.Exit.Signal, m.Exit.Failure
		return true, nil
	case m.Detached:
		t.end.Detached, t.end.Reason = true, m.Reason
		return true, nil
	case m.Error != nil:
		return true, &Error{Status: statusOf(m.Error.Code), Code: m.Error.Code, Message: m.Error.Message}
	}
	return false, nil
}

// statusOf tells the ends that a new connection may mend from the others.
func statusOf(code string) int {
	switch code {
	case "unavailable", "internal", "workspace_unavailable", "workspace_starting":
		return http.StatusServiceUnavailable
	case "unauthenticated":
		return http.StatusUnauthorized
	default:
		return http.StatusConflict
	}
}

// send sends input, changes of size, signals and the wish to leave.
func (t *shellRun) send(ctx context.Context, ws *websocket.Conn) error {
	for {
		if err := t.input.send(ctx, ws); err != nil {
			return err
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-t.input.more:
		case size := <-t.o.Sizes:
			t.mu.Lock()
			t.o.Size = size
			t.mu.Unlock()
			err = say(ctx, ws, map[string]any{"resize": size})
		case name := <-t.o.Signals:
			err = say(ctx, ws, map[string]any{"signal": name})
		case <-t.o.Detach:
			if err = say(ctx, ws, map[string]any{"detach": true}); err == nil {
				<-ctx.Done() // the answer ends the connection
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
}
