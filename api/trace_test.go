package api

import (
	"net/http"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// TestNoTraceCostsNothing: a request without trace context allocates nothing for it.
func TestNoTraceCostsNothing(t *testing.T) {
	q := &request{Request: &http.Request{Header: http.Header{"Accept": {"*/*"}}}}
	assert.Equal(t, testing.AllocsPerRun(100, func() {
		q.traceContext()
		q.link(nil)
	}), 0)
}
