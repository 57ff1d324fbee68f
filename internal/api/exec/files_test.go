package exec_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sojourn-dev/sojourn/internal/servertest"
)

// caller calls the contract on a whole server, about one session.
type caller struct {
	testing.TB
	*servertest.Server
	id string
}

func newCaller(t testing.TB) *caller {
	t.Helper()
	c := &caller{TB: t, Server: servertest.Start(t, servertest.Config{})}
	var made struct{ Session struct{ ID string } }
	if status, body := c.json(http.MethodPost, "/api/v1/agent/sessions", `{"autoStart":true}`, &made); status != http.StatusOK && status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, body)
	}
	c.id = made.Session.ID
	if status, body := c.json(http.MethodPost, c.path("/start"), `{}`, nil); status != http.StatusOK && status != http.StatusConflict {
		t.Fatalf("start: %d %s", status, body)
	}
	return c
}

func (c *caller) path(more string) string { return "/api/v1/agent/sessions/" + c.id + more }

// files is the path of a call for files, with its query.
func (c *caller) files(call string, query ...string) string {
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	return c.path("/files" + call + "?" + q.Encode())
}

func (c *caller) request(method, path string, body io.Reader, header ...string) *http.Request {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), method, c.URL+path, body)
	if err != nil {
		c.Fatal(err)
	}
	r.Header.Set("Authorization", "ApiKey "+servertest.AdminKey)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// do makes a call and reads its answer, which may be cut short.
