package client

import (
	"context"
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
	c, f, _ := several(t, []Option{WithPropagator(who{})},
		all(enqueued, enqueued, enqueued, enqueued))
	ctx := context.WithValue(t.Context(), whoKey{}, "ann")
	own := JSON(1)
	own.Headers = map[string]string{"x-who": "bob"}
	produce := func(ctx context.Context, queue string, m wire.NewMessage) error {
		_, err := c.Produce(ctx, queue, m)
		return err
	}
	enqueue := func(ctx context.Context, queue string, m wire.NewMessage) error {
		_, err := c.Enqueue(ctx, queue, m)
		return err
	}
	for i, put := range []struct {
		call            func(context.Context, string, wire.NewMessage) error
		ctx             context.Context
		m               wire.NewMessage
		header, message string
	}{
		{produce, ctx, JSON(1), "ann", ""}, {enqueue, ctx, JSON(1), "", "ann"},
		{enqueue, ctx, own, "", "bob"}, {enqueue, t.Context(), JSON(1), "", ""},
	} {
		require.NoError(t, put.call(put.ctx, "q", put.m))
		asked := f[0].asked()[i]
		var in wire.ProduceRequest
		require.NoError(t, wire.Unmarshal([]byte(asked.body), &in))
		assert.Equal(t, asked.header.Get("X-Who"), put.header)
		assert.Equal(t, in.Messages[0].Headers["x-who"], put.message)
	}
}
