package event

import (
	"slices"
	"strings"
)

// The headers of W3C Trace Context: in which trace a message was produced. They do not count for
// MaxHeaders, so that a message that is passed on with its headers has room for them.
const (
	Traceparent = "traceparent"
	Tracestate  = "tracestate"
)

// TraceOf returns the headers that are of trace context.
func TraceOf(headers []Header) (trace []Header) {
	for _, h := range headers {
		if h.Name == Traceparent || h.Name == Tracestate {
			trace = append(trace, h)
		}
	}
	return trace
}

// WithTrace returns a message's headers and, unless it has a traceparent of its own, the given
// ones of trace context, sorted. None are changed.
func WithTrace(headers, trace []Header) []Header {
	switch own := hasHeader(headers, Traceparent); {
	case own || len(trace) == 0:
		return headers
	case len(headers) == 0:
		return trace
	}
	out := slices.Clip(headers)
	for _, h := range trace {
		if !hasHeader(headers, h.Name) {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func hasHeader(headers []Header, name string) bool {
	return slices.ContainsFunc(headers, func(h Header) bool {
		return strings.EqualFold(h.Name, name)
	})
}
