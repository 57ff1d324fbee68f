package link

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"reflect"
	"testing"
)

// shipped is an answer with two chunks, as a keeper sends it.
func shipped(t testing.TB) (ProcessReadResult, []byte) {
	t.Helper()
	r := ProcessReadResult{NextSeq: 4, Sojourn: &ProcessReadSojourn{FirstSeq: 1}, Chunks: []OutputChunk{
		{Seq: 1, Stream: Stdout, Chunk: []byte("some output\x00\xff{")},
		{Seq: 3, Stream: Stderr, Chunk: []byte("}\n"), Offset: 14},
	}}
	sent := r
	sent.Chunks = append([]OutputChunk(nil), r.Chunks...)
	parts := sent.Ship()
	result, err := sent.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	head, err := EncodeHead(Message{ID: json.RawMessage("7"), Result: result})
	if err != nil {
		t.Fatal(err)
	}
	return r, append(head, bytes.Join(parts, nil)...)
}

func TestPayloadComesBack(t *testing.T) {
	want, data := shipped(t)
	m, err := DecodeMessage(data)
	if err != nil || string(m.ID) != "7" {
		t.Fatalf("decoded %+v, %v", m, err)
	}
	var got ProcessReadResult
	if err := errors.Join(got.Decode(m.Result), carry(&got, m.Payload)); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
	// Nobody can write over the next chunk by adding to one.
	if c := got.Chunks[0].Chunk; cap(c) != len(c) {
		t.Fatalf("the first chunk has room for %d bytes more", cap(c)-len(c))
	}
	for n := range data { // whatever is missing is missed
		m, err := DecodeMessage(data[:n])
		var got ProcessReadResult
		if err == nil {
			err = errors.Join(got.Decode(m.Result), carry(&got, m.Payload))
		}
		if !errors.Is(err, ErrMalformed) {
			t.Fatalf("the first %d bytes of %d: %+v, %v", n, len(data), got, err)
		}
	}
}

func TestPayloadMustBeAccountedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		into    any
		payload string
	}{
		"too little":    {&ProcessReadResult{Chunks: []OutputChunk{{Size: 2}}}, "a"},
		"too much":      {&ProcessReadResult{Chunks: []OutputChunk{{Size: 1}}}, "ab"},
		"negative":      {&ProcessReadResult{Chunks: []OutputChunk{{Size: -1}, {Size: 2}}}, "a"},
		"overflow":      {&ProcessReadResult{Chunks: []OutputChunk{{Size: 1<<63 - 1}, {Size: 1<<63 - 1}, {Size: 3}}}, "a"},
		"twice":         {&ProcessReadResult{Chunks: []OutputChunk{{Size: 1, Chunk: []byte("a")}}}, "a"},
		"write twice":   {&ProcessWriteParams{Chunk: []byte("a")}, "a"},
		"file twice":    {&WriteFileParams{Data: []byte("a")}, "a"},
		"not expected":  {&Stats{}, ""},
		"nobody at all": {nil, "a"},
	} {
		if err := carry(tt.into, []byte(tt.payload)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
}

// FuzzPayload: whatever comes, what is handed out lies within the payload, once,
// and all of it is.
func FuzzPayload(f *testing.F) {
	_, data := shipped(f)
	f.Add(data)
	for _, seed := range []string{
		"\x01", "\x01\x00\x00\x00", "\x01\x00\x00\x00\x00", "\x01\xff\xff\xff\xff{}", "\x01\x00\x00\x00\x02{}abc",
		"\x01\x00\x00\x00\x0e{\"method\":\"a\"}abc", "\x01\x00\x00\x00\x13{\"id\":1,\"result\":{}}", "\x02{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeMessage(data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		checkMessage(t, data)
		for _, into := range []any{&ProcessReadResult{}, &ProcessWriteParams{}, &WriteFileParams{}, &ReadFileResult{}, &ProcessRunParams{}} {
			if d, ok := into.(Decoder); ok && d.Decode(m.Result) != nil {
				continue
			}
			if carry(into, m.Payload) != nil || m.Payload == nil {
				continue
			}
			var got []byte
			switch v := into.(type) {
			case *ProcessReadResult:
				for _, c := range v.Chunks {
					got = append(got, c.Chunk...)
				}
			case *ProcessWriteParams:
				got = v.Chunk
			case *WriteFileParams:
				got = v.Data
			case *ReadFileResult:
				got = v.Data
			}
			if !bytes.Equal(got, m.Payload) {
				t.Fatalf("%T took %q of %q", into, got, m.Payload)
			}
		}
	})
}

