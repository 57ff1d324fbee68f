package operator

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// tarType is the media type of the archives that files travel in.
const tarType = "application/x-tar"

// leftOutTrailer says, behind a complete archive, what is not in it.
const leftOutTrailer = "Sojourn-Left-Out"

type readFilesInput struct {
	api.SessionPath
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4096" doc:"A file or directory, absolute or below the workspace. A link is copied as a link, unless a slash follows."`
}

type writeFilesInput struct {
	api.SessionPath
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4096" doc:"Where the files go, absolute or below the workspace."`
	Top  string `query:"top" maxLength:"255" doc:"The one first name that the archive has. With it the copy goes where cp would put it: into the directory at path, or else under that name. Without, the files go into the directory at path, which is made if need be."`
}

// WrittenFilesBody says what became of an archive.
type WrittenFilesBody struct {
	LeftOut []string `json:"leftOut,omitempty" doc:"What was not made, a sentence each; absent when everything was."`
}

type writeFilesOutput struct{ Body WrittenFilesBody }

func (h *handler) files(s *api.Service) {
	const path = "/operator/v1/sessions/{sessionId}/files"
	api.Register(s, api.Operation{
		ID: "readFiles", Method: http.MethodGet, Path: path, Download: tarType,
		Summary: "Copy a file or directory out of the sandbox",
		Description: "A tar archive whose names begin with the last name of path. A sandbox is provided when there is none; " +
			"of a session without an agent that is paused or has ended the files of the latest checkpoint are read. " +
			"What cannot be read is left out and named in the trailer " + leftOutTrailer + ", a JSON string. " +
			"When the archive cannot be completed the connection breaks off.",
	}, h.readFiles)
	api.Register(s, api.Operation{
		ID: "writeFiles", Method: http.MethodPut, Path: path, Upload: tarType,
		Summary: "Copy files into the sandbox",
		Description: "The body is a tar archive of any size. A sandbox is provided when there is none. Files that are there are replaced, each in one step. " +
			"Names that lead out of the target, sparse files and an archive without its end are refused; what came before stays. " +
			"A symbolic link is kept as it is, but nothing is written through one that leads out. Owners, set-id bits and devices are not taken.",
	}, h.writeFiles)
}

// visit enters the sandbox of a session for as long as a call lasts.
func (h *handler) visit(ctx context.Context, session string) (*engine.Visit, error) {
	return h.engine.Visit(ctx, ref(ctx, session), h.config.WorkspaceWait)
}

func (h *handler) readFiles(ctx context.Context, in *readFilesInput) (*huma.StreamResponse, error) {
	saved, err := h.engine.PackSaved(ctx, ref(ctx, in.SessionID), in.Path, h.config.WorkspaceWait)
	if err != nil {
		return nil, err
	}
	if saved != nil {
		return archived(saved.Copy, saved.Close), nil
	}
	v, err := h.visit(ctx, in.SessionID)
	if err != nil {
		return nil, err
	}
	d, err := v.CopyOut(ctx, in.Path)
	if err != nil {
		v.Close()
		return nil, err
	}
	return archived(
		func(ctx context.Context, w io.Writer) (string, error) {
			if err := send(ctx, w, d); err != nil {
				return "", err
			}
			return d.LeftOut(), nil
		},
		func() { d.Close(); v.Close() },
	), nil
}

// archived answers with an archive that write writes, with what it says is left out.
func archived(write func(context.Context, io.Writer) (leftOut string, err error), done func()) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer done()
		r, w := humago.Unwrap(hc)
		lasting, end := api.Lasting(r.Context())
		defer end()
		w.Header().Set("Trailer", leftOutTrailer)
		to := api.Download(lasting, w, tarType)
		if r.Method == http.MethodHead {
			return
		}
		left, err := write(lasting, to)
		if err != nil {
			api.Told(r.Context(), err)
			panic(http.ErrAbortHandler) // the reader must not take this for the end
		}
		if left != "" {
			w.Header().Set(leftOutTrailer, strconv.QuoteToASCII(left))
		}
	}}
}

// send writes an archive to its reader.
func send(ctx context.Context, w io.Writer, d *engine.Download) error {
	for {
		piece, err := d.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			_, err = w.Write(piece)
		}
		if err != nil {
			return err
		}
	}
}

func (h *handler) writeFiles(ctx context.Context, in *writeFilesInput) (*writeFilesOutput, error) {
	v, err := h.visit(ctx, in.SessionID)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	lasting, end := api.Lasting(ctx)
	defer end()
	left, err := v.CopyIn(lasting, in.Path, in.Top, api.Upload(ctx))
	if err != nil {
		return nil, api.Ended(err)
	}
	out := &writeFilesOutput{}
	if left != "" {
		out.Body.LeftOut = strings.Split(left, "\n")
	}
	return out, nil
}
