package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sojourn-dev/sojourn"
)

// Authenticator says who is calling.
type Authenticator interface {
	// Authenticate reads the value of an Authorization header.
	Authenticate(ctx context.Context, header string) (sojourn.Principal, error)
	// Watch returns a context that ends when the key is revoked here.
	Watch(sojourn.KeyID) context.Context
	// Valid returns unauthenticated once the key was revoked anywhere.
	Valid(context.Context, sojourn.KeyID) error
}

// Settings are what an operator may set. The zero value works.
type Settings struct {
	Rate Rate
	// Heartbeat is how often a quiet stream shows that it lives; 0 means 15 s.
	Heartbeat time.Duration
	// Stop ends when the server begins to stop, and with it every stream; nil
	// means never.
	Stop context.Context
	Log  *slog.Logger // nil discards
}

// Config is what a [Service] is made from.
type Config struct {
	Settings
	Contract Contract
	Auth     Authenticator
	// Title, Version and Description introduce the OpenAPI document.
	Title, Version, Description string
	// Server is the version of the server. Admitted callers see it in the
	// Sojourn-Version header; "" sends none.
	Server string
}

// Service serves the operations of one contract.
type Service struct {
	c     Config
	mux   *http.ServeMux
	api   huma.API
	limit *limiter
}

// NewService makes a service without operations; add them with [Register].
func NewService(c Config) *Service {
	hooks()
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Stop == nil {
		c.Stop = context.Background()
	}
	s := &Service{c: c, mux: http.NewServeMux(), limit: newLimiter(c.Rate)}
	format := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: Decode}
	s.api = humago.New(s.mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info:    &huma.Info{Title: c.Title, Version: c.Version, Description: c.Description},
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{"key": c.Contract.security()},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": format},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{answered},
	})
	return s
}

// Operation describes one call of a contract.
type Operation struct {
	ID      string // in the OpenAPI document
	Method  string
	Path    string
	Summary string
	// Description says more than the summary; may be empty.
	Description string
	Status      int // of success; 0 means 200
	// Scope is what an app key needs. With "" only admin keys are admitted.
	Scope sojourn.Scope
	// Page is a value of the type that is answered as JSON by an operation that
	// may also answer with an event stream; nil for every other operation.
	Page any
	// Upload is the media type of a body that the operation takes as it comes, of
	// any size; see [Upload] and [AnyType]. Download is that of an answer of any size. Socket
	// says that the operation becomes a WebSocket. See [Download], [Upgrade].
	Upload, Download string
	Socket           bool
}

// Register adds an operation. A handler's error is answered by the contract's
// table.
func Register[I, O any](s *Service, op Operation, handle func(context.Context, *I) (*O, error)) {
	h := huma.Operation{
		OperationID: op.ID, Method: op.Method, Path: op.Path, Summary: op.Summary, Description: op.Description,
		DefaultStatus: cmp.Or(op.Status, http.StatusOK), MaxBodyBytes: MaxBodyBytes + 1, BodyReadTimeout: time.Minute,
		Security:  []map[string][]string{{"key": {}}},
		Responses: map[string]*huma.Response{"default": s.errorResponse()},
	}
	if op.Scope != "" {
		h.Security[0]["key"] = []string{string(op.Scope)}
	}
	if op.Page != nil {
		h.Responses["200"] = s.streamResponse(op.Page)
	}
	op.document(&h)
	once := singleParameters(reflect.TypeFor[I]())
	h.Middlewares = huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		err := s.admit(w, r, op, op.Upload == "" && ctx.Operation().RequestBody != nil)
		if err == nil && s.c.Contract.Snake {
			err = snakeInput(r, reflect.TypeFor[I]())
		}
		if err == nil {
			err = checkOnce(r, once)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		next(ctx)
	}}
	huma.Register(s.api, h, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			return nil, s.reported(ctx, err)
		}
		return out, nil
	})
}
