package exec

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sojourn-dev/sojourn"
	"github.com/sojourn-dev/sojourn/internal/api"
	"github.com/sojourn-dev/sojourn/internal/engine"
)

// Files is what this contract needs of the engine for files.
type Files interface {
	ReadFile(ctx context.Context, ref engine.Ref, name string, from, n int64, wait time.Duration) (*engine.FileReader, error)
	WriteFiles(ctx context.Context, ref engine.Ref, list []engine.FileWrite, wait time.Duration) ([]engine.FileInfo, error)
	ListFiles(ctx context.Context, ref engine.Ref, q engine.FileQuery, wait time.Duration) (engine.FilePage, error)
	PackFiles(ctx context.Context, ref engine.Ref, name string, wait time.Duration) (*engine.FileArchive, error)
	UnpackFiles(ctx context.Context, ref engine.Ref, name string, archive io.Reader, wait time.Duration) (engine.Unpacked, error)
}

// The bounds of calls that carry files in JSON.
const (
	maxReadFile   = 32 << 20
	maxWriteFiles = 1000
)

const filesPath = sessionPath + "/files"

// Where a file was read from.
const (
	fromSandbox    = "sandbox"
	fromCheckpoint = "checkpoint"
)

// FilePath is the query parameter of calls for one file.
type FilePath struct {
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4096" doc:"Absolute in the sandbox, or beneath the working directory. A relative one, and one of the working directory, does not lead out of it, by \"..\" or by a link."`
}

// File describes a file on the wire.
type File struct {
	Path       string    `json:"path" doc:"Absolute in the sandbox."`
	PathBase64 string    `json:"pathBase64,omitempty" doc:"The exact bytes of a path that is not UTF-8; path shows it for people."`
	Type       string    `json:"type" enum:"file,directory,symlink,other"`
	Size       int64     `json:"size" doc:"Of a file, in bytes."`
	Mode       string    `json:"mode" doc:"Its permissions, in octal." example:"0644"`
	MTime      time.Time `json:"mtime"`
	Survives   bool      `json:"survivesRotation" doc:"Only what is in the working directory does."`
}

// ListedFile is an entry of a listing.
type ListedFile struct {
	File
	Target       string `json:"target,omitempty" doc:"What a symlink holds."`
	TargetBase64 string `json:"targetBase64,omitempty" doc:"The exact bytes of a target that is not UTF-8."`
	Unlisted     bool   `json:"unlisted,omitempty" doc:"What is in this directory is left out: it cannot be read, or lies too deep."`
}

// shown writes a name for people, and its exact bytes when those are others.
func shown(name string) (text, exact string) {
	if utf8.ValidString(name) {
		return name, ""
	}
	return strings.ToValidUTF8(name, string(utf8.RuneError)), base64.StdEncoding.EncodeToString([]byte(name))
}

func fileOf(i engine.FileInfo) File {
	f := File{Type: string(i.Type), Size: i.Size, Mode: octal(i.Mode), MTime: i.ModTime, Survives: i.Survives()}
	f.Path, f.PathBase64 = shown(i.Path)
	return f
}

func octal(m fs.FileMode) string { return "0" + strconv.FormatUint(uint64(m), 8) }

func sourceOf(saved bool) string {
	if saved {
		return fromCheckpoint
	}
	return fromSandbox
}

// NewFile is a file to be written.
type NewFile struct {
	Path       string  `json:"path,omitempty" maxLength:"4096" doc:"Absolute in the sandbox, or beneath the working directory."`
	PathBase64 string  `json:"pathBase64,omitempty" maxLength:"5464" doc:"In place of path, for one that is not UTF-8."`
	Content    *string `json:"content,omitempty" doc:"Its bytes in base64."`
	Text       *string `json:"text,omitempty" doc:"Its text, in place of content."`
	Mode       string  `json:"mode,omitempty" pattern:"^[0-7]{3,4}$" doc:"Its permissions, in octal; those of the old file when absent, or 0644." example:"0644"`
}

// WriteFilesBody are files to be written.
type WriteFilesBody struct {
	Files []NewFile `json:"files" minItems:"1" maxItems:"1000"`
}

type writeFilesInput struct {
	api.SessionPath
	Body WriteFilesBody
}

// FilesBody are files that were written.
type FilesBody struct {
	Files []File `json:"files"`
}

type filesOutput struct{ Body FilesBody }

type readFileInput struct {
	api.SessionPath
	FilePath
	Encoding string `query:"encoding" enum:"base64,text" default:"base64" doc:"text refuses a file that is not UTF-8, rather than change it."`
}

// FileBody is a file with its content.
type FileBody struct {
	File
	Content  string `json:"content"`
	Encoding string `json:"encoding" enum:"base64,text"`
	Source   string `json:"source" enum:"sandbox,checkpoint" doc:"checkpoint: the session is paused or has ended, and this is what it has kept."`
}

type fileOutput struct{ Body FileBody }

type listFilesInput struct {
	api.SessionPath
	Path      string `query:"path" maxLength:"4096" doc:"A directory; the working directory when absent."`
	Recursive bool   `query:"recursive" doc:"What is in a directory follows behind the directory. No link is followed."`
	Limit     int    `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
	Cursor    string `query:"cursor" maxLength:"8192" doc:"The nextCursor of the page before."`
}