// TestPartsMakeOneFrame: in one write or in several, the far side cannot tell.
func TestPartsMakeOneFrame(t *testing.T) {
	for _, size := range []int{0, 1, coalesceBytes - 3, coalesceBytes, 3 * coalesceBytes, frameBytes, 3 * frameBytes} {
		near, far := net.Pipe()
		want := append([]byte("head"), bytes.Repeat([]byte("x"), size)...)
		failed := make(chan error, 1)
		go func() { failed <- WriteParts(Framed(near), want[:2], nil, want[2:4], want[4:]) }()
		got, err := Framed(far).Read()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes arrived of %d, %v", len(got), len(want), err)
		}
		if err := <-failed; err != nil {
			t.Error(err)
		}
		reuseFrame(got)
		near.Close()
		far.Close()
	}
	big := make([]byte, MaxFrameBytes/2+1)
	if err := WriteParts(Framed(nil), big, big); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("oversized parts = %v, want ErrFrameTooLarge", err)
	}
}

// TestJoinedChunksHaveTheSameBytes: neighbours of one stream become one chunk with the
// number of the last, and no others do.
func TestJoinedChunksHaveTheSameBytes(t *testing.T) {
	payload := []byte("aabbccddeeff")
	r := ReadResult{payload: payload}
	for i, c := range []Chunk{
		{Seq: 1, Stream: Stdout, Offset: 0},
		{Seq: 2, Stream: Stdout, Offset: 2},
		{Seq: 4, Stream: Stdout, Offset: 4},
		{Seq: 5, Stream: Stderr, Offset: 6},
		{Seq: 6, Stream: Stdout, Offset: 8},
		{Seq: 8, Stream: Stdout, Offset: 12}, // two bytes are missing before it
	} {
		c.Data = payload[2*i : 2*i+2 : 2*i+2]
		r.Chunks = append(r.Chunks, c)
	}
	r.Join()
	want := []Chunk{
		{Seq: 4, Stream: Stdout, Offset: 0, Data: payload[:6]},
		{Seq: 5, Stream: Stderr, Offset: 6, Data: payload[6:8]},
		{Seq: 6, Stream: Stdout, Offset: 8, Data: payload[8:10]},
		{Seq: 8, Stream: Stdout, Offset: 12, Data: payload[10:]},
	}
	if !reflect.DeepEqual(r.Chunks, want) {
		t.Errorf("joined %+v, want %+v", r.Chunks, want)
	}
	for _, c := range r.Chunks {
		if cap(c.Data) != len(c.Data) {
			t.Errorf("chunk %d has room for the next one's bytes", c.Seq)
		}
	}
	apart := ReadResult{Chunks: []Chunk{{Seq: 1, Stream: Stdout, Data: []byte("a")}, {Seq: 2, Stream: Stdout, Offset: 1, Data: []byte("b")}}}
	if apart.Join(); len(apart.Chunks) != 2 {
		t.Errorf("chunks that lie anywhere were joined: %+v", apart.Chunks)
	}
}

// BenchmarkReadResult is a megabyte of output made into a message and read again,
// as a payload and as the base64 that others understand.
func BenchmarkReadResult(b *testing.B) {
	chunks := make([]OutputChunk, 16)
	for i := range chunks {
		chunks[i] = OutputChunk{Seq: int64(i + 1), Stream: Stdout, Chunk: make([]byte, 64<<10), Offset: int64(i) << 16}
	}
	for name, payload := range map[string]bool{"payload": true, "base64": false} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			for b.Loop() {
				r := ProcessReadResult{NextSeq: 17, Chunks: append([]OutputChunk(nil), chunks...)}
				encode, parts := EncodeMessage, [][]byte(nil)
				if payload {
					encode, parts = EncodeHead, r.Ship()
				}
				result, err := r.AppendJSON(make([]byte, 0, r.SizeHint()))
				if err != nil {
					b.Fatal(err)
				}
				data, err := encode(Message{ID: json.RawMessage("1"), Result: result})
				if err != nil {
					b.Fatal(err)
				}
				m, err := DecodeMessage(append(data, bytes.Join(parts, nil)...))
				if err != nil {
					b.Fatal(err)
				}
				var got ProcessReadResult
				if err := errors.Join(got.Decode(m.Result), carry(&got, m.Payload)); err != nil || len(got.Chunks) != 16 {
					b.Fatalf("%d chunks, %v", len(got.Chunks), err)
				}
			}
		})
	}
}
