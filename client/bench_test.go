package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// BenchmarkEnqueue measures what the client spends on a message of 1 KiB that 64 goroutines
// enqueue. The server's part is small: it counts messages and answers.
func BenchmarkEnqueue(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answer := bytes.Repeat([]byte(`{"id":"01J00000000000000000000000","status":"enqueued"},`),
			bytes.Count(body, []byte("payload")))
		fmt.Fprintf(w, `{"messages":[%s]}`, bytes.TrimSuffix(answer, []byte(",")))
	}))
	defer srv.Close()
	c, err := New(srv.URL)
	require.NoError(b, err)
	defer c.Close()
	payload := bytes.Repeat([]byte("q"), 1<<10)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Enqueue(b.Context(), "q", Bytes(payload, "")); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
