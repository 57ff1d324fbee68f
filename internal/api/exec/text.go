package exec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// The encodings of output on the wire.
const (
	asText   = "utf-8"
	asBase64 = "base64"
)

// text writes bytes as a string: as they are when they are UTF-8, else in base64.
// Nothing is replaced.
func text(b []byte, always64 bool) (s, encoding string) {
	if always64 || !utf8.Valid(b) {
		return base64.StdEncoding.EncodeToString(b), asBase64
	}
	return string(b), asText
}

// whole cuts off the beginning of a character at the end of b whose rest is
// elsewhere. What is no UTF-8 anyway stays.
func whole(b []byte) []byte {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

// capture reads what an exec wrote, at most so many bytes of each stream.
func capture(r *output.Reader, most int64, always64 bool) (out Output, err error) {
	var cut bool
	if out.Stdout, out.StdoutEncoding, cut, err = captureStream(r.Stream(output.Stdout), most, always64); err != nil {
		return out, err
	}
	out.Truncated = cut
	out.Stderr, out.StderrEncoding, cut, err = captureStream(r.Stream(output.Stderr), most, always64)
	out.Truncated = out.Truncated || cut
	return out, err
}

func captureStream(from *io.SectionReader, most int64, always64 bool) (s, encoding string, cut bool, err error) {
	b := make([]byte, min(from.Size(), most))
	if _, err := from.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", "", false, fmt.Errorf("read the output of an exec: %w", err)
	}
	if cut = from.Size() > most; cut && !always64 {
		if short := whole(b); utf8.Valid(short) {
			b = short
		}
	}
	s, encoding = text(b, always64)
	return s, encoding, cut, nil
}
