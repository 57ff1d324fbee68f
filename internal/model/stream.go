package model

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	maxEventBytes  = 32 << 20  // of one event of a stream
	maxStreamBytes = 256 << 20 // of a whole stream
	defaultSilence = 5 * time.Minute
)

// errSilent ends a stream that says nothing any more.
var errSilent = fmt.Errorf("%w: it said nothing for too long", ErrCut)

// defaultClient is shared by the endpoints that bring none, for its connections.
var defaultClient = sync.OnceValue(func() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 16
	return &http.Client{Transport: t}
})

// stream posts body and gives the data of each event to each, until that reports
// the last one or the stream ends.
func (e *Endpoint) stream(ctx context.Context, d dialect, body []byte, each func([]byte) (bool, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := e.Silence
	if silence == 0 {
		silence = defaultSilence
	}
	watch := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watch.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(e.BaseURL, "/")+d.path(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask a model: %w", err)
	}
	for k, v := range e.Headers {
		req.Header.Set(k, v)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	d.authorize(req.Header, e.Key)
	client := *defaultClient()
	if e.Client != nil {
		client = *e.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := client.Do(req)
	if err != nil {
		return because(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // half a message is better than none
		return statusError(res.StatusCode, res.Header, text)
	}
	if t, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); t != "text/event-stream" {
		return fmt.Errorf("%w: %.100q where a stream of events should be", ErrProtocol, res.Header.Get("Content-Type"))
	}
	heard := func(data []byte) (bool, error) {
		watch.Reset(silence)
		return each(data)
	}
	return because(ctx, events(&silentReader{res.Body, watch, silence}, heard))
}

// because says why the context ended in place of what that did to err.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// silentReader notes that something was said, if only a comment.
type silentReader struct {
	io.Reader
	watch   *time.Timer
	silence time.Duration
}

func (r *silentReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.watch.Reset(r.silence)
	}
	return n, err
}

// events reads server-sent events and calls each with the data of each. It
// returns nil at the last event, or at the end of the stream: whether that was
// too early is not its to say.
func events(r io.Reader, each func([]byte) (bool, error)) error {
	lines := bufio.NewReaderSize(r, 32<<10)
	var data []byte // of the event that is being read
	has, total := false, 0
	for {
		line, err := readLine(lines, maxEventBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, ErrProtocol) {
				return err
			}
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		if total += len(line) + 1; total > maxStreamBytes {
			return fmt.Errorf("%w: a stream of more than %d bytes", ErrProtocol, maxStreamBytes)
		}
		ended := err != nil
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, bytes.TrimPrefix(value, []byte(" "))...), true
			if len(data) > maxEventBytes {
				return fmt.Errorf("%w: an event of more than %d bytes", ErrProtocol, maxEventBytes)
			}
		}
		// Servers that forget the empty line after their last event exist.
		if has && (len(line) == 0 || ended) {
			last, err := each(data)
			if last || err != nil {
				return err
			}
			data, has = data[:0], false
		}
		if ended {
			return nil
		}
	}
}

// readLine reads a line without its end. With io.EOF it returns what was left.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var long []byte
	for {
		piece, err := r.ReadSlice('\n')
		if len(long)+len(piece) > limit {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrProtocol, limit)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, piece...)
			continue
		}
		if len(long) > 0 {
			piece = append(long, piece...)
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(piece, []byte("\n")), []byte("\r")), err
	}
}
