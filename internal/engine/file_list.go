package engine

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"time"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/link"
)

// Bounds of one page of a listing.
const (
	DefaultFileLimit = 1000
	MaxFileLimit     = 10_000
)

// FileQuery selects a page of a listing.
type FileQuery struct {
	Path      string // of a directory; "" is the workspace
	Recursive bool
	Limit     int    // 1..MaxFileLimit; 0 means DefaultFileLimit
	After     string // the cursor of the page before
}

// FilePage is a page of a listing.
type FilePage struct {
	Entries []FileInfo
	Next    string // the cursor of the next page; "" behind the last one
	Saved   bool   // it is of the latest checkpoint
}

// ListFiles lists a directory: names in bytewise order, and with Recursive what is
// in a directory behind the directory. No link is followed, but one that the path
// itself names. A page is right for the time it was made at: names that come and go
// meanwhile may be missed, and the others come once. It waits, and has the codes of
// [Engine.ReadFile].
func (e *Engine) ListFiles(ctx context.Context, ref Ref, q FileQuery, wait time.Duration) (FilePage, error) {
	if q.Limit == 0 {
		q.Limit = DefaultFileLimit
	}
	if q.Limit < 1 || q.Limit > MaxFileLimit {
		return FilePage{}, sojourn.Errorf(sojourn.CodeInvalid, "limit: between 1 and %d.", MaxFileLimit)
	}
	at, err := parseFilePath(q.Path)
	if err != nil {
		return FilePage{}, err
	}
	after, err := parseFileCursor(q.After)
	if err != nil {
		return FilePage{}, err
	}
	var page FilePage
	err = e.lookInto(ctx, ref, wait, func(v *Visit) error {
		if page, err = v.list(ctx, at, q, after); err == nil {
			v.Close()
		}
		return err
	}, func(f sojourn.Facts) error {
		page, err = e.listSaved(ctx, f, at, q, after)
		return err
	})
	return page, err
}

func (v *Visit) list(ctx context.Context, at filePath, q FileQuery, after string) (FilePage, error) {
	resume := ""
	if after != "" {
		resume = link.PathURI("/" + after)
	}
	p := v.program()
	argv := []string{link.ProgramList, link.PathURI(at.root), at.uri(), strconv.FormatBool(q.Recursive), strconv.Itoa(q.Limit), resume}
	bound, done := v.bound(ctx)
	defer done()
	r, err := v.c.peer.Run(bound, link.StartParams{
		ProcessID: p.id, Argv: argv, Cwd: "/", Retain: link.RetainAck, SpoolBytes: fileSpool,
	}, link.ReadParams{MaxBytes: filePiece, Wait: link.MaxWait, Gather: time.Second})
	if err == nil {
		err = p.take(r)
	}
	defer p.drop()
	if err != nil {
		return FilePage{}, v.told(bound, err)
	}
	return p.entries(ctx, at.at, q.Limit)
}

// entries reads a listing as it comes.
func (p *fileProgram) entries(ctx context.Context, dir string, limit int) (FilePage, error) {
	var page FilePage
	var rest []byte
	last := ""
	for {
		got, err := p.next(ctx)
		if p.reply != nil && p.reply.Fault != "" {
			return FilePage{}, faultOf(*p.reply)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return FilePage{}, err
		}
		rest = append(rest, got.b...)
		got.release()
		for {
			e, more, ok, err := link.NextFileEntry(rest)
			if err != nil {
				return FilePage{}, err
			}
			if !ok {
				break
			}
			if len(page.Entries) == limit {
				return FilePage{}, fmt.Errorf("list files: more than %d entries: %w", limit, link.ErrMalformed)
			}
			rest, last = more, e.Path
			i := infoOf(path.Join(dir, e.Path), e.FileStat)
			i.Target, i.Closed = e.Target, e.Closed
			page.Entries = append(page.Entries, i)
		}
	}
	if p.reply == nil || len(rest) > 0 {
		return FilePage{}, fmt.Errorf("list files: the listing is cut short: %w", link.ErrMalformed)
	}
	if p.reply.More && last != "" {
		page.Next = fileCursor(last)
	}
	return page, nil
}

func fileCursor(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }

func parseFileCursor(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	after := string(b)
	if err != nil || len(b) > maxPath || s != "" && (path.Join("/", after) != "/"+after || after == "") {
		return "", sojourn.Errorf(sojourn.CodeInvalidCursor, "cursor: use one that a page gave out.")
	}
	return after, nil
}
