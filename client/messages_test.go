package client

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
)

// readAll returns the data of every message of a stream.
func readAll(stream []byte, buffer int) (all []string) {
	m := messages{r: bufio.NewReaderSize(bytes.NewReader(stream), buffer), onBytes: func() {}}
	for {
		data, err := m.next()
		if err != nil {
			return all
		}
		all = append(all, string(data))
	}
}

func FuzzMessages(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "data:a\r\ndata: b\r\n\r\n", ": c\n\ndata\n\n", "id: 1\nevent: x\ndata: {}\n\ndata: cut", "\n\n\n", "data: \xff\x00\n\n",
		strings.Repeat("data: long ", 20) + "\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, pieces := readAll(stream, 4096), readAll(stream, 16)
		if strings.Join(whole, "\x00") != strings.Join(pieces, "\x00") || len(whole) != len(pieces) {
			t.Errorf("%q is %q in one piece and %q in small ones", stream, whole, pieces)
		}
		for _, data := range whole {
			for _, line := range strings.Split(data, "\n") {
				if !bytes.Contains(stream, []byte(line)) {
					t.Errorf("%q holds %q, which was not sent", whole, line)
				}
			}
		}
	})
}
