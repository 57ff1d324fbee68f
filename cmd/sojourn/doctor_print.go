package main

import (
	"cmp"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/internal/host"
	"github.com/sojourn-dev/sojourn/sandbox"
)

// The columns of the report.
const (
	nameColumn  = 16
	stateColumn = 15
	margin      = 2
	textColumn  = margin + nameColumn + stateColumn
)

// words are the states for people.
var stateWords = map[host.State]string{
	host.Works: "works", host.Limited: "limited", host.Fails: "does not work", host.Off: "off", host.Untried: "not tried",
}

var stateStyles = map[host.State]style{host.Works: green, host.Limited: yellow, host.Fails: red, host.Off: dim, host.Untried: dim}

// print writes the report for people.
func (r machineReport) print(p *printer) {
	who := "a plain user"
	if r.Root {
		who = "root"
	}
	p.printf("Sojourn %s on %s, %s, as %s\n", r.Version, r.Kernel, r.Arch, who)
	if r.Tried != "" {
		p.printf("%s cannot be used by this user, so it was tried in %s.\n", r.Data, r.Tried)
	}
	var walls, limits, proxies, processes []host.Check
	for _, d := range r.Drivers {
		walls = append(walls, d.wall())
		if !d.Available {
			continue
		}
		limits = append(limits, limitCheck(d.Driver, d.Capabilities.Limits))
		proxies = append(proxies, titled(d.Driver, d.Proxy))
		processes = append(processes, titled(d.Driver, d.Processes))
	}
	w := width(p)
	p.section(w, "Drivers, the strongest wall first", walls)
	p.section(w, "Limits of a sandbox", limits)
	p.section(w, "Network", append(proxies, r.Network...))
	p.section(w, "Saved processes", processes)
	p.section(w, "Images", r.Images)
	p.section(w, "Sandboxes made ahead", r.Ready)
	p.section(w, "This machine", r.Host)
	if r.Auto != "" {
		p.printf("\nserve takes %s.\n", r.Auto)
	}
}

// wall says in one line whether a driver works and what it is.
func (d driverReport) wall() host.Check {
	c := host.Check{Name: d.Driver, State: host.Works, Says: "Isolation " + string(d.Isolation) + ". " + d.Reason, Fix: d.Fix}
	if !d.Available {
		c.State, c.Says = host.Fails, d.Reason
	}
	return c
}

// limitCheck says which limits a driver keeps.
func limitCheck(driver string, l sandbox.LimitSupport) host.Check {
	has, not := limitWords(l)
	c := host.Check{Name: driver, State: host.Works, Says: "All: " + has + "."}
	switch {
	case has == "":
		c.State, c.Says = host.Fails, "None."
	case not != "":
		c.State, c.Says = host.Limited, "Only "+has+"; not "+not+"."
	}
	if l.How != "" {
		c.Says += " " + l.How
	}
	return c
}

// limitWords names the limits that are kept and those that are not.
func limitWords(l sandbox.LimitSupport) (has, not string) {
	var there, missing []string
	for _, x := range []struct {
		name string
		has  bool
	}{{"memory", l.Memory}, {"processor", l.CPU}, {"processes", l.Processes}, {"disk", l.Disk}, {"open files", l.OpenFiles}} {
		if x.has {
			there = append(there, x.name)
		} else {
			missing = append(missing, x.name)
		}
	}
	return strings.Join(there, ", "), strings.Join(missing, ", ")
}

// titled is a check of a driver under the driver's name.
func titled(driver string, c *host.Check) host.Check {
	n := *c
	n.Name = driver
	return n
}

// section writes checks under a title, in three columns; the last is wrapped.
func (p *printer) section(width int, title string, checks []host.Check) {
	if len(checks) == 0 {
		return
	}
	p.printf("\n%s\n", p.styled(bold, title))
	indent := strings.Repeat(" ", textColumn)
	for _, c := range checks {
		word := stateWords[c.State]
		lines := wrap(c.Says, width-textColumn)
		p.printf("%s%s%s%s\n", strings.Repeat(" ", margin), pad(strings.ReplaceAll(c.Name, "-", " "), nameColumn),
			p.styled(stateStyles[c.State], word)+pad("", stateColumn-len(word)), lines[0])
		for _, l := range lines[1:] {
			p.printf("%s%s\n", indent, l)
		}
		if c.Fix == "" || c.State == host.Works {
			continue
		}
		for _, l := range wrap(c.Fix, width-textColumn) {
			p.printf("%s%s\n", indent, p.styled(yellow, l))
		}
	}
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// The widths of the report: that of the terminal within bounds, or one that suits files.
const (
	minWidth  = 72
	fileWidth = 110
	maxWidth  = 130
)

func width(p *printer) int {
	out := p.out
	if o, ok := out.(*output); ok {
		out = o.w
	}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return min(max(cmp.Or(int(size.Col), fileWidth), minWidth), maxWidth)
		}
	}
	return fileWidth
}

// wrap breaks text between words into lines of at most width characters, where words
// are short enough. There is at least one line.
func wrap(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}