// ListedFilesBody is a page of a listing.
type ListedFilesBody struct {
	Files  []ListedFile `json:"files" doc:"By name, bytewise."`
	Next   string       `json:"nextCursor,omitempty" doc:"Absent on the last page."`
	Source string       `json:"source" enum:"sandbox,checkpoint"`
}

type listFilesOutput struct{ Body ListedFilesBody }

func (h *handler) files(s *api.Service) {
	api.Register(s, api.Operation{
		ID: "writeFiles", Method: http.MethodPost, Path: filesPath,
		Scope: ScopeWrite, Summary: "Write files",
		Description: "Each is there whole or as it was before, in the order given; directories that lead to it are made. " +
			"A file outside the working directory is written too, but does not survive a rotation. While the session rotates the call waits. " +
			"Larger files go to files/content, trees to files/upload.",
	}, h.writeFiles)
	api.Register(s, api.Operation{
		ID: "readFile", Method: http.MethodGet, Path: filesPath,
		Scope: ScopeRead, Summary: "Read a file of at most 32 MiB",
		Description: "Larger files, and parts of files, come from files/download.",
	}, h.readFile)
	api.Register(s, api.Operation{
		ID: "listFiles", Method: http.MethodGet, Path: filesPath + "/list",
		Scope: ScopeRead, Summary: "List a directory",
	}, h.listFiles)
}

// write reads what is to be written, and where.
func (f *NewFile) write() (w engine.FileWrite, err error) {
	w.Path = f.Path
	switch {
	case (f.Path == "") == (f.PathBase64 == ""):
		return w, sojourn.Errorf(sojourn.CodeInvalid, "files: each needs a path, or a pathBase64.")
	case (f.Content == nil) == (f.Text == nil):
		return w, sojourn.Errorf(sojourn.CodeInvalid, "files: each needs a content in base64, or a text.")
	case f.PathBase64 != "":
		b, err := base64.StdEncoding.DecodeString(f.PathBase64)
		if err != nil || len(b) == 0 {
			return w, sojourn.Errorf(sojourn.CodeInvalid, "pathBase64: this is no base64.")
		}
		w.Path = string(b)
	}
	var data []byte
	if f.Text != nil {
		data = []byte(*f.Text)
	} else if data, err = base64.StdEncoding.DecodeString(*f.Content); err != nil {
		return w, sojourn.Errorf(sojourn.CodeInvalid, "content: this is no base64.")
	}
	w.Size, w.Data = int64(len(data)), bytes.NewReader(data)
	w.Mode, err = permissions(f.Mode)
	return w, err
}

