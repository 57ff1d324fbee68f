package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

const (
	tarType   = "application/x-tar"
	bytesType = "application/octet-stream"
)

// The headers of a download, beside those of HTTP.
const (
	survivesHeader = "X-Survives-Rotation"
	sourceHeader   = "X-File-Source"
	modeHeader     = "X-File-Mode"
	// leftOutTrailer says, behind a complete archive, what is not in it.
	leftOutTrailer = "X-Left-Out"
)

type writeContentInput struct {
	api.SessionPath
	FilePath
	Mode string `query:"mode" pattern:"^[0-7]{3,4}$" doc:"Its permissions, in octal; those of the old file when absent, or 0644."`
}

// WrittenBody is a file that was written.
type WrittenBody struct {
	File File `json:"file"`
}

type writtenOutput struct{ Body WrittenBody }

type downloadInput struct {
	api.SessionPath
	FilePath
	Archive string `query:"archive" enum:"tar" doc:"Answer with a tar archive of a file, too. A link is stored as a link."`
}

type uploadInput struct {
	api.SessionPath
	Path string `query:"path" maxLength:"4096" doc:"A directory, which is made if need be; the working directory when absent."`
}

// UploadedBody says what became of an archive.
type UploadedBody struct {
	Path       string   `json:"path"`
	PathBase64 string   `json:"pathBase64,omitempty"`
	Entries    int64    `json:"entries" doc:"Files, directories and links that were made."`
	Bytes      int64    `json:"bytes" doc:"That its files have together."`
	LeftOut    []string `json:"leftOut,omitempty" doc:"What was not made, such as a device, a sentence each; absent when everything was."`
	Survives   bool     `json:"survivesRotation"`
}

type uploadedOutput struct{ Body UploadedBody }

func (h *handler) transfers(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "writeContent", Method: http.MethodPut, Path: filesPath + "/content", Upload: api.AnyType,
		Scope: ScopeWrite, Summary: "Write a file of any size",
		Description: "The body is the content. One that breaks off is refused and leaves the old file as it was.",
	}, h.writeContent)
	api.Register(s, api.Operation{
		ID: "download", Method: http.MethodGet, Path: filesPath + "/download", Download: bytesType,
		Scope: ScopeRead, Summary: "Download a file, or a directory as an archive",
		Description: "The raw bytes, of any size, with Range, ETag and HEAD: after a cut go on with Range and If-Range. " +
			"A directory, or anything with archive=tar, comes as " + tarType + ": the files under their names in the directory, links as links. " +
			"What cannot be read is left out of it and named in the trailer " + leftOutTrailer + ", a JSON string. An answer that breaks off is not complete.",
	}, h.download)
	api.Register(s, api.Operation{
		ID: "upload", Method: http.MethodPost, Path: filesPath + "/upload", Upload: tarType,
		Scope: ScopeWrite, Summary: "Unpack a tar archive",
		Description: "The body is an archive of any size. Files that are there are replaced, each in one step. " +
			"One with a name that leads out of the directory, or a second name for a file outside, is refused, and the entry is named; what came before it stays. " +
			"So is one without its end, two blocks of zeros: files might be missing. A symbolic link is kept as it is, wherever it leads, but nothing is written or read through one that leads out. " +
			"Owners, set-id bits and devices are not taken.",
	}, h.upload)
}

// pathed names the file that an error is about.
func pathed(err error, name string) error {
	e, ok := errors.AsType[*sojourn.Error](err)
	if !ok {
		return err
	}
	named := *e
	named.Details = map[string]string{}
	for k, v := range e.Details {
		named.Details[k] = v
	}
	named.Details["path"], _ = shown(name)
	return &named
}

func (h *handler) writeContent(ctx context.Context, in *writeContentInput) (*writtenOutput, error) {
	mode, err := permissions(in.Mode)
	if err != nil {
		return nil, err
	}
	lasting, end := api.Lasting(ctx)
	defer end()
	written, err := h.engine.WriteFiles(lasting, ref(ctx, in.SessionID), []engine.FileWrite{{
		Path: in.Path, Mode: mode, Size: api.HTTP(ctx).ContentLength, Data: api.Upload(ctx),
	}}, h.config.SandboxWait)
	if err != nil {
		return nil, api.Ended(err)
	}
	return &writtenOutput{Body: WrittenBody{File: fileOf(written[0])}}, nil
}

func (h *handler) upload(ctx context.Context, in *uploadInput) (*uploadedOutput, error) {
	lasting, end := api.Lasting(ctx)
	defer end()
	dir, err := engine.FilePath(in.Path)
	if err != nil {
		return nil, err
	}
	u, err := h.engine.UnpackFiles(lasting, ref(ctx, in.SessionID), in.Path, api.Upload(ctx), h.config.SandboxWait)
	if err != nil {
		return nil, api.Ended(err)
	}
	out := &uploadedOutput{Body: UploadedBody{Entries: u.Entries, Bytes: u.Bytes, Survives: engine.FileInfo{Path: dir}.Survives()}}
	out.Body.Path, out.Body.PathBase64 = shown(dir)
	if u.LeftOut != "" {
		out.Body.LeftOut = strings.Split(u.LeftOut, "\n")
	}
	return out, nil
}

