package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// LeaseOptions says what to lease. The zero value takes up to 10 messages
// without waiting, for as long as the queue's policy says.
type LeaseOptions struct {
	Max    int           // 1 to 1000; 0 is 10
	Wait   time.Duration // how long to wait while there is nothing; at most a minute
	Lease  time.Duration // 100 ms to 12 h; 0 is the queue's policy
	Worker string        // who asks, for people who look
	Kinds  []string      // empty: all
}

func (o *LeaseOptions) request() wire.LeaseRequest {
	r := wire.LeaseRequest{
		WaitMS: o.Wait.Milliseconds(), LeaseMS: o.Lease.Milliseconds(),
		Worker: o.Worker, Kinds: o.Kinds,
	}
	if o.Max > 0 {
		n := int64(o.Max)
		r.MaxMessages = &n
	}
	return r
}

// Lease takes messages from a queue; none came in time if it returns none.
//
// A lease is not repeated by itself once it may have reached the server: what
// it leased is nobody's until the lease runs out.
func (c *Client) Lease(ctx context.Context, queue string, o LeaseOptions) ([]wire.LeasedMessage, error) {
	return c.lease(ctx, queuePath(queue, "/lease"), o.request())
}

// LeaseFrom is Lease from several queues, tried in their order.
func (c *Client) LeaseFrom(ctx context.Context, queues []string, o LeaseOptions) ([]wire.LeasedMessage, error) {
	r := o.request()
	r.Queues = queues
	return c.lease(ctx, "/v1/lease", r)
}

func (c *Client) lease(ctx context.Context, path string, r wire.LeaseRequest) ([]wire.LeasedMessage, error) {
	var out wire.LeaseResponse
	_, err := c.send(ctx, &call{method: http.MethodPost, path: path, body: &r, lease: true, query: url.Values{},
		patience: time.Duration(r.WaitMS) * time.Millisecond}, &out, nil)
	return out.Messages, err
}
