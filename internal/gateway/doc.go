// Package gateway answers the calls of models that agents make from their
// sandboxes, with the installation's own keys.
//
// Purpose: an agent has to reach a model, and must not have what opens it. In its
// sandbox the model's base URL is one of
//
//	http://127.0.0.1:3128/model/anthropic
//	http://127.0.0.1:3128/model/openai/v1
//	http://127.0.0.1:3128/model/gemini
//
// and its key is a token that is worth nothing anywhere else. The gateway checks the
// token, finds the provider of the model that is named, sends the request on with the
// real key and streams the answer back as it comes. It counts and prices what was
// used, and says how each call has ended: agents hide failures, and some count wrong.
//
// Words: a provider is an account at somebody's API, a model the name that agents
// call it by, a binding what one sandbox may do. A call is one request that generates
// something; counting tokens and listing models are none.
//
// Invariants: a provider's key is in no answer, error, log line or [Call]. A body is
// passed on byte by byte, but for the model's name in requests. The name that was
// checked is the one that the provider reads: a request in which it could be
// understood in two ways is refused. Requests go to the provider's configured host
// only; redirects are not followed. Each call is reported exactly once, before the
// agent has the end of its answer, or right after when the end came without notice.
//
// Concurrency: a [Gateway] and its handlers may be used by many goroutines. They start
// none that outlives a request.
//
// Failure: what we refuse has the form in which the API itself would have refused it,
// so that agents show the reason. The provider's own errors are passed on with their
// status and headers, except where they say that our key is wrong. An answer that was
// cut is cut for the agent, too.
package gateway
