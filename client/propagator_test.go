package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

type whoKey struct{}

// who carries a name in contexts.
type who struct{}

func (who) Inject(ctx context.Context, headers map[string]string) {
	if v, ok := ctx.Value(whoKey{}).(string); ok {
		headers["x-who"] = v
	}
}

func (who) Extract(ctx context.Context, headers map[string]string) context.Context {
	return context.WithValue(ctx, whoKey{}, headers["x-who"])
}

// TestPropagator: a call of its own carries its context in the request, an Enqueue in its message.
func TestPropagator(t *testing.T) {
	var header, message string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in wire.ProduceRequest
		assert.NoError(t, wire.Unmarshal(bodyOf(r), &in))
		header, message = r.Header.Get("X-Who"), in.Messages[0].Headers["x-who"]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"messages":[{"id":"1","status":"enqueued"}]}`))
	}))
	defer srv.Close()
	c, err := New(srv.URL, WithPropagator(who{}), WithToken("t"))
	require.NoError(t, err)
	defer c.Close()
	ctx := context.WithValue(t.Context(), whoKey{}, "ann")
	own := JSON(1)
	own.Headers = map[string]string{"x-who": "bob"}
	for _, put := range []struct {
		ctx             context.Context
		share           bool
		m               wire.NewMessage
		header, message string
	}{
		{ctx, false, JSON(1), "ann", ""}, {ctx, true, JSON(1), "", "ann"},
		{ctx, true, own, "", "bob"}, {t.Context(), true, JSON(1), "", ""},
	} {
		if put.share {
			_, err = c.Enqueue(put.ctx, "q", put.m)
		} else {
			_, err = c.Produce(put.ctx, "q", put.m)
		}
		require.NoError(t, err)
		assert.Equal(t, header, put.header)
		assert.Equal(t, message, put.message)
	}
}
