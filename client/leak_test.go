package client

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
	"go.uber.org/goleak"
)

// Nothing is left running of a worker that has run and a client that is closed.
func TestNothingIsLeftAfterClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch path.Base(r.URL.Path) {
		case "messages":
			n := strings.Count(string(body), `"payload"`)
			one := `,{"id":"01A","status":"enqueued"}`
			fmt.Fprintf(w, `{"messages":[%s]}`, strings.Repeat(one, n)[1:])
		case "lease":
			fmt.Fprint(w, `{"messages":[{"id":"01A","lease_id":"01B","queue":"q","payload":1}]}`)
		default:
			n := strings.Count(string(body), "01B")
			one := `,{"lease_id":"01B","status":"retried"}`
			fmt.Fprintf(w, `{"results":[%s]}`, strings.Repeat(one, n)[1:])
		}
	}))
	defer srv.Close()
	c, err := New(srv.URL)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := c.Enqueue(t.Context(), "q", JSON(1)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	n := make(chan struct{}, 1)
	w := NewWorker(c, "q", func(context.Context, *Message) error {
		select {
		case n <- struct{}{}:
			cancel()
		default:
		}
		return fmt.Errorf("no")
	}, WorkerOptions{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, w.Run(ctx))
	c.Close()
	srv.Close()
	goleak.VerifyNone(t, before)
}
