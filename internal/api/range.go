package api

import (
	"net/http"
	"strconv"
	"strings"
)

// rangeUnit is the only unit of ranges that is known here.
const rangeUnit = "bytes"

// plainRange returns a request for size bytes with its Range header as RFC 9110
// means it and [http.ServeContent] understands it. A range in another unit, or one
// that is not well formed, is no range: all is answered. A last position beyond the
// end means the end, however large the number is. Of nothing there is no part.
func plainRange(r *http.Request, size int64) *http.Request {
	given, ok := r.Header["Range"]
	if !ok {
		return r
	}
	plain := *r
	plain.Header = r.Header.Clone()
	plain.Header.Del("Range")
	if len(given) == 1 && size > 0 {
		if set, ok := rangeSet(given[0], size); ok {
			plain.Header.Set("Range", rangeUnit+"="+set)
		}
	}
	return &plain
}

// rangeSet reads the ranges of a header; ok is false when it has none that are well
// formed.
func rangeSet(header string, size int64) (set string, ok bool) {
	unit, list, ok := strings.Cut(header, "=")
	if !ok || !strings.EqualFold(unit, rangeUnit) {
		return "", false
	}
	var specs []string
	for spec := range strings.SplitSeq(list, ",") {
		if spec = strings.Trim(spec, " \t"); spec == "" {
			continue // a list may have empty elements
		}
		if spec, ok = rangeSpec(spec, size); !ok {
			return "", false
		}
		specs = append(specs, spec)
	}
	return strings.Join(specs, ","), len(specs) > 0
}

// rangeSpec reads one range of size bytes.
func rangeSpec(spec string, size int64) (plain string, ok bool) {
	first, last, ok := strings.Cut(spec, "-")
	if !ok || first == "" && last == "" {
		return "", false
	}
	from, ok1 := position(first)
	to, ok2 := position(last)
	switch {
	case !ok1 || !ok2 || first != "" && last != "" && less(last, first):
		return "", false
	case first == "" && to == 0:
		return strconv.FormatInt(size, 10) + "-", true // the last 0 bytes: there is no such range
	case first == "":
		return "-" + strconv.FormatInt(min(to, size), 10), true
	case last == "":
		return strconv.FormatInt(min(from, size), 10) + "-", true
	}
	from = min(from, size)
	return strconv.FormatInt(from, 10) + "-" + strconv.FormatInt(max(from, min(to, size)), 10), true
}

// position reads a number of any length; what is too large for an int64 is the
// largest of them, and an empty text is 0.
func position(text string) (n int64, ok bool) {
	if strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	if text == "" {
		return 0, true
	}
	n, _ = strconv.ParseInt(text, 10, 64) // of digits, only the size can be wrong
	return n, true
}

// less compares two numbers of any length.
func less(a, b string) bool {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return len(a) < len(b) || len(a) == len(b) && a < b
}
