package gateway

import (
	"net/http"
	"net/url"
	"strings"
)

// operation is what a request asks for.
type operation int

const (
	generate operation = iota
	countTokens
	listModels
)

// dialect is the form of an endpoint's requests and answers.
type dialect int

const (
	messages    dialect = iota // Anthropic
	responses                  // OpenAI
	completions                // OpenAI, chat
	content                    // Gemini
)

// endpoint is one that the gateway answers.
type endpoint struct {
	api     API
	op      operation
	dialect dialect
	path    string // behind the provider's base URL; for Gemini without the model
	model   string // of Gemini, where it is in the path
	verb    string // of Gemini
}

// fixed are the endpoints whose paths hold no model.
var fixed = map[string]endpoint{
	"POST /model/anthropic/v1/messages":              {api: Anthropic, dialect: messages, path: "/v1/messages"},
	"POST /model/anthropic/v1/messages/count_tokens": {api: Anthropic, op: countTokens, dialect: messages, path: "/v1/messages/count_tokens"},
	"POST /model/openai/v1/responses":                {api: OpenAI, dialect: responses, path: "/responses"},
	"POST /model/openai/v1/chat/completions":         {api: OpenAI, dialect: completions, path: "/chat/completions"},
	"GET /model/openai/v1/models":                    {api: OpenAI, op: listModels},
}

var geminiVerbs = map[string]operation{"generateContent": generate, "streamGenerateContent": generate, "countTokens": countTokens}

// endpointOf returns the endpoint at a path, which is still escaped. Where there is
// none it returns the API in whose form that is said.
func endpointOf(method, escaped string) (endpoint, bool) {
	if e, ok := fixed[method+" "+escaped]; ok {
		return e, true
	}
	const models = "/model/gemini/v1beta/models/"
	if rest, ok := strings.CutPrefix(escaped, models); ok && method == http.MethodPost {
		name, err := url.PathUnescape(rest)
		colon := strings.LastIndexByte(name, ':')
		if err == nil && colon > 0 {
			verb := name[colon+1:]
			if op, ok := geminiVerbs[verb]; ok {
				return endpoint{api: Gemini, op: op, dialect: content, path: "/v1beta/models/", model: name[:colon], verb: verb}, true
			}
		}
	}
	for _, api := range []API{Anthropic, Gemini} {
		if strings.HasPrefix(escaped, "/model/"+string(api)+"/") {
			return endpoint{api: api}, false
		}
	}
	return endpoint{api: OpenAI}, false
}

// address returns where the request goes.
func (e endpoint) address(rt route, query string) *url.URL {
	u := *rt.base
	u.RawPath = u.EscapedPath() + e.path
	u.Path += e.path
	if e.model != "" {
		u.RawPath += url.PathEscape(rt.upstream) + ":" + e.verb
		u.Path += rt.upstream + ":" + e.verb
	}
	u.RawQuery = harmless(query)
	return &u
}

// harmless returns the parts of a query that name no key and no other account.
func harmless(query string) string {
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(name)
		switch strings.ToLower(strings.TrimLeft(name, "$")) {
		case "key", "access_token", "oauth_token", "api_key", "api-key", "":
			continue
		}
		if err == nil && !strings.Contains(part, ";") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "&")
}
