package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
)

func frame(size uint32, body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, size), body...)
}

func TestReadFrame(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want string
		err  error
	}{
		{"whole", frame(3, "abc"), "abc", nil},
		{"empty message", frame(0, ""), "", nil},
		{"nothing", nil, "", io.EOF},
		{"half a header", []byte{0, 0}, "", ErrFrameTruncated},
		{"no body", frame(3, ""), "", ErrFrameTruncated},
		{"half a body", frame(3, "a"), "", ErrFrameTruncated},
		{"largest claim, no body", frame(MaxFrameBytes, "a"), "", ErrFrameTruncated},
		{"too large", frame(MaxFrameBytes+1, "a"), "", ErrFrameTooLarge},
		{"text instead of frames", []byte("GET / HTTP/1.1\r\n\r\n"), "", ErrFrameTooLarge},
	} {
		got, err := readFrame(bytes.NewReader(tt.in))
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: read %q, %v; want %q, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func TestFramesSurviveSmallReads(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789"), 300_000)
	var wire bytes.Buffer
	f := Framed(struct {
		io.ReadWriter
		io.Closer
	}{&wire, io.NopCloser(nil)})
	for _, msg := range [][]byte{[]byte("a"), big, nil} {
		if err := f.Write(msg); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.HalfReader(&wire)
	for _, want := range [][]byte{[]byte("a"), big, nil} {
		got, err := readFrame(r)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, %v; want %d", len(got), err, len(want))
		}
	}
}

// TestBrokenWriteEndsTransport: after half a frame nothing may follow, or the
// far side would read it as the rest.
func TestBrokenWriteEndsTransport(t *testing.T) {
	near, far := net.Pipe()
	f := Framed(near)
	go func() {
		_, _ = io.ReadFull(far, make([]byte, 2)) // the point is that the rest is not read
		far.Close()
	}()
	if err := f.Write([]byte("hello")); err == nil {
		t.Fatal("write succeeded on a closed pipe")
	}
	near2, far2 := net.Pipe()
	defer far2.Close()
	f.(*framed).rwc = near2
	if err := f.Write([]byte("hello")); err == nil {
		t.Fatal("a second frame was written after half a first one")
	}
	if err := f.Write(make([]byte, MaxFrameBytes+1)); !errors.Is(err, ErrFrameTooLarge) {
		t.Fatalf("oversized write = %v, want ErrFrameTooLarge", err)
	}
}

// FuzzFrames reads arbitrary bytes as frames of messages: typed errors, no
// panic, and what decodes encodes to something that decodes the same.
func FuzzFrames(f *testing.F) {
	for _, msg := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"process/start","params":{"processId":"p"}}`,
		`{"id":"a","result":{}}`,
		`{"id":null,"error":{"code":-32600,"message":"no"}}`,
		`{"method":"process/output","params":{"chunk":"aGk="}}`,
		`[]`, `null`, `{"id":{}}`, `{"id":1e400,"method":"x"}`, "\xff\xfe", `{"id":1,"method":"x","result":1}`,
	} {
		f.Add(frame(uint32(len(msg)), msg))
	}
	f.Add(frame(MaxFrameBytes, "{"))
	f.Add(frame(1<<31, "{"))
	f.Add([]byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			raw, err := readFrame(r)
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrFrameTruncated) && !errors.Is(err, ErrFrameTooLarge) {
					t.Fatalf("untyped error %v", err)
				}
				return
			}
			checkMessage(t, raw)
		}
	})
}

func checkMessage(t *testing.T, raw []byte) {
	m, err := DecodeMessage(raw)
	if err != nil {
		if !errors.Is(err, ErrMalformed) {
			t.Fatalf("untyped error %v", err)
		}
		return
	}
	data, err := EncodeMessage(m)
	if err != nil {
		t.Fatalf("encode %q: %v", raw, err)
	}
	again, err := DecodeMessage(data)
	if err != nil {
		t.Fatalf("decode %q, encoded from %q: %v", data, raw, err)
	}
	if again.Method != m.Method || !bytes.Equal(again.ID, m.ID) || (again.Error == nil) != (m.Error == nil) {
		t.Fatalf("%q became %q", raw, data)
	}
}

// FuzzDecodeMessage is FuzzFrames without the frame in the way.
func FuzzDecodeMessage(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"method":"a"}`, `{"id":1,"result":null}`, `{"id":1,"error":null}`, `{}`, `{"method":""}`,
		`{"ID":1,"Method":"a"}`, `{"id":"\u0000","method":"a","params":[1]}`, ` {"id" : -1 , "result" : [ ] } `,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkMessage(t, data) })
}

func FuzzParsePath(f *testing.F) {
	for _, seed := range []string{"/a/b", "file:///a%20b", "file:///%ff", "file://host/a", "a", "", "file:///../..", "/\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			return
		}
		again, err := ParsePath(PathURI(p))
		if err != nil || again != p {
			t.Fatalf("%q was read as %q, whose URI is read as %q, %v", s, p, again, err)
		}
	})
}
