package event

import (
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestWithTrace(t *testing.T) {
	h := func(pairs ...string) (out []Header) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, Header{pairs[i], pairs[i+1]})
		}
		return out
	}
	trace := h(Traceparent, "p", Tracestate, "s")
	for _, c := range []struct{ own, trace, want []Header }{
		{h("a", "1"), nil, h("a", "1")},
		{nil, trace, trace},
		{h("a", "1", "z", "2"), trace, h("a", "1", Traceparent, "p", Tracestate, "s", "z", "2")},
		{h(Traceparent, "own"), trace, h(Traceparent, "own")},
		{h("Traceparent", "own"), trace, h("Traceparent", "own")},
		{h(Tracestate, "own"), trace, h(Traceparent, "p", Tracestate, "s")},
		{h("a", "1", "TraceState", "own"), trace[:1], h("a", "1", Traceparent, "p")},
		{h(Tracestate, "own"), nil, h(Tracestate, "own")},
	} {
		behind := append(c.own, Header{"behind", "it"}) // what a shared array may hold
		got := WithTrace(behind[:len(c.own)], c.trace)
		assert.DeepEqual(t, got, c.want)
		assert.Equal(t, behind[len(c.own)].Name, "behind")
	}
	own := h("a", "1")
	assert.Equal(t, testing.AllocsPerRun(100, func() { WithTrace(own, nil) }), 0)
}
