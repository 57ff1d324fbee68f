package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/coder/websocket"
)

// maxSocketFrame bounds a frame that a server sends.
const maxSocketFrame = 16 << 20

// socket opens a WebSocket. A refusal is an [*Error].
func (c *Client) socket(ctx context.Context, path string, query url.Values) (*websocket.Conn, error) {
	address := c.base + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	conn, res, err := websocket.Dial(ctx, address, &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + c.key}},
	})
	if err != nil {
		if res != nil && res.StatusCode >= http.StatusBadRequest {
			return nil, errorOf(res)
		}
		return nil, err
	}
	conn.SetReadLimit(maxSocketFrame)
	return conn, nil
}
