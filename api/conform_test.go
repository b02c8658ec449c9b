package api

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func conform(t *testing.T, r *http.Request) func(*httptest.ResponseRecorder) {
	return func(*httptest.ResponseRecorder) {}
}
