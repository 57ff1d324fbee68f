package api

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// parcel has names of its own, and some that are its sender's.
type parcel struct {
	WorkingDir string            `json:"workingDir,omitempty"`
	MaxBytes   *int64            `json:"maxBytes,omitempty"`
	EnvVars    map[string]string `json:"envVars,omitempty"`
	Raw        json.RawMessage   `json:"raw,omitempty"`
	Stops      []stop            `json:"stops,omitempty"`
	ByName     map[string]stop   `json:"byName,omitempty"`
	Inner      *parcel           `json:"inner,omitempty"`
	Weight
}

type stop struct {
	PostCode string `json:"postCode"`
}

// Weight is embedded: its names are those of its parcel.
type Weight struct {
	NetGrams int `json:"netGrams,omitempty"`
}

type parcelInput struct {
	MinCount int `query:"minCount" default:"1"`
	Body     parcel
}

type parcelOutput struct {
	MinCount int `header:"Min-Count"`
	Body     parcel
}

// spelled serves one operation under a contract that takes both spellings.
func spelled(t *testing.T) *httptest.Server {
	server, _ := serve(t, Config{}, func(s *Service) {
		s.c.Contract.Snake = true
		Register(s, Operation{ID: "send", Method: "POST", Path: "/parcels", Scope: "write"},
			func(_ context.Context, in *parcelInput) (*parcelOutput, error) {
				return &parcelOutput{MinCount: in.MinCount, Body: in.Body}, nil
			})
	})
	return server
}

func TestNamesAreReadInBothSpellings(t *testing.T) {
	server := spelled(t)
	const camel = `{"workingDir":"/w","maxBytes":9007199254740993,"envVars":{"MY_VAR":"a_b","myVar":"c"},"raw":{"some_key":{"other_key":[1.50]}},` +
		`"stops":[{"postCode":"1_a"}],"byName":{"left_side":{"postCode":"2"}},"inner":{"workingDir":"\"{x_y\\"},"netGrams":7}`
	snake := strings.NewReplacer("workingDir", "working_dir", "maxBytes", "max_bytes", "envVars", "env_vars",
		"postCode", "post_code", "byName", "by_name", "netGrams", "net_grams").Replace(camel)
	for name, c := range map[string]struct{ sent, accept, want string }{
		"camel in":  {camel, "", camel},
		"snake in":  {snake, "", camel},
		"snake out": {camel, "snake", snake},
		"both":      {snake, "Snake", snake},
	} {
		a := call(t, server, "POST", "/parcels", c.sent, "Accept-Case", c.accept)
		if got := strings.TrimSpace(a.body); a.status != 200 || got != c.want {
			t.Errorf("%s: %d\n got %s\nwant %s", name, a.status, got, c.want)
		}
	}
}

func TestParametersAreReadInBothSpellings(t *testing.T) {
	server := spelled(t)
	for path, want := range map[string]string{
		"/parcels": "1", "/parcels?minCount=3": "3", "/parcels?min_count=4": "4", "/parcels?min%5Fcount=5": "5",
	} {
		if a := call(t, server, "POST", path, `{}`); a.header.Get("Min-Count") != want {
			t.Errorf("%s: %d %s, want minCount %s", path, a.status, a.body, want)
		}
	}
	if a := call(t, server, "POST", "/parcels?min_count=1&minCount=1", `{}`); a.err.Code != "invalid" || !strings.Contains(a.err.Message, "two spellings") {
		t.Errorf("both: %d %s, want a refusal", a.status, a.body)
	}
	if a := call(t, server, "POST", "/parcels?max_count=1", `{}`); a.err.Code != "invalid" || !strings.Contains(a.err.Message, "max_count") {
		t.Errorf("an unknown one: %d %s, want its name", a.status, a.body)
	}
}

func TestOneNameInTwoSpellingsIsRefused(t *testing.T) {
	server := spelled(t)
	for _, body := range []string{`{"workingDir":"a","working_dir":"b"}`, `{"stops":[{"postCode":"1","post_code":"1"}]}`} {
		if a := call(t, server, "POST", "/parcels", body); a.err.Code != "invalid" || !strings.Contains(a.err.Message, "twice") {
			t.Errorf("%s: %d %s, want a refusal", body, a.status, a.body)
		}
	}
	if a := call(t, server, "POST", "/parcels", `{"working_directory":"a"}`); !strings.Contains(a.err.Message, "working_directory") {
		t.Errorf("an unknown name: %d %s, want that name", a.status, a.body)
	}
	if a := call(t, server, "POST", "/parcels", `{"working_dir":`); a.err.Code != "invalid" || !strings.Contains(a.err.Message, "JSON") {
		t.Errorf("no JSON: %d %s, want it refused as such", a.status, a.body)
	}
}

func TestErrorsAreSpelledToo(t *testing.T) {
	server := spelled(t)
	for _, path := range []string{"/parcels?x=1", "/nowhere"} {
		a := call(t, server, "POST", path, `{}`, "Accept-Case", "snake")
		if !strings.Contains(a.body, `"request_id"`) || strings.Contains(a.body, `"requestId"`) {
			t.Errorf("%s: %s, want names in snake_case", path, a.body)
		}
	}
}

func FuzzRespellingThereAndBack(f *testing.F) {
	f.Add(`{"workingDir":"x","raw":{"a_b":[{"cD":1}]},"stops":[{"postCode":"\"\\"}],"\u0061Bc":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if _, deep := deeperThan([]byte(text), MaxBodyDepth); deep || !json.Valid([]byte(text)) {
			t.Skip("no body that would be read")
		}
		n := namesOf(reflect.TypeFor[parcel]())
		snake := respell([]byte(text), n, (*names).toSnake)
		if !json.Valid(snake) {
			t.Fatalf("%q became %q", text, snake)
		}
		back := respell(snake, n, (*names).toCamel)
		if again := respell(respell(back, n, (*names).toSnake), n, (*names).toCamel); string(again) != string(back) {
			t.Errorf("%q came back as %q, then as %q", text, back, again)
		}
	})
}
