package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/terminal"
)

// calledModel says in one line what a call of a model has used, or why it failed.
func calledModel(data json.RawMessage) string {
	var c sojourn.ModelCall
	unpack(data, &c)
	text := "model " + terminal.Line(c.Model, 80)
	if c.Failure != "" {
		return text + " failed" + bracketed(strings.TrimSpace(string(c.Failure)+" "+statusText(c.Status))) + ": " + terminal.Line(c.Error, lineRunes)
	}
	about := ""
	if c.Estimated {
		about = "about "
	}
	text += fmt.Sprintf(": %s%d tokens in, %d out in %s", about, c.InputTokens, c.OutputTokens, span(c.Duration))
	if !c.Unpriced {
		text += ", " + amount(c.CostMicroCents)
	}
	return text
}

func statusText(status int) string {
	if status == 0 {
		return ""
	}
	return strconv.Itoa(status)
}

// amount shows money in units of the currency, without zeros that say nothing.
func amount(m sojourn.Money) string {
	const unit = 100 * sojourn.Cent
	text := strings.TrimRight(fmt.Sprintf("%d.%08d", m/unit, m%unit), "0")
	return strings.TrimSuffix(text, ".")
}

// failedModel says of a run that its last call of a model failed; "" when it did not.
func failedModel(e *sojourn.ModelError) string {
	if e == nil {
		return ""
	}
	return "; its last call of a model had failed" + bracketed(strings.TrimSpace(string(e.Failure)+" "+statusText(e.Status))) +
		": " + terminal.Line(e.Message, lineRunes)
}
