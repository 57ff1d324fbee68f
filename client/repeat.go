package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

// ErrLost is a call that reached a server which then went away: it may or may
// not have been carried out.
var ErrLost = errors.New("the server went away before it answered")

// repeated makes a call, and makes it again while it gets lost on the way.
func (c *Client) repeated(ctx context.Context, attempt func() ([]byte, error)) ([]byte, error) {
	text, err := attempt()
	if err == nil || !lost(err) || ctx.Err() != nil {
		return text, err
	}
	ends := time.Now().Add(c.patience)
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		if text, err = attempt(); err == nil || !away(err) || ctx.Err() != nil {
			return text, err
		}
		if time.Now().After(ends) {
			return nil, fmt.Errorf("%w: %w", ErrLost, err)
		}
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// lost reports whether a connection broke after it was made.
func lost(err error) bool {
	if _, answered := errors.AsType[*Error](err); answered {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial"
}

// away reports whether a call that is repeated must be repeated again: no server
// answers yet, or none that can.
func away(err error) bool {
	answer, ok := errors.AsType[*Error](err)
	return !ok || slices.Contains([]int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, answer.Status)
}
