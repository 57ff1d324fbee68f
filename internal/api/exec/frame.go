package exec

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn/internal/output"
)

// appendOutput appends the event of a piece of output: its id is the offset behind
// it, its data {"type":"stdout"|"stderr","data","encoding","offset","streamOffset"},
// the offset that of its first byte in both streams together. It is written by hand:
// output is what streams have most of.
func appendOutput(b []byte, p output.Piece, always64, snake bool) []byte {
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, p.Offset+int64(len(p.Data)), 10)
	b = append(b, "\ndata: {\"type\":\""...)
	if p.Stderr {
		b = append(b, output.Stderr...)
	} else {
		b = append(b, output.Stdout...)
	}
	b = append(b, `","data":"`...)
	encoding := asText
	if always64 || !utf8.Valid(p.Data) {
		encoding = asBase64
		b = base64.StdEncoding.AppendEncode(b, p.Data)
	} else {
		b = appendEscaped(b, p.Data)
	}
	b = append(b, `","encoding":"`...)
	b = append(b, encoding...)
	b = append(b, `","offset":`...)
	b = strconv.AppendInt(b, p.Offset, 10)
	if snake {
		b = append(b, `,"stream_offset":`...)
	} else {
		b = append(b, `,"streamOffset":`...)
	}
	b = strconv.AppendInt(b, p.StreamOffset, 10)
	return append(b, "}\n\n"...)
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends UTF-8 as it is between the quotes of a JSON string.
func appendEscaped(b, text []byte) []byte {
	from := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(b, text[from:]...)
}