// permissions reads permissions in octal; "" is none.
func permissions(text string) (*fs.FileMode, error) {
	if text == "" {
		return nil, nil
	}
	m, err := strconv.ParseUint(text, 8, 12)
	if err != nil || fs.FileMode(m)&^fs.ModePerm != 0 {
		return nil, sojourn.Errorf(sojourn.CodeInvalid, "mode: use permissions in octal, such as 0644.")
	}
	return new(fs.FileMode(m)), nil
}

func (h *handler) writeFiles(ctx context.Context, in *writeFilesInput) (*filesOutput, error) {
	list := make([]engine.FileWrite, len(in.Body.Files))
	for i := range in.Body.Files {
		var err error
		if list[i], err = in.Body.Files[i].write(); err != nil {
			return nil, err
		}
	}
	written, err := h.engine.WriteFiles(ctx, ref(ctx, in.SessionID), list, h.config.SandboxWait)
	if err != nil {
		if len(list) > 1 && len(written) < len(list) {
			err = pathed(err, list[len(written)].Path)
		}
		return nil, err
	}
	out := &filesOutput{Body: FilesBody{Files: make([]File, len(written))}}
	for i, w := range written {
		out.Body.Files[i] = fileOf(w)
	}
	return out, nil
}

func (h *handler) readFile(ctx context.Context, in *readFileInput) (*fileOutput, error) {
	r, err := h.engine.ReadFile(ctx, ref(ctx, in.SessionID), in.Path, 0, maxReadFile+1, h.config.SandboxWait)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := readable(r.Info); err != nil {
		return nil, err
	}
	if r.Info.Size > maxReadFile {
		return nil, sojourn.Errorf(sojourn.CodeTooLarge, "The file has %d bytes. Download it: this call reads at most %d.", r.Info.Size, maxReadFile)
	}
	var b bytes.Buffer
	b.Grow(int(r.Length) + bytes.MinRead)
	if err := r.Copy(ctx, &b); err != nil {
		return nil, err
	}
	out := &fileOutput{Body: FileBody{File: fileOf(r.Info), Encoding: in.Encoding, Source: sourceOf(r.Info.Saved)}}
	if in.Encoding != "text" {
		out.Body.Content = base64.StdEncoding.EncodeToString(b.Bytes())
		return out, nil
	}
	if !utf8.Valid(b.Bytes()) {
		return nil, &sojourn.Error{
			Code: sojourn.CodeInvalid, Details: map[string]string{"reason": "not_text"},
			Message: "The file is not UTF-8 text. Read it in base64, or download it.",
		}
	}
	out.Body.Content = b.String()
	return out, nil
}

// readable refuses what has no content.
func readable(i engine.FileInfo) error {
	reason, text := "not_regular", "The path is no regular file."
	switch i.Type {
	case engine.TypeFile:
		return nil
	case engine.TypeDirectory:
		reason, text = "is_directory", "The path is a directory: list it, or download it as an archive."
	}
	return &sojourn.Error{Code: sojourn.CodeInvalid, Details: map[string]string{"reason": reason}, Message: text}
}

func (h *handler) listFiles(ctx context.Context, in *listFilesInput) (*listFilesOutput, error) {
	page, err := h.engine.ListFiles(ctx, ref(ctx, in.SessionID), engine.FileQuery{
		Path: in.Path, Recursive: in.Recursive, Limit: in.Limit, After: in.Cursor,
	}, h.config.SandboxWait)
	if err != nil {
		return nil, err
	}
	out := &listFilesOutput{Body: ListedFilesBody{Files: make([]ListedFile, len(page.Entries)), Next: page.Next, Source: sourceOf(page.Saved)}}
	for i, e := range page.Entries {
		f := &out.Body.Files[i]
		f.File, f.Unlisted = fileOf(e), e.Closed
		f.Target, f.TargetBase64 = shown(e.Target)
	}
	return out, nil
}
