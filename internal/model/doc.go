// Package model asks language models for replies, over the three HTTP APIs that
// nearly every server of models speaks: Anthropic Messages, OpenAI Responses and
// OpenAI chat completions.
//
// Words: an item is one element of the list that an API takes as the
// conversation (a message, a reasoning item, a function call), in that API's own
// JSON; a reply is what one request gave; a call is a tool call in a reply, a
// result its answer.
//
// Invariants: items are kept as raw JSON, each on one line, and are sent again
// byte for byte, so that signatures, encrypted reasoning and fields that this
// package does not know survive. A request's body is a function of endpoint and
// request alone. A reply counts only when the API has said that it is complete:
// a stream that ends before that is [ErrCut], whatever had come. The key is in
// no error.
//
// Concurrency: an Endpoint may be used by several goroutines; a delta function
// is called from the goroutine that called Ask, and a slow one slows the stream.
//
// Failure: an answer with an error status, or an error inside a stream, is a
// [*StatusError]. What a server sends is bounded everywhere.
package model
