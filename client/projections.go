package client

import (
	"context"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
)

// Projections tells how far the read models of the node that is asked have come.
func (c *Client) Projections(ctx context.Context, opts ...CallOption) (*wire.Projections, error) {
	out := &wire.Projections{}
	return out, c.do(ctx, http.MethodGet, "/v1/projections", nil, out, opts...)
}

// RebuildProjections has the node that is asked count its read models anew, in
// the background.
func (c *Client) RebuildProjections(ctx context.Context, opts ...CallOption) (*wire.Projections, error) {
	out := &wire.Projections{}
	return out, c.do(ctx, http.MethodPost, "/v1/projections/rebuild", nil, out, opts...)
}
