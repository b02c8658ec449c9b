package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/qlogd/qlogd/api/wire"
)

// Settle calls answer one by one and in order: look at each Status. In their
// many-at-once form a lost lease is an item with status "rejected"; in the
// …One form, which needs no queue, it is ErrLeaseLost.

// Ack ends leases with success.
func (c *Client) Ack(ctx context.Context, queue string, leases ...string) ([]wire.SettleResult, error) {
	return c.settle(ctx, queue, "ack", &wire.AckRequest{LeaseIDs: leases}, nil)
}

// AckAll is Ack with a result (JSON, kept for duplicates of the messages).
func (c *Client) AckAll(ctx context.Context, queue string, r wire.AckRequest, opts ...CallOption) ([]wire.SettleResult, error) {
	return c.settle(ctx, queue, "ack", &r, opts)
}

// AckAndProduce acks leases and enqueues messages (r.Produce), into any queues, in
// one atomic step: where one lease is lost nothing happens (ErrLeaseLost).
func (c *Client) AckAndProduce(ctx context.Context, queue string, r wire.AckRequest, opts ...CallOption) (*wire.TransactionResponse, error) {
	out := &wire.TransactionResponse{}
	_, err := c.send(ctx, &call{method: http.MethodPost, path: queuePath(queue, "/ack"), body: &r, query: url.Values{}}, out, opts)
	return out, err
}

// Retry gives messages back for another try.
func (c *Client) Retry(ctx context.Context, queue string, items []wire.RetryItem, opts ...CallOption) ([]wire.SettleResult, error) {
	return c.settle(ctx, queue, "retry", &wire.RetryRequest{Items: items}, opts)
}

// DeadLetter gives messages up.
func (c *Client) DeadLetter(ctx context.Context, queue string, items []wire.DeadLetterItem, opts ...CallOption) ([]wire.SettleResult, error) {
	return c.settle(ctx, queue, "dead-letter", &wire.DeadLetterRequest{Items: items}, opts)
}

// Extend lets leases end later, counted from now.
func (c *Client) Extend(ctx context.Context, queue string, items []wire.ExtendItem, opts ...CallOption) ([]wire.SettleResult, error) {
	return c.settle(ctx, queue, "extend", &wire.ExtendRequest{Items: items}, opts)
}

// Release gives messages back at once, without counting the attempt.
func (c *Client) Release(ctx context.Context, queue string, leases ...string) ([]wire.SettleResult, error) {
	return c.settle(ctx, queue, "release", &wire.ReleaseRequest{LeaseIDs: leases}, nil)
}

func (c *Client) settle(ctx context.Context, queue, verb string, body any, opts []CallOption) ([]wire.SettleResult, error) {
	var out wire.SettleResponse
	q := &call{method: http.MethodPost, path: queuePath(queue, "/"+verb), body: body, settle: true, query: url.Values{}}
	_, err := c.send(ctx, q, &out, opts)
	return out.Results, err
}

// AckOne, RetryOne, DeadLetterOne, ExtendOne and ReleaseOne settle one lease.

// AckOne ends a lease with success.
func (c *Client) AckOne(ctx context.Context, lease string, r wire.AckOne, opts ...CallOption) (*wire.SettleResult, error) {
	return c.settleOne(ctx, lease, "ack", &r, opts)
}

// RetryOne gives a message back for another try.
func (c *Client) RetryOne(ctx context.Context, lease string, r wire.RetryOne, opts ...CallOption) (*wire.SettleResult, error) {
	return c.settleOne(ctx, lease, "retry", &r, opts)
}

// DeadLetterOne gives a message up.
func (c *Client) DeadLetterOne(ctx context.Context, lease string, r wire.DeadLetterOne, opts ...CallOption) (*wire.SettleResult, error) {
	return c.settleOne(ctx, lease, "dead-letter", &r, opts)
}

// ExtendOne lets a lease end later.
func (c *Client) ExtendOne(ctx context.Context, lease string, r wire.ExtendOne, opts ...CallOption) (*wire.SettleResult, error) {
	return c.settleOne(ctx, lease, "extend", &r, opts)
}

// ReleaseOne gives a message back at once.
func (c *Client) ReleaseOne(ctx context.Context, lease string, opts ...CallOption) (*wire.SettleResult, error) {
	return c.settleOne(ctx, lease, "release", nil, opts)
}

func (c *Client) settleOne(ctx context.Context, lease, verb string, body any, opts []CallOption) (*wire.SettleResult, error) {
	out := &wire.SettleResult{}
	q := &call{method: http.MethodPost, path: "/v1/leases/" + url.PathEscape(lease) + "/" + verb, body: body, settle: true, query: url.Values{}}
	_, err := c.send(ctx, q, out, opts)
	return out, err
}

// Transaction settles and produces in one atomic step over any queues: where
// one lease is lost nothing happens (ErrLeaseLost, with Field and Index).
func (c *Client) Transaction(ctx context.Context, t wire.TransactionRequest, opts ...CallOption) (*wire.TransactionResponse, error) {
	out := &wire.TransactionResponse{}
	_, err := c.send(ctx, &call{method: http.MethodPost, path: "/v1/transactions", body: &t, query: url.Values{}}, out, opts)
	return out, err
}
