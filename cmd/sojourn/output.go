package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// output is where a command's results go. It remembers that they did not get
// there: what is cut short must not end as if it were whole.
type output struct {
	w io.Writer

	mu  sync.Mutex
	err error // the first
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

// failure says what was not written, if something was not.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("the output is not complete: %w", o.err)
}

// printer writes a command's results: for people, or as JSON.
type printer struct {
	out   io.Writer
	paint bool             // colour what it writes
	json  bool             // structured output was asked for
	now   func() time.Time // what relative times are measured from
}

func newPrinter(out io.Writer, asJSON bool) *printer {
	return &printer{out: out, json: asJSON, paint: !asJSON && colourful(out), now: time.Now}
}

// colourful reports whether w is a terminal whose user has not asked for plain
// text.
func colourful(w io.Writer) bool {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// style is a way to set text off on a terminal.
type style string

const (
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// styled wraps text that is already safe.
func (p *printer) styled(s style, text string) string {
	if !p.paint || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// printf writes text of ours, whose arguments are safe.
func (p *printer) printf(format string, args ...any) { fmt.Fprintf(p.out, format, args...) }

// value writes v as indented JSON.
func (p *printer) value(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write the result as JSON: %w", err)
	}
	_, err := p.out.Write(terminal.VisibleJSON(b.Bytes()))
	return err
}

// valueLine writes v as JSON on one line.
func (p *printer) valueLine(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write an event as JSON: %w", err)
	}
	_, err := p.out.Write(terminal.VisibleJSON(b.Bytes()))
	return err
}

// table writes rows of safe cells under a head. The last column is not padded,
// so text of any width belongs there.
func (p *printer) table(head []string, rows [][]string) {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	p.printf("%s\n", p.styled(bold, padded(head, widths)))
	for _, row := range rows {
		p.printf("%s\n", padded(row, widths))
	}
}

func padded(row []string, widths []int) string {
	var b strings.Builder
	for i, cell := range row {
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// field is one named line of a description.
type field struct{ name, value string }

// fields writes the fields that have a value, aligned.
func (p *printer) fields(fields []field) {
	width := 0
	for _, f := range fields {
		width = max(width, utf8.RuneCountInString(f.name))
	}
	for _, f := range fields {
		if f.value != "" {
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(f.name))
			p.printf("%s%s  %s\n", p.styled(dim, f.name), pad, f.value)
		}
	}
}

// when shows an instant both ways: absolute in the local zone, and from now.
func (p *printer) when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05") + " (" + relative(t.Sub(p.now())) + ")"
}

// relative says how far an instant is from now: "in 24m", "3s ago".
func relative(d time.Duration) string {
	switch {
	case d.Abs() < time.Second:
		return "now"
	case d < 0:
		return span(-d) + " ago"
	default:
		return "in " + span(d)
	}
}

// span shows a duration by its two leading units.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return two(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < day:
		return two(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	default:
		return two(int(d/day), "d", int(d.Hours())%24, "h")
	}
}

func two(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return fmt.Sprintf("%d%s", a, unitA)
	}
	return fmt.Sprintf("%d%s%d%s", a, unitA, b, unitB)
}

// size shows a number of bytes.
func size(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1000, 0
	for ; v >= 999.95 && i < len(units)-1; i++ {
		v /= 1000
	}
	return fmt.Sprintf("%.1f %cB", v, units[i])
}