func (c *caller) do(method, path string, body io.Reader, header ...string) (*http.Response, []byte, error) {
	c.Helper()
	a, err := http.DefaultClient.Do(c.request(method, path, body, header...))
	if err != nil {
		c.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	return a, b, err
}

func (c *caller) json(method, path, body string, out any) (int, []byte) {
	c.Helper()
	a, b, err := c.do(method, path, strings.NewReader(body), "Content-Type", "application/json")
	if err != nil {
		c.Fatal(err)
	}
	if out != nil && a.StatusCode < 300 {
		if err := json.Unmarshal(b, out); err != nil {
			c.Fatalf("%s %s: %v in %s", method, path, err, b)
		}
	}
	return a.StatusCode, b
}

// refused checks that a call is answered with a status, and a reason.
func (c *caller) refused(method, path, body string, status int, reason string, header ...string) {
	c.Helper()
	a, b, err := c.do(method, path, strings.NewReader(body), header...)
	var e struct {
		Error, Code, RequestID string
		Details                struct{ Reason string }
	}
	if err != nil || json.Unmarshal(b, &e) != nil || a.StatusCode != status || e.Details.Reason != reason || e.Error == "" || e.RequestID == "" {
		c.Errorf("%s %s: %d %s, %v; want %d with the reason %q", method, path, a.StatusCode, b, err, status, reason)
	}
}

// workspace is where the files of the session's sandbox lie on the host.
func (c *caller) workspace() string {
	c.Helper()
	list, err := c.Fake.List(c.Context())
	if err != nil || len(list) != 1 {
		c.Fatal(list, err)
	}
	dirs, err := c.Fake.Remains(c.Context(), list[0])
	if err != nil {
		c.Fatal(err)
	}
	return dirs.Workspace
}

type fileReply struct {
	Path, PathBase64, Type, Mode, Content, Encoding, Source string
	Size                                                    int64
	SurvivesRotation                                        bool
}

// samples are contents that careless readers spoil.
func samples() map[string][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return map[string][]byte{
		"all values": all, "UTF-16": []byte("\xff\xfeh\x00i\x00"), "zip": []byte("PK\x03\x04\x14\x00\x00\x00\x08\x00\xb7"),
		"text": []byte("line one\r\nline two \u2615\n"), "empty": {}, "mark": []byte("\ufeffmark"),
	}
}

func TestContentIsExact(t *testing.T) { // FI-01
	t.Parallel()
	c := newCaller(t)
	for name, data := range samples() {
		var wrote struct{ Files []fileReply }
		body := fmt.Sprintf(`{"files":[{"path":%q,"content":%q,"mode":"0640"}]}`, name, base64.StdEncoding.EncodeToString(data))
		if status, b := c.json(http.MethodPost, c.path("/files"), body, &wrote); status != 200 || len(wrote.Files) != 1 ||
			wrote.Files[0].Path != "/workspace/"+name || wrote.Files[0].Size != int64(len(data)) || !wrote.Files[0].SurvivesRotation || wrote.Files[0].Mode != "0640" {
			t.Fatalf("write %s: %d %s", name, status, b)
		}
		var read fileReply
		status, b := c.json(http.MethodGet, c.files("", "path", name), "", &read)
		got, err := base64.StdEncoding.DecodeString(read.Content)
		if status != 200 || err != nil || !bytes.Equal(got, data) || read.Size != int64(len(data)) || read.Source != "sandbox" {
			t.Errorf("read %s: %d %s", name, status, b)
		}
		if name == "text" || name == "mark" || name == "empty" {
			if status, b := c.json(http.MethodGet, c.files("", "path", name, "encoding", "text"), "", &read); status != 200 || read.Content != string(data) {
				t.Errorf("read %s as text: %d %s", name, status, b)
			}
		} else {
			c.refused(http.MethodGet, c.files("", "path", name, "encoding", "text"), "", 400, "not_text")
		}
		if _, b, err := c.do(http.MethodGet, c.files("/download", "path", name), nil); err != nil || !bytes.Equal(b, data) {
			t.Errorf("download %s: %q, %v", name, b, err)
		}
		if a, b, err := c.do(http.MethodPut, c.files("/content", "path", "raw/"+name), bytes.NewReader(data)); err != nil || a.StatusCode != 200 {
			t.Errorf("put %s: %d %s, %v", name, a.StatusCode, b, err)
		}
		if _, b, err := c.do(http.MethodGet, c.files("/download", "path", "raw/"+name), nil); err != nil || !bytes.Equal(b, data) {
			t.Errorf("download what was put as %s: %q, %v", name, b, err)
		}
	}
	var outside struct{ Files []fileReply }
	if status, b := c.json(http.MethodPost, c.path("/files"), `{"files":[{"path":"/opt/tool","text":"x"},{"path":"in","text":"y"}]}`, &outside); status != 200 ||
		outside.Files[0].SurvivesRotation || !outside.Files[1].SurvivesRotation {
		t.Errorf("a file outside the working directory: %d %s", status, b)
	}
}

// TestDownloadsGoOnAfterACut is FI-02.
func TestDownloadsGoOnAfterACut(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	rng := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 9<<20)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	if a, b, _ := c.do(http.MethodPut, c.files("/content", "path", "big"), bytes.NewReader(data)); a.StatusCode != 200 {
		t.Fatalf("put: %d %s", a.StatusCode, b)
	}
	where := c.files("/download", "path", "big")
	head, _, _ := c.do(http.MethodHead, where, nil)
	tag := head.Header.Get("ETag")
	if head.ContentLength != int64(len(data)) || tag == "" || head.Header.Get("Accept-Ranges") != "bytes" || head.Header.Get("X-Survives-Rotation") != "true" {
		t.Fatalf("head: %d bytes, %v", head.ContentLength, head.Header)
	}
	// The reader leaves in the middle, and goes on with what it has not.
	a, err := http.DefaultClient.Do(c.request(http.MethodGet, where, nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.LimitReader(a.Body, 4<<20+17))
	a.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	rest, b, err := c.do(http.MethodGet, where, nil, "Range", fmt.Sprintf("bytes=%d-", len(got)), "If-Range", tag)
	if want := fmt.Sprintf("bytes %d-%d/%d", len(got), len(data)-1, len(data)); err != nil || rest.StatusCode != 206 || rest.Header.Get("Content-Range") != want || !bytes.Equal(append(got, b...), data) {
		t.Errorf("the rest: %d, %q, %d bytes, %v", rest.StatusCode, rest.Header.Get("Content-Range"), len(b), err)
	}
	for ask, want := range map[string][]byte{"bytes=0-0": data[:1], "bytes=-5": data[len(data)-5:], "bytes=7-9": data[7:10], "bytes=9437183-": data[9437183:]} {
		if a, b, err := c.do(http.MethodGet, where, nil, "Range", ask); err != nil || a.StatusCode != 206 || !bytes.Equal(b, want) {
			t.Errorf("%s: %d, %d bytes, %v", ask, a.StatusCode, len(b), err)
		}
	}
	if a, b, err := c.do(http.MethodGet, where, nil, "Range", "bytes=0-1,5-6"); err != nil || a.StatusCode != 206 || !strings.HasPrefix(a.Header.Get("Content-Type"), "multipart/byteranges") || !bytes.Contains(b, data[5:7]) {
		t.Errorf("two parts: %d, %d bytes, %v", a.StatusCode, len(b), err)
	}
	if a, _, _ := c.do(http.MethodGet, where, nil, "Range", "bytes=9437184-"); a.StatusCode != 416 || a.Header.Get("Content-Range") != "bytes */9437184" {
		t.Errorf("behind the end: %d, %v", a.StatusCode, a.Header)
	}
	if a, _, _ := c.do(http.MethodGet, where, nil, "If-None-Match", tag); a.StatusCode != 304 {
		t.Errorf("what the caller has already: %d", a.StatusCode)
	}
	// Another file has the name now: nobody joins the two.
	if a, b, _ := c.do(http.MethodPut, c.files("/content", "path", "big"), strings.NewReader("other")); a.StatusCode != 200 {
		t.Fatalf("put: %d %s", a.StatusCode, b)
	}
	if a, b, err := c.do(http.MethodGet, where, nil, "Range", "bytes=2-", "If-Range", tag); err != nil || a.StatusCode != 200 || string(b) != "other" {
		t.Errorf("a part of a file that was replaced: %d %q, %v", a.StatusCode, b, err)
	}
	// Far offsets.
	f, err := os.Create(filepath.Join(c.workspace(), "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(3 << 30); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if a, b, err := c.do(http.MethodGet, c.files("/download", "path", "sparse"), nil, "Range", "bytes=3221225470-"); err != nil || a.StatusCode != 206 || string(b) != "\x00\x00" {
		t.Errorf("behind 2^31: %d %q, %v", a.StatusCode, b, err)
	}
}

func TestNamesSurviveTheHeader(t *testing.T) { // FI-13, FI-14, FI-15
	t.Parallel()
	c := newCaller(t)
	names := []string{
		`quo"te`, "semi;colon", "cr\rlf\nX-Injected: yes", "\U0001f600.txt", "-dash", strings.Repeat("n", 255), "é.txt", "e\u0301.txt", "100%", `back\slash`,
		"a:b", "q?", "x|y", "dot.", ".hidden", "\xff\xfe", "中文&@#", " space ", "tab\t", "\x7f",
	}
	for _, name := range names {
		if a, b, _ := c.do(http.MethodPut, c.files("/content", "path", "d/"+name), strings.NewReader(name)); a.StatusCode != 200 {
			t.Errorf("put %q: %d %s", name, a.StatusCode, b)
			continue
		}
		a, b, err := c.do(http.MethodGet, c.files("/download", "path", "d/"+name), nil)
		header := a.Header.Get("Content-Disposition")
		_, params, bad := mime.ParseMediaType(header)
		if err != nil || a.StatusCode != 200 || string(b) != name || bad != nil || params["filename"] != name || a.Header.Get("X-Injected") != "" {
			t.Errorf("download %q: %d %q, %v; the name is %q in %q, %v", name, a.StatusCode, b, err, params["filename"], header, bad)
		}
	}
	var page struct {
		Files []struct{ Path, PathBase64 string }
	}
	if status, b := c.json(http.MethodGet, c.files("/list", "path", "d"), "", &page); status != 200 || len(page.Files) != len(names) {
		t.Fatalf("list: %d %s", status, b)
	}
	listed := map[string]bool{}
	for _, f := range page.Files {
		if f.PathBase64 != "" {
			b, _ := base64.StdEncoding.DecodeString(f.PathBase64)
			f.Path = string(b)
		}
		listed[strings.TrimPrefix(f.Path, "/workspace/d/")] = true
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%q is not in the list", name)
		}
	}
	body := fmt.Sprintf(`{"files":[{"path_base64":%q,"text":"exact"}]}`, base64.StdEncoding.EncodeToString([]byte("d/\xfe")))
	if status, b := c.json(http.MethodPost, c.path("/files"), body, nil); status != 200 {
		t.Errorf("write a name that is not UTF-8: %d %s", status, b)
	}
	if _, b, err := c.do(http.MethodGet, c.files("/download", "path", "d/\xfe"), nil); err != nil || string(b) != "exact" {
		t.Errorf("download a name that is not UTF-8: %q, %v", b, err)
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) { // FI-04, FI-05, FI-06
	t.Parallel()
	c := newCaller(t)
	if a, b, _ := c.do(http.MethodPut, c.files("/content", "path", "file"), strings.NewReader("x")); a.StatusCode != 200 {
		t.Fatalf("put: %d %s", a.StatusCode, b)
	}
	outside := t.TempDir()
	for name, target := range map[string]string{"l": outside + "/new.txt", "d": outside, "up": ".."} {
		if err := os.Symlink(target, filepath.Join(c.workspace(), name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, reason := range map[string]string{
		"l": "escapes", "d/x": "escapes", "up/x": "escapes", "../x": "escapes", "a/../../x": "escapes", "/workspace/../etc/passwd": "escapes",
		"x\x00y": "too_long", strings.Repeat("a", 300): "too_long", "file/": "not_directory", "file/x": "not_directory",
	} {
		c.refused(http.MethodGet, c.files("", "path", name), "", 400, reason)
		c.refused(http.MethodGet, c.files("/download", "path", name), "", 400, reason)
		if name != "l" { // an archive has the link itself
			c.refused(http.MethodGet, c.files("/download", "path", name, "archive", "tar"), "", 400, reason)
		}
		c.refused(http.MethodGet, c.files("/list", "path", name), "", 400, reason)
		if strings.HasSuffix(name, "/") {
			reason = "is_directory"
		}
		c.refused(http.MethodPut, c.files("/content", "path", name), "mine", 400, reason)
	}
	for _, call := range []string{"", "/download", "/list"} {
		c.refused(http.MethodGet, c.files(call, "path", "none"), "", 404, "not_found")
		c.refused(http.MethodGet, c.files(call, "path", strings.Repeat("a", 5000)), "", 400, "")
	}
	c.refused(http.MethodGet, c.files("", "path", "."), "", 400, "is_directory")
	c.refused(http.MethodGet, c.files(""), "", 400, "")
	c.refused(http.MethodGet, c.files("/list", "path", "file"), "", 400, "not_directory")
	c.refused(http.MethodGet, c.files("/list", "limit", "0"), "", 400, "")
	c.refused(http.MethodGet, c.files("/list", "cursor", "?"), "", 400, "")
	for _, body := range []string{
		`{"files":[]}`, `{"files":[{"path":"x"}]}`, `{"files":[{"text":"x"}]}`, `{"files":[{"path":"x","text":"x","content":""}]}`,
		`{"files":[{"path":"x","content":"no base64!"}]}`, `{"files":[{"path":"x","text":"x","mode":"rw"}]}`, `{"files":[{"path":"x","text":"x","mode":"4755"}]}`,
		`{"files":[{"path":"x","text":"x","owner":"root"}]}`,
	} {
		c.refused(http.MethodPost, c.path("/files"), body, 400, "", "Content-Type", "application/json")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

func TestTreesGoUpAndComeDown(t *testing.T) { // FI-04, FI-08, FI-10
	t.Parallel()
	c := newCaller(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "dir-1/dir-2/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "file-a", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4},
		{Name: "dir-1/dir-2/file-b", Typeflag: tar.TypeLink, Linkname: "file-a"},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "dir-1"},
		{Name: "zero", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "empty/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "pipe", Typeflag: tar.TypeFifo},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("text")); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Close()
	for _, to := range []string{"", "sub/dir"} {
		var up struct {
			Path           string
			Entries, Bytes int64
			LeftOut        []string
		}
		a, body, err := c.do(http.MethodPost, c.files("/upload", "path", to), bytes.NewReader(b.Bytes()), "Content-Type", "application/x-tar")
		if err != nil || a.StatusCode != 200 || json.Unmarshal(body, &up) != nil || up.Entries != 6 || up.Bytes != 4 || len(up.LeftOut) != 1 || !strings.Contains(up.LeftOut[0], "pipe") {
			t.Fatalf("upload to %q: %d %s, %v", to, a.StatusCode, body, err)
		}
	}
	a, body, err := c.do(http.MethodGet, c.files("/download", "path", "sub/dir"), nil)
	if err != nil || a.Header.Get("Content-Type") != "application/x-tar" || !strings.Contains(a.Header.Get("Content-Disposition"), `filename="dir.tar"`) {
		t.Fatalf("download a tree: %v, %v", a.Header, err)
	}
	var got []string
	for r := tar.NewReader(bytes.NewReader(body)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %c %d %s", h.Name, h.Typeflag, h.Size, h.Linkname))
	}
	want := "dir-1/ 5 0 |dir-1/dir-2/ 5 0 |dir-1/dir-2/file-b 0 4 |empty/ 5 0 |file-a 1 0 dir-1/dir-2/file-b|link 2 0 dir-1|zero 0 0 "
	if strings.Join(got, "|") != want {
		t.Errorf("the tree came down as %q", got)
	}
	for _, cut := range []int{0, 512} { // an entry's end, and nothing behind it
		if a, body, _ := c.do(http.MethodPost, c.files("/upload", "path", "cut"), bytes.NewReader(b.Bytes()[:cut])); a.StatusCode != 400 || !bytes.Contains(body, []byte("cut off")) {
			t.Errorf("upload of an archive that is cut at %d: %d %s", cut, a.StatusCode, body)
		}
	}
	var evil bytes.Buffer
	w = tar.NewWriter(&evil)
	if err := w.WriteHeader(&tar.Header{Name: "moo", Typeflag: tar.TypeSymlink, Linkname: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteHeader(&tar.Header{Name: "moo/x", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	a, body, _ = c.do(http.MethodPost, c.files("/upload", "path", "evil"), &evil)
	if a.StatusCode != 400 || !bytes.Contains(body, []byte(`moo/x`)) || !bytes.Contains(body, []byte(`"archive"`)) {
		t.Errorf("upload of an archive that writes through its own link: %d %s", a.StatusCode, body)
	}
}

// TestResultsOfAnEndedSessionStay downloads them from its checkpoint.
func TestResultsOfAnEndedSessionStay(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	if a, b, _ := c.do(http.MethodPut, c.files("/content", "path", "out/result"), strings.NewReader("the result")); a.StatusCode != 200 {
		t.Fatalf("put: %d %s", a.StatusCode, b)
	}
	live, _, _ := c.do(http.MethodHead, c.files("/download", "path", "out/result"), nil)
	if status, b := c.json(http.MethodPost, c.path("/stop"), `{}`, nil); status != 200 {
		t.Fatalf("stop: %d %s", status, b)
	}
	a, b, err := c.do(http.MethodGet, c.files("/download", "path", "out/result"), nil, "Range", "bytes=4-", "If-Range", live.Header.Get("ETag"))
	if err != nil || a.StatusCode != 206 || string(b) != "result" || a.Header.Get("X-File-Source") != "checkpoint" {
		t.Errorf("download: %d %q, %v, %v", a.StatusCode, b, a.Header, err)
	}
	var read fileReply
	if status, b := c.json(http.MethodGet, c.files("", "path", "out/result", "encoding", "text"), "", &read); status != 200 || read.Content != "the result" || read.Source != "checkpoint" {
		t.Errorf("read: %d %s", status, b)
	}
	var page struct{ Files []fileReply }
	if status, b := c.json(http.MethodGet, c.files("/list", "recursive", "true"), "", &page); status != 200 || len(page.Files) != 2 || page.Files[1].Path != "/workspace/out/result" {
		t.Errorf("list: %d %s", status, b)
	}
	if _, b, err := c.do(http.MethodGet, c.files("/download", "path", "out"), nil); err != nil || !bytes.Contains(b, []byte("the result")) {
		t.Errorf("download the tree: %d bytes, %v", len(b), err)
	}
	c.refused(http.MethodPut, c.files("/content", "path", "out/late"), "x", 409, "")
	c.refused(http.MethodGet, c.files("", "path", "/etc/passwd"), "", 404, "")
}
