package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/qlogd/qlogd/api/wire"
)

// Definitions returns all queues and webhooks, as Define takes them.
func (c *Client) Definitions(ctx context.Context, opts ...CallOption) (*wire.Definitions, error) {
	out := &wire.Definitions{}
	return out, c.do(ctx, http.MethodGet, "/v1/definitions", nil, out, opts...)
}

// Define puts queues and webhooks, all or none, and tells what that changed. With
// dryRun nothing is done, and what would change is told. What is wrong with them is
// told whole: see wire.Problem.Errors of an *Error.
func (c *Client) Define(ctx context.Context, d wire.DefinitionsRequest, dryRun bool, opts ...CallOption) ([]wire.DefinitionChange, error) {
	q := &call{method: http.MethodPut, path: "/v1/definitions", body: d, query: url.Values{}}
	if dryRun {
		q.query.Set("dry_run", "true")
	}
	var out wire.DefinitionChanges
	_, err := c.send(ctx, q, &out, opts)
	return out.Changes, err
}
