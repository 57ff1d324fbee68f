package keeper_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/keeper"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// FuzzServe says anything at all to a keeper, after an introduction. It must
// answer a last sane call.
func FuzzServe(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"method":"process/start","params":{"processId":"p","argv":["echo"],"cwd":"/","env":{}}}`,
		`{"id":1,"method":"process/start","params":{"processId":"p","argv":["cat"],"cwd":"/","env":{},"pipeStdin":true,"tty":true}}`,
		`{"id":1,"method":"process/read","params":{"processId":"p","afterSeq":-1,"maxBytes":-1,"waitMs":-1}}`,
		`{"id":1,"method":"process/write","params":{"processId":"p","chunk":"aGk=","writeId":"1"}}`,
		`{"id":1,"method":"process/terminate","params":{"processId":"p","sojourn":{"graceMs":1}}}`,
		`{"id":1,"method":"sojourn/process/signal","params":{"processId":"p","signal":"SIGKILL","group":"all"}}`,
		`{"id":1,"method":"sojourn/process/ack","params":{"processId":"p","seq":9223372036854775807}}`,
		`{"id":1,"method":"fs/writeFile","params":{"path":"file:///w/f","dataBase64":"aGk="}}`,
		`{"id":1,"method":"fs/copy","params":{"sourcePath":"/w","destinationPath":"/w/x","recursive":true}}`,
		`{"id":1,"method":"fs/remove","params":{"path":"/"}}`,
		`{"id":1,"method":"sojourn/process/run","params":{"start":{"processId":"p","argv":["echo"],"sojourn":{"timeoutMs":1}},"read":{"waitMs":9,"sojourn":{"ackSeq":-1,"gatherUs":1}}}}`,
		`{"method":"sojourn/process/remove","params":{"processId":"p"}}`,
		"\x01\x00\x00\x00\x47" + `{"id":1,"method":"fs/writeFile","params":{"path":"/w","dataBase64":""}}` + "bytes",
		"\x01\xff\xff\xff\xff{}",
		`{"id":1,"method":"sojourn/freeze"}`, `{"id":1,"method":"sojourn/shutdown","params":{"graceMs":0}}`, `{`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		root := t.TempDir()
		k := keeper.New(keeper.Config{
			Programs: map[string]keeper.Program{"echo": programs["echo"], "cat": programs["cat"]},
			MapPath:  func(p string) string { return filepath.Join(root, p) },
		})
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = k.Serve(context.Background(), link.Framed(far)) // its end is seen here
		}()
		tr := link.Framed(near)
		heard := make(chan bool, 1)
		go func() {
			for {
				msg, err := tr.Read()
				if err != nil {
					heard <- false
					return
				}
				if m, err := link.DecodeMessage(msg); err == nil && string(m.ID) == `"last"` {
					heard <- true
					return
				}
			}
		}()
		hello := helloAll
		if len(data)%2 == 1 { // either kind of client
			hello = helloPayload
		}
		for _, msg := range [][]byte{[]byte(hello), data, []byte(`{"id":"last","method":"environment/info"}`)} {
			if err := tr.Write(msg); err != nil {
				t.Fatal(err)
			}
		}
		if !<-heard {
			t.Fatalf("no answer after %q", data)
		}
		tr.Close()
		k.Close()
		<-done
	})
}
