package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sojourn-dev/sojourn"
)

// Content answers with a body of known size, or with the parts of it that the
// request asks for. The caller has set the headers that say what it is. Each write
// must be taken by the reader in time, as with [Stream].
func Content(w http.ResponseWriter, r *http.Request, body io.ReadSeeker) {
	rq := requestOf(r.Context())
	s := &paced{stream: stream{w: w, conn: http.NewResponseController(w), rq: rq}}
	if size, err := body.Seek(0, io.SeekEnd); err == nil { // else it fails again where that is answered
		r = plainRange(r, size)
	}
	http.ServeContent(s, r, "", time.Time{}, body)
	if !s.armed.IsZero() {
		// The connection goes on to the next request without the deadline. One that
		// cannot is closed by whoever reads from it next.
		_ = s.conn.SetWriteDeadline(time.Time{})
	}
}

// paced is a ResponseWriter whose writes must be taken in time. A range that there
// is not is answered in the contract's words.
type paced struct {
	stream
	refused bool
}

func (p *paced) Header() http.Header { return p.w.Header() }

func (p *paced) WriteHeader(status int) {
	if p.refused = status == http.StatusRequestedRangeNotSatisfiable; !p.refused {
		p.w.WriteHeader(status)
		return
	}
	p.rq.service.fail(p.w, p.rq.http, &refusal{status: status, err: sojourn.Errorf(sojourn.CodeInvalid, "Range: there are no such bytes.")})
}

func (p *paced) Write(b []byte) (int, error) {
	if p.refused {
		return len(b), nil
	}
	if err := p.write(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// pacedStep is how much of a body is read at once: each reading may be a call to
// where the bytes are, and each write is one to the kernel.
const pacedStep = 512 << 10

var pacedBuffers = sync.Pool{New: func() any { return new([pacedStep]byte) }}

// ReadFrom implements [io.ReaderFrom], with larger steps than [io.Copy] would take. The
// bytes of a [Stretch] are sent by the kernel where it can.
func (p *paced) ReadFrom(body io.Reader) (n int64, err error) {
	if l, ok := body.(*io.LimitedReader); ok && !p.refused {
		if s, ok := l.R.(*Stretch); ok {
			return p.send(s, l.N)
		}
	}
	buffer := pacedBuffers.Get().(*[pacedStep]byte)
	defer pacedBuffers.Put(buffer)
	for {
		got, err := body.Read(buffer[:])
		if got > 0 {
			if _, err := p.Write(buffer[:got]); err != nil {
				return n, err
			}
			n += int64(got)
		}
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// send sends the next n bytes of a stretch, or fewer when its file is shorter.
func (p *paced) send(s *Stretch, n int64) (sent int64, err error) {
	if _, err := s.file.Seek(s.from+s.at, io.SeekStart); err != nil {
		return 0, err
	}
	for sent < n {
		if err := p.arm(); err != nil {
			return sent, err
		}
		step, err := io.Copy(p.w, io.LimitReader(s.file, min(n-sent, writeStep)))
		sent += step
		s.at += step
		if err != nil || step == 0 {
			return sent, err
		}
	}
	return sent, nil
}

// Stretch is a part of a file, as a body for [Content]. Nobody else may use the offset of
// the file meanwhile.
type Stretch struct {
	file           *os.File
	from, size, at int64
}

// NewStretch returns the part of a file that begins at an offset and has size bytes. All
// of them must be there, and stay as they are.
func NewStretch(file *os.File, from, size int64) *Stretch {
	return &Stretch{file: file, from: from, size: size}
}

// Read implements [io.Reader].
func (s *Stretch) Read(b []byte) (int, error) {
	left := s.size - s.at
	if left <= 0 {
		return 0, io.EOF
	}
	n, err := s.file.ReadAt(b[:min(int64(len(b)), left)], s.from+s.at)
	s.at += int64(n)
	return n, err
}

// Seek implements [io.Seeker].
func (s *Stretch) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	s.at = offset
	return offset, nil
}
