package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// leftOutTrailer is how the server says what is not in an archive.
const leftOutTrailer = "Sojourn-Left-Out"

// Download is a file or tree on its way out of a sandbox: a tar archive. Reading
// it ends with io.EOF only when it is complete.
type Download struct {
	res *http.Response
}

// CopyOut begins to copy the file or tree at a path of a session's sandbox,
// absolute or below the workspace. Its names begin with the last name of path.
// The sandbox is hostile: look at every name before using it. The caller closes
// the download.
func (c *Client) CopyOut(ctx context.Context, session, path string) (*Download, error) {
	res, err := c.send(ctx, http.MethodGet, of(session, "files"), url.Values{"path": {path}}, http.Header{}, nil)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, errorOf(res)
	}
	return &Download{res}, nil
}

// Read implements io.Reader.
func (d *Download) Read(p []byte) (int, error) { return d.res.Body.Read(p) }

// Close ends the copy.
func (d *Download) Close() error { return d.res.Body.Close() }

// LeftOut returns, once Read has returned io.EOF, what is not in the archive or
// not as it was, a sentence each.
func (d *Download) LeftOut() []string {
	text, err := strconv.Unquote(d.res.Trailer.Get(leftOutTrailer))
	if err != nil || text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// CopyIn copies a tar archive of any size into a session's sandbox. With top, the
// one first name that the archive has, the copy goes where cp would put it: into
// the directory at path, or else under that name. Without, its files go into the
// directory at path, which is made if need be. It returns what was left out. A
// copy that fails may have been made in part; it is not repeated.
func (c *Client) CopyIn(ctx context.Context, session, path, top string, archive io.Reader) (leftOut []string, err error) {
	query := url.Values{"path": {path}}
	if top != "" {
		query.Set("top", top)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+of(session, "files")+"?"+query.Encode(), io.NopCloser(archive))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", "application/x-tar")
	res, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, errorOf(res)
	}
	var out struct{ LeftOut []string }
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswerBytes)).Decode(&out); err != nil {
		return nil, fmt.Errorf("read the answer to a copy: %w", err)
	}
	return out.LeftOut, nil
}
