package api

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sojourn-dev/sojourn"
)

// Lasting returns a context for a call that lasts: it ends with the request, when
// the key is revoked, here or by another process, and when the server stops. end
// waits for what watches.
func Lasting(ctx context.Context) (lasting context.Context, end func()) {
	rq := requestOf(ctx)
	lasting, cancel := context.WithCancelCause(ctx)
	revoked := rq.service.c.Auth.Watch(rq.caller.Key)
	stops := []func() bool{
		context.AfterFunc(revoked, func() { cancel(errRevoked) }),
		context.AfterFunc(rq.service.c.Stop, func() { cancel(errStopping) }),
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(rq.service.c.Heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-lasting.Done():
				return
			}
			if err := rq.service.c.Auth.Valid(lasting, rq.caller.Key); sojourn.CodeOf(err) == sojourn.CodeUnauthenticated {
				cancel(errRevoked)
			}
		}
	})
	return lasting, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
		watching.Wait()
	}
}

// Told puts an error into the words of the contract of the request, for an answer
// that has begun. What is ours is logged.
func Told(ctx context.Context, err error) (code, message string) {
	f := requestOf(ctx).service.reported(ctx, Ended(err))
	return f.problem.Code, f.problem.Message
}

// Ended gives the end of a [Lasting] context its code; another error stays.
func Ended(err error) error {
	switch {
	case errors.Is(err, errRevoked):
		return sojourn.Errorf(sojourn.CodeUnauthenticated, "The key was revoked.")
	case errors.Is(err, errStopping):
		return sojourn.Errorf(sojourn.CodeUnavailable, "The server is stopping.")
	}
	return err
}

// AnyType is the media type of an [Operation]'s Upload that takes bytes of any
// kind, whatever the request calls them.
const AnyType = "*/*"

// checkUpload refuses a body that says it is something else.
func checkUpload(r *http.Request, want string) error {
	kind := r.Header.Get("Content-Type")
	if kind == "" || want == AnyType {
		return nil
	}
	if media, _, err := mime.ParseMediaType(kind); err != nil || media != want {
		return &refusal{status: http.StatusUnsupportedMediaType, err: sojourn.Errorf(sojourn.CodeInvalid,
			"The Content-Type of the request must be %s.", want)}
	}
	return nil
}

// Upload returns the body of a request whose operation takes one as it comes. A
// sender that sends nothing for a while is given up.
func Upload(ctx context.Context) io.Reader {
	rq := requestOf(ctx)
	return &upload{body: rq.http.Body, conn: http.NewResponseController(rq.writer)}
}

type upload struct {
	body  io.Reader
	conn  *http.ResponseController
	armed time.Time
}

// uploadPatience is how long a sender may be silent.
const uploadPatience = time.Minute

func (u *upload) Read(p []byte) (int, error) {
	if now := time.Now(); now.Sub(u.armed) > time.Second {
		u.armed = now
		if err := u.conn.SetReadDeadline(now.Add(uploadPatience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return 0, err
		}
	}
	return u.body.Read(p)
}

// Download answers with a body of the media type kind that is as long as it gets.
// Each write must be taken by the reader in time, as with [Stream].
func Download(ctx context.Context, w http.ResponseWriter, kind string) io.Writer {
	rq := requestOf(ctx)
	w.Header().Set("Content-Type", kind)
	if rq.http.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // a write deadline outlives the request
	}
	w.WriteHeader(http.StatusOK)
	return &download{stream{w: w, conn: http.NewResponseController(w), rq: rq}}
}

type download struct{ stream }

func (d *download) Write(p []byte) (int, error) {
	if err := d.write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CheckUpgrade refuses a request that does not ask for a WebSocket, or that a
// page of another site makes. It is called before anything is begun.
func CheckUpgrade(r *http.Request) error {
	if r.Method != http.MethodGet || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return &refusal{status: http.StatusUpgradeRequired, err: sojourn.Errorf(sojourn.CodeInvalid, "This call is a WebSocket.")}
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return sojourn.Errorf(sojourn.CodeForbidden, "A page of another site may not make this call.")
		}
	}
	return nil
}

// MaxSocketFrame bounds a frame that a caller sends.
const MaxSocketFrame = 1 << 20

// Upgrade makes a WebSocket of a request that [CheckUpgrade] has passed. It has
// answered when it returns an error.
func Upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(MaxSocketFrame)
	return conn, nil
}

// SocketStatus is the close status for an error that ends a WebSocket.
func SocketStatus(err error) websocket.StatusCode {
	switch sojourn.CodeOf(Ended(err)) {
	case sojourn.CodeUnauthenticated, sojourn.CodeForbidden, sojourn.CodeInvalid, sojourn.CodeTooLarge:
		return websocket.StatusPolicyViolation
	case sojourn.CodeUnavailable:
		return websocket.StatusGoingAway
	default:
		return websocket.StatusInternalError
	}
}

// CloseSocket closes a WebSocket that ends with an error, and says why. lasting
// is the context that the call had; when it is what ended, its cause is why.
func CloseSocket(request, lasting context.Context, conn *websocket.Conn, err error) {
	if cause := context.Cause(lasting); cause != nil {
		err = cause
	}
	code, message := Told(request, err)
	const most = 120 // a close frame holds 123 bytes
	reason := code + ": " + message
	conn.Close(SocketStatus(err), reason[:min(len(reason), most)]) // it is over either way
}

// The pace of pings; each pause is drawn anew so that connections do not ping
// together.
const (
	socketPing     = 20 * time.Second
	socketPingWait = time.Minute
)

// KeepAlive pings until ctx ends, and drops the connection when an answer stays
// out. Somebody must be reading from it.
func KeepAlive(ctx context.Context, conn *websocket.Conn) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		t.Reset(socketPing/2 + rand.N(socketPing))
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		wait, cancel := context.WithTimeout(ctx, socketPingWait)
		err := conn.Ping(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			_ = conn.CloseNow() // whoever reads is told
			return
		}
	}
}
