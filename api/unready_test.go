package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestUnready(t *testing.T) {
	h := Unready("waiting for 1 more of 3 nodes")
	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/healthz", 200, `"ok"`},
		{"GET", "/readyz", 503, "waiting for 1 more of 3 nodes"},
		{"POST", "/v1/queues/q/messages", 503, `"outcome":"not_applied"`},
		{"GET", "/problems/no_leader", 200, "Try again"},
		{"GET", "/v1/queues", 503, `"code":"no_leader"`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, http.NoBody))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
		if c.status == 503 && w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", c.path)
		}
	}
}
