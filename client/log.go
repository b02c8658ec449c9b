package client

import (
	"context"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
)

// LogHead returns the index and the chain of the event log's newest block, or
// with At those of an instant. Kept elsewhere, they show whether the log was
// cut or rewritten since.
func (c *Client) LogHead(ctx context.Context, opts ...CallOption) (*wire.LogHead, error) {
	out := &wire.LogHead{}
	return out, c.do(ctx, http.MethodGet, "/v1/log/head", nil, out, opts...)
}

// LogSegments returns the files of the event log of the node that is asked.
func (c *Client) LogSegments(ctx context.Context, opts ...CallOption) (*wire.LogSegments, error) {
	out := &wire.LogSegments{}
	return out, c.do(ctx, http.MethodGet, "/v1/log/segments", nil, out, opts...)
}
