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
// ones of trace context, sorted. A tracestate of its own belongs to no traceparent then, and is
// replaced or left out. None are changed.
func WithTrace(headers, trace []Header) []Header {
	switch {
	case len(trace) == 0 || slices.ContainsFunc(headers, named(Traceparent)):
		return headers
	case len(headers) == 0:
		return trace
	}
	out := slices.DeleteFunc(slices.Clone(headers), named(Tracestate))
	out = append(out, trace...)
	slices.SortFunc(out, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func named(name string) func(Header) bool {
	return func(h Header) bool { return strings.EqualFold(h.Name, name) }
}
