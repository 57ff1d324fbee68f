package link

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzReadResult: where package json accepts a result, the fast way accepts it
// too and reads the same.
func FuzzReadResult(f *testing.F) {
	for _, seed := range []string{
		`{"chunks":[{"seq":1,"stream":"stdout","chunk":"aGk="}],"nextSeq":4,"exited":true,"exitCode":3,"closed":true,"failure":null,"sandboxDenied":false}`,
		`{"chunks":[],"nextSeq":1,"exited":false,"exitCode":null,"closed":false,"failure":null,"sojourn":{"firstSeq":1}}`,
		`{"chunks":null}`, `{"chunks":[{"seq":1,"chunk":"a\u0047k="}]}`, `{"chunks":[{"offset":9,"x":{"y":[1,"]"]}}] , "nextSeq" : 2}`,
		`{}`, `{"chunks":[{}],"chunks":[]}`, `null`, `{"chunks":[{"stream":"a\"b"}]}`, `{"chunks":[{"chunk":"a"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want, got ProcessReadResult
		if json.Unmarshal(data, &want) != nil {
			_ = got.Decode(data) // may fail or not, must not panic
			return
		}
		if err := got.Decode(data); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if again := reencode(t, got); !reflect.DeepEqual(again, normal(got)) {
			t.Fatalf("%+v was written and read as %+v", got, again)
		}
	})
}

// normal makes results comparable that JSON writes alike.
func normal(r ProcessReadResult) ProcessReadResult {
	if len(r.Chunks) == 0 {
		r.Chunks = nil
	}
	for i := range r.Chunks {
		r.Chunks[i].Stream = Stdout // AppendJSON is for our streams
		if len(r.Chunks[i].Chunk) == 0 {
			r.Chunks[i].Chunk = nil
		}
	}
	return r
}

func reencode(t *testing.T, r ProcessReadResult) ProcessReadResult {
	t.Helper()
	r = normal(r)
	data, err := r.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	var slow, fast ProcessReadResult
	if err := json.Unmarshal(data, &slow); err != nil {
		t.Fatalf("AppendJSON wrote %s: %v", data, err)
	}
	if err := fast.Decode(data); err != nil {
		t.Fatal(err)
	}
	if slow, fast = normal(slow), normal(fast); !reflect.DeepEqual(slow, fast) {
		t.Fatalf("%s: read as %+v and as %+v", data, slow, fast)
	}
	return fast
}

func TestReadResultBothWays(t *testing.T) {
	code, failure := 3, "x"
	for _, r := range []ProcessReadResult{
		{},
		{Chunks: []OutputChunk{{Seq: 1, Stream: Stdout, Chunk: []byte("hi")}, {Seq: 2, Stream: PTY, Chunk: []byte{0, 255}, Offset: 2}}, NextSeq: 3},
		{Exited: true, ExitCode: &code, Closed: true, Failure: &failure, Denied: true, Sojourn: &ProcessReadSojourn{FirstSeq: 2, DroppedBytes: 9, Signal: "SIGKILL"}},
	} {
		data, err := r.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Chunks == nil {
			r.Chunks = []OutputChunk{}
		}
		want, err := json.Marshal(r)
		if err != nil || string(want) != string(data) {
			t.Errorf("AppendJSON = %s, json = %s", data, want)
		}
		var got ProcessReadResult
		if err := got.Decode(data); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("decoded %+v, %v; want %+v", got, err, r)
		}
	}
}
