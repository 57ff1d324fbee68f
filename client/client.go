package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Config says which server to call. URL and Key are needed.
type Config struct {
	URL  string       // such as http://127.0.0.1:7600; a path in it is kept
	Key  string       // the secret of an admin key
	HTTP *http.Client // nil means one without a time limit for whole answers
	// Stall is how long a stream may be silent before it counts as cut; the
	// server shows a sign of life every 15 s. 0 means 45 s.
	Stall time.Duration
	// Patience is how long a call that was lost on the way is repeated; 0 means
	// 10 s. A call whose connection was never made is not lost and not repeated.
	Patience time.Duration
}

// Client makes calls. Make one with [New].
type Client struct {
	base     string
	key      string
	http     *http.Client
	stall    time.Duration
	patience time.Duration
}

// New makes a client. It calls nothing yet.
func New(c Config) (*Client, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the server's address must be like http://127.0.0.1:7600")
	}
	if strings.ContainsFunc(c.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("the key has characters that no key has")
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{}
	}
	if c.Stall == 0 {
		c.Stall = 45 * time.Second
	}
	if c.Patience == 0 {
		c.Patience = 10 * time.Second
	}
	return &Client{
		base: strings.TrimSuffix(u.String(), "/") + "/operator/v1", key: c.Key, http: c.HTTP,
		stall: c.Stall, patience: c.Patience,
	}, nil
}

// Error is an answer that is not a success.
type Error struct {
	Status     int    // of HTTP
	Code       string // stable; branch on it
	Message    string // for people
	RequestID  string // to find the server's log lines
	Details    map[string]any
	RetryAfter time.Duration // how long to wait before a repetition; 0 for no hint
}

// Error returns the code and the sentence.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// maxAnswerBytes bounds an answer that is read as a whole.
const maxAnswerBytes = 64 << 20

// call makes one call and decodes its answer into out unless that is nil. A call
// that is lost on the way is repeated: with its idempotency key that is harmless.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("encode %s %s: %w", method, path, err)
		}
	}
	header := http.Header{}
	if method == http.MethodPost {
		header.Set("Idempotency-Key", rand.Text())
	}
	text, err := c.repeated(ctx, func() ([]byte, error) { return c.attempt(ctx, method, path, query, header, body) })
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return nil
}

// attempt makes one call once and returns the body of its answer.
func (c *Client) attempt(ctx context.Context, method, path string, query url.Values, header http.Header, body []byte) ([]byte, error) {
	res, err := c.send(ctx, method, path, query, header, body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return nil, errorOf(res)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer to %s %s: %w", method, path, err)
	}
	if len(text) > maxAnswerBytes {
		return nil, &Error{
			Status: res.StatusCode, Code: "answer_too_large",
			Message: fmt.Sprintf("The answer to %s %s is larger than %d bytes.", method, path, maxAnswerBytes),
		}
	}
	return text, nil
}

// send sends one request. The caller closes the answer's body.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, header http.Header, body []byte) (*http.Response, error) {
	address := c.base + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = header.Clone()
	r.Header.Set("Authorization", "Bearer "+c.key)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return c.http.Do(r)
}

// errorOf reads the answer that is not a success.
func errorOf(res *http.Response) error {
	e := &Error{
		Status: res.StatusCode, Code: "http_" + strconv.Itoa(res.StatusCode),
		Message: "The server answered " + res.Status + ".", RequestID: res.Header.Get("X-Request-Id"),
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	var body struct {
		Error struct {
			Code, Message string
			Details       map[string]any
		}
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && json.Unmarshal(text, &body) == nil && body.Error.Code != "" {
		e.Code, e.Message, e.Details = body.Error.Code, body.Error.Message, body.Error.Details
	}
	return e
}