func (h *handler) download(ctx context.Context, in *downloadInput) (*huma.StreamResponse, error) {
	if in.Archive != "" {
		return h.archive(ctx, in, in.Path)
	}
	r := api.HTTP(ctx)
	// Whether all of the file is wanted can be seen before it is there.
	n := int64(-1)
	if r.Method == http.MethodHead || r.Header.Get("Range") != "" {
		n = 0
	}
	f, err := h.open(ctx, in, 0, n)
	if err != nil {
		return nil, err
	}
	if f.Info.Type == engine.TypeDirectory {
		f.Close()
		return h.archive(ctx, in, strings.TrimSuffix(in.Path, "/")+"/")
	}
	if err := readable(f.Info); err != nil {
		f.Close()
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		lasting, end := api.Lasting(r.Context())
		defer end()
		c := &content{ctx: lasting, file: f, info: f.Info, open: func(from int64) (*engine.FileReader, error) { return h.open(lasting, in, from, -1) }}
		defer c.Close()
		describe(w.Header(), path.Base(f.Info.Path), f.Info.Saved, f.Info.Survives())
		w.Header().Set(modeHeader, octal(f.Info.Mode))
		w.Header().Set("Content-Type", bytesType)
		w.Header().Set("ETag", `"`+f.Info.Tag()+`"`)
		w.Header().Set("Last-Modified", f.Info.ModTime.Format(http.TimeFormat))
		api.Content(w, r, c)
		if c.err != nil {
			api.Told(r.Context(), cause(lasting, c.err))
			panic(http.ErrAbortHandler) // the reader must not take this for the end
		}
	}}, nil
}

func (h *handler) open(ctx context.Context, in *downloadInput, from, n int64) (*engine.FileReader, error) {
	return h.engine.ReadFile(ctx, ref(ctx, in.SessionID), in.Path, from, n, h.config.SandboxWait)
}

// describe sets the headers of a download. A browser must save it, whatever is in
// it.
func describe(h http.Header, name string, saved, survives bool) {
	h.Set("Content-Disposition", disposition(name))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(sourceHeader, sourceOf(saved))
	h.Set(survivesHeader, strconv.FormatBool(survives))
}

// disposition names a download as RFC 6266 has it: for those who know no better in
// harmless characters, and for all others in its exact bytes.
func disposition(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"%\/`, r) {
			return '_'
		}
		return r
	}, name)
	var exact strings.Builder
	for _, c := range []byte(name) {
		switch {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', strings.IndexByte("!#$&+-.^_`|~", c) >= 0:
			exact.WriteByte(c)
		default:
			fmt.Fprintf(&exact, "%%%02X", c)
		}
	}
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + exact.String()
}

// content is a file that is opened anew where it is read from.
type content struct {
	ctx  context.Context
	open func(from int64) (*engine.FileReader, error)
	info engine.FileInfo
	err  error // why it could not be read; not io.EOF

	at   int64 // where the next Read begins
	file *engine.FileReader
	body io.ReadCloser // of file; nil while none of it was read
	from int64         // where body is
}

// Seek implements io.Seeker.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.at
	case io.SeekEnd:
		offset += c.info.Size
	}
	if offset < 0 {
		return 0, errors.New("seek before the file")
	}
	c.at = offset
	return offset, nil
}

// Read implements io.Reader.
func (c *content) Read(b []byte) (int, error) {
	if c.at >= c.info.Size {
		return 0, io.EOF
	}
	if c.err = c.begin(); c.err != nil {
		return 0, c.err
	}
	n, err := c.body.Read(b)
	c.at += int64(n)
	c.from = c.at
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// begin makes body be where the file is to be read.
func (c *content) begin() (err error) {
	if c.body != nil && c.from == c.at {
		return nil
	}
	if c.body != nil || c.file == nil || c.file.From != c.at || c.file.Length < c.info.Size-c.at {
		c.Close()
		if c.file, err = c.open(c.at); err != nil {
			return err
		}
		if c.file.Info.Tag() != c.info.Tag() {
			return errors.New("the file was replaced while it was downloaded")
		}
	}
	c.body, c.from = c.file.Bytes(c.ctx), c.at
	return nil
}

// Close ends the reading.
func (c *content) Close() {
	if c.body != nil {
		c.body.Close()
		c.body = nil
	}
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// archive answers with a tar archive.
func (h *handler) archive(ctx context.Context, in *downloadInput, name string) (*huma.StreamResponse, error) {
	a, err := h.engine.PackFiles(ctx, ref(ctx, in.SessionID), name, h.config.SandboxWait)
	if err != nil {
		return nil, err
	}
	at, err := engine.FilePath(name)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer a.Close()
		r, w := humago.Unwrap(hc)
		lasting, end := api.Lasting(r.Context())
		defer end()
		describe(w.Header(), a.Name+".tar", a.Saved, engine.FileInfo{Path: at}.Survives())
		w.Header().Set("Trailer", leftOutTrailer)
		to := api.Download(lasting, w, tarType)
		if r.Method == http.MethodHead {
			return
		}
		left, err := a.Copy(lasting, to)
		if err != nil {
			api.Told(r.Context(), cause(lasting, err))
			panic(http.ErrAbortHandler) // the reader must not take this for the end
		}
		if left != "" {
			w.Header().Set(leftOutTrailer, strconv.QuoteToASCII(left))
		}
	}}, nil
}
