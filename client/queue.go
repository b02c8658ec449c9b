package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/qlogd/qlogd/api/wire"
)

// PutQueue makes a queue, or replaces its policy where there is one. created
// tells which. The zero update is the default policy.
func (c *Client) PutQueue(ctx context.Context, name string, policy wire.PolicyUpdate, opts ...CallOption) (q *wire.Queue, created bool, err error) {
	q = &wire.Queue{}
	status, err := c.send(ctx, &call{method: http.MethodPut, path: queuePath(name, ""), body: policy, query: url.Values{}}, q, opts)
	return q, status == http.StatusCreated, err
}

// UpdateQueue changes the fields of a queue's policy that are set.
func (c *Client) UpdateQueue(ctx context.Context, name string, policy wire.PolicyUpdate, opts ...CallOption) (*wire.Queue, error) {
	q := &wire.Queue{}
	return q, c.do(ctx, http.MethodPatch, queuePath(name, ""), policy, q, opts...)
}

// Queue returns a queue with its policy and counts.
func (c *Client) Queue(ctx context.Context, name string, opts ...CallOption) (*wire.Queue, error) {
	q := &wire.Queue{}
	return q, c.do(ctx, http.MethodGet, queuePath(name, ""), nil, q, opts...)
}

// QueueStats returns what is counted of a queue by the node that is asked, minutes
// of so many minutes back; 0 is the server's default.
func (c *Client) QueueStats(ctx context.Context, name string, minutes int, opts ...CallOption) (*wire.QueueStats, error) {
	query := url.Values{}
	if minutes > 0 {
		query.Set("minutes", strconv.Itoa(minutes))
	}
	out := &wire.QueueStats{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: queuePath(name, "/stats"), query: query}, out, opts)
	return out, err
}

// Queues returns all queues of a namespace; "" is all there are.
func (c *Client) Queues(ctx context.Context, namespace string, opts ...CallOption) ([]wire.Queue, error) {
	var out []wire.Queue
	for cursor := ""; ; {
		query := url.Values{}
		if namespace != "" {
			query.Set("namespace", namespace)
		}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page wire.QueueList
		if _, err := c.send(ctx, &call{method: http.MethodGet, path: "/v1/queues", query: query}, &page, opts); err != nil {
			return nil, err
		}
		out = append(out, page.Queues...)
		if cursor = page.NextCursor; cursor == "" {
			return out, nil
		}
	}
}

// DeleteQueue deletes a queue; with force, with all that it holds.
func (c *Client) DeleteQueue(ctx context.Context, name string, force bool, opts ...CallOption) error {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	_, err := c.send(ctx, &call{method: http.MethodDelete, path: queuePath(name, ""), query: query}, nil, opts)
	return err
}

// PauseQueue stops leases from a queue; produce goes on.
func (c *Client) PauseQueue(ctx context.Context, name string, opts ...CallOption) error {
	return c.do(ctx, http.MethodPost, queuePath(name, "/pause"), nil, nil, opts...)
}

// ResumeQueue undoes PauseQueue.
func (c *Client) ResumeQueue(ctx context.Context, name string, opts ...CallOption) error {
	return c.do(ctx, http.MethodPost, queuePath(name, "/resume"), nil, nil, opts...)
}

// PurgeQueue discards all but leased messages and returns how many.
func (c *Client) PurgeQueue(ctx context.Context, name string, opts ...CallOption) (int64, error) {
	var out wire.Purged
	err := c.do(ctx, http.MethodPost, queuePath(name, "/purge"), nil, &out, opts...)
	return out.Purged, err
}

// Explain tells why a message is, or is not, being delivered: the one named, or,
// with messageID "", the first that waits under a key, or in all of the queue
// where key is nil.
func (c *Client) Explain(ctx context.Context, queue, messageID string, key *string, opts ...CallOption) (*wire.Explanation, error) {
	query := url.Values{}
	if messageID != "" {
		query.Set("message_id", messageID)
	}
	if key != nil {
		query.Set("key", *key)
	}
	out := &wire.Explanation{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: queuePath(queue, "/explain"), query: query}, out, opts)
	return out, err
}
