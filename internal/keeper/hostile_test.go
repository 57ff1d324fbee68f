package keeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// raw is a connection on which a test says anything it likes.
type raw struct {
	t  *testing.T
	tr link.Transport
}

func dialRaw(t *testing.T, k *keeper.Keeper) raw {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = k.Serve(context.Background(), link.Framed(far)) // its end is seen here
	}()
	tr := link.Framed(near)
	t.Cleanup(func() {
		tr.Close()
		<-done
	})
	return raw{t, tr}
}

func (r raw) say(text string) {
	r.t.Helper()
	if err := r.tr.Write([]byte(text)); err != nil {
		r.t.Fatal(err)
	}
}

func (r raw) hear() link.Message {
	r.t.Helper()
	data, err := r.tr.Read()
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := link.DecodeMessage(data)
	if err != nil {
		r.t.Fatalf("%s: %v", data, err)
	}
	return m
}

const helloAll = `{"id":0,"method":"initialize","params":{"clientName":"x"}}`

func TestNonsenseGetsTypedErrors(t *testing.T) {
	k := keeper.New(keeper.Config{})
	defer k.Close()
	early := dialRaw(t, k)
	early.say(`{"id":1,"method":"process/read","params":{}}`)
	if m := early.hear(); m.Error == nil || m.Error.Code != link.CodeInvalidRequest {
		t.Fatalf("call before initialize: %+v", m.Error)
	}
	r := dialRaw(t, k)
	r.say(helloAll)
	r.hear()
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		say  string
		code int
	}{
		{`{`, link.CodeParse},
		{`[]`, link.CodeParse},
		{``, link.CodeParse},
		{"\x00\xff", link.CodeParse},
		{`{"id":{},"method":"a"}`, link.CodeParse},
		{`{"id":1}`, link.CodeInvalidRequest},
		{`{"id":1,"method":"process/start","result":1}`, link.CodeInvalidRequest},
		{helloAll, link.CodeInvalidRequest},
		{`{"id":1,"method":"no/such"}`, link.CodeNoMethod},
		{`{"id":1,"method":"process/start"}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":[]}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{]}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":[]}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"","argv":["true"]}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"` + long + `","argv":["true"]}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["a\u0000b"]}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"env":{"A=B":""}}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"cwd":"sub"}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"cwd":"file://host/x"}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"sojourn":{"retain":"x"}}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"sojourn":{"spoolBytes":-1}}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"sojourn":{"user":"root"}}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"sandbox":{}}}`, link.CodeUnsupported},
		{`{"id":1,"method":"process/start","params":{"processId":"p","argv":["true"],"enforceManagedNetwork":true}}`, link.CodeUnsupported},
		{`{"id":1,"method":"fs/readFile","params":{"path":"/etc/hosts","sandbox":{"a":1}}}`, link.CodeUnsupported},
		{`{"id":1,"method":"process/read","params":{"processId":"nobody"}}`, link.CodeUnknownProcess},
		{`{"id":1,"method":"sojourn/process/ack","params":{"processId":"nobody","seq":1}}`, link.CodeUnknownProcess},
		{`{"id":1,"method":"sojourn/shutdown","params":{"graceMs":-1}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"fs/readFile","params":{"path":"x"}}`, link.CodeInvalidParams},
		{`{"id":1,"method":"fs/readFile","params":{"path":"/no/such"}}`, link.CodeNotFound},
		{`{"id":1,"method":"fs/readFile","params":{"path":"/dev/zero"}}`, link.CodeInternal},
		{`{"id":1,"method":"fs/readFile","params":{"path":"/"}}`, link.CodeInternal},
		{`{"id":1,"method":"fs/writeFile","params":{"path":"/tmp/x","dataBase64":"?"}}`, link.CodeInvalidParams},
	} {
		r.say(tt.say)
		if m := r.hear(); m.Error == nil || m.Error.Code != tt.code {
			t.Errorf("%.120q: %+v, want code %d", tt.say, m.Error, tt.code)
		}
	}
	r.say(`{"method":"some/notification"}`)
	r.say(`{"id":5,"result":{}}`)
	r.say(`{"id":"last","method":"environment/info"}`)
	if m := r.hear(); string(m.ID) != `"last"` || m.Error != nil {
		t.Fatalf("the connection is not usable any more: %+v", m)
	}
}

func TestProcessesAreBounded(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		for i := range 1024 {
			start(t, c, link.StartParams{ProcessID: fmt.Sprint(i), Argv: []string{"sleep"}, SpoolBytes: 1024})
		}
		err := c.Start(t.Context(), link.StartParams{ProcessID: "more", Argv: []string{"sleep"}, SpoolBytes: 1024})
		if !errors.Is(err, link.ErrLimit) {
			t.Fatalf("start = %v, want ErrLimit", err)
		}
		if err := c.Signal(t.Context(), "7", "SIGTERM", ""); err != nil {
			t.Fatal(err)
		}
		follow(t, c, "7")
		start(t, c, link.StartParams{ProcessID: "more", Argv: []string{"sleep"}, SpoolBytes: 1024})
		if _, err := c.Read(t.Context(), link.ReadParams{ProcessID: "7"}); !errors.Is(err, link.ErrUnknownProcess) {
			t.Fatalf("the ended process had to make room: %v", err)
		}
	})
}

