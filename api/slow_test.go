package api

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// slowBody is a body whose sender needs two seconds.
type slowBody struct{ io.Reader }

func (b slowBody) Read(p []byte) (int, error) {
	time.Sleep(2 * time.Second)
	return b.Reader.Read(p)
}

// TestSlowRequests: what takes long is logged, unless it only waits for work.
func TestSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		var lines bytes.Buffer
		h.s.log = slog.New(slog.NewTextHandler(&lines, nil))
		h.do("PUT", "/v1/queues/jobs", "{}", "Content-Type: application/json").want(201)
		<-h.poll(t.Context(), "jobs", `{"wait_ms":20000}`)
		follow, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		w := httptest.NewRecorder()
		h.h.ServeHTTP(w, requestOf(follow, "GET", "/v1/events?follow=true", "",
			"Accept: application/x-ndjson"))
		assert.Equal(t, w.Code, 200)
		assert.Equal(t, lines.String(), "", "lines of what was not slow")

		w = httptest.NewRecorder()
		r := requestOf(t.Context(), "PATCH", "/v1/queues/jobs", "", "Content-Type: application/json",
			"X-Request-Id: r1")
		r.Body, r.ContentLength = io.NopCloser(slowBody{strings.NewReader("{}")}), 2
		h.h.ServeHTTP(w, r)
		assert.Equal(t, w.Code, 200)
		assert.Contains(t, lines.String(), `msg="slow request" route="PATCH /v1/queues/{queue}" `+
			`queue=jobs status=200 took=`)
		assert.Contains(t, lines.String(), ` request_id=r1`)
	})
}