func TestSpoolMemoryIsBounded(t *testing.T) {
	inBubble(t, keeper.Config{}, func(t *testing.T, c *link.Client) {
		for i := range 4 {
			start(t, c, link.StartParams{ProcessID: fmt.Sprint(i), Argv: []string{"sleep"}, SpoolBytes: 256 << 20})
		}
		err := c.Start(t.Context(), link.StartParams{ProcessID: "more", Argv: []string{"sleep"}})
		if !errors.Is(err, link.ErrLimit) {
			t.Fatalf("start = %v, want ErrLimit", err)
		}
	})
}

func TestNewerEpochEndsOlderConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper.New(keeper.Config{Epoch: 5, Programs: programs})
		var wg sync.WaitGroup
		open := func(epoch int64) (*link.Client, error) {
			near, far := net.Pipe()
			wg.Go(func() { _ = k.Serve(context.Background(), link.Framed(far)) }) // its end is seen at the client
			return link.Open(t.Context(), link.Framed(near), link.Options{Epoch: epoch})
		}
		if _, err := open(4); !errors.Is(err, link.ErrStaleEpoch) {
			t.Fatalf("epoch 4 = %v, want ErrStaleEpoch", err)
		}
		a, err := open(5)
		if err != nil {
			t.Fatal(err)
		}
		b, err := open(5) // the same lease may have several connections
		if err != nil {
			t.Fatal(err)
		}
		start(t, a, link.StartParams{ProcessID: "p", Argv: []string{"cat"}, PipeStdin: true})
		c, err := open(6)
		if err != nil {
			t.Fatal(err)
		}
		<-a.Done()
		<-b.Done()
		if err := a.Write(t.Context(), "p", "w", []byte("late")); !errors.Is(err, link.ErrDisconnected) {
			t.Fatalf("write under the old epoch = %v, want ErrDisconnected", err)
		}
		if _, err := open(5); !errors.Is(err, link.ErrStaleEpoch) {
			t.Fatalf("epoch 5 = %v, want ErrStaleEpoch", err)
		}
		if err := c.CloseStdin(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		wantCode(t, follow(t, c, "p"), 9) // the process outlived its connection
		c.Close()
		k.Close()
		wg.Wait()
	})
}

// TestForeignClientIsNotified: a client that knows the public protocol only
// gets output, exit and end as notifications, in order.
func TestForeignClientIsNotified(t *testing.T) {
	k := keeper.New(keeper.Config{})
	defer k.Close()
	r := dialRaw(t, k)
	r.say(helloAll)
	if m := r.hear(); strings.Contains(string(m.Result), "sojourn") {
		t.Fatalf("initialize = %s", m.Result)
	}
	r.say(`{"id":1,"method":"process/start","params":{"processId":"p","argv":["sh","-c","printf a; sleep 0.1; printf b; kill -9 $$"],"cwd":"file:///","env":{"PATH":"/usr/bin:/bin"},"tty":false,"arg0":null}}`)
	var out []byte
	for seq, exited := 1, false; ; {
		m := r.hear()
		if m.Method == "" {
			continue // the answer, wherever it falls
		}
		var note struct {
			ProcessID string `json:"processId"`
			Seq       int    `json:"seq"`
			Chunk     []byte `json:"chunk"`
			ExitCode  *int   `json:"exitCode"`
		}
		if err := json.Unmarshal(m.Params, &note); err != nil || note.ProcessID != "p" || note.Seq != seq {
			t.Fatalf("%s %s: %v; want seq %d", m.Method, m.Params, err, seq)
		}
		seq++
		switch m.Method {
		case link.NotifyOutput: // the last may come after the exit
			out = append(out, note.Chunk...)
		case link.NotifyExited:
			exited = note.ExitCode != nil && *note.ExitCode == 137
		case link.NotifyClosed:
			if string(out) != "ab" || !exited {
				t.Fatalf("output %q, exited with 137: %v", out, exited)
			}
			return
		}
	}
}

// TestSlowClientStallsNobody: one client stops reading in the middle of an
// answer; another one's calls go on.
func TestSlowClientStallsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper.New(keeper.Config{Programs: programs})
		var wg sync.WaitGroup
		pipe := func() net.Conn {
			near, far := net.Pipe()
			wg.Go(func() { _ = k.Serve(context.Background(), link.Framed(far)) }) // its end is seen at the client
			return near
		}
		deaf := pipe()
		tr := link.Framed(deaf)
		if err := tr.Write([]byte(helloAll)); err != nil { // and never reads the answer
			t.Fatal(err)
		}
		c, err := link.Open(t.Context(), link.Framed(pipe()), link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, run(t, c, link.StartParams{ProcessID: "p", Argv: []string{"flood"}, Retain: link.RetainAck}), 0)
		if err := c.Shutdown(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		<-k.Over()
		c.Close()
		k.Close()
		if _, err := io.Copy(io.Discard, deaf); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	})
}
