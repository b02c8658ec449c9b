package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/qlogd/qlogd/api/wire"
)

// MessageQuery selects messages of a queue.
type MessageQuery struct {
	State string  // scheduled, ready, leased; "" all
	Key   *string // nil all
	Limit int     // of one page; 0 the server's
	After string  // NextCursor of the page before
}

// Messages peeks at a page of a queue's messages, without any effect on them.
func (c *Client) Messages(ctx context.Context, queue string, q MessageQuery, opts ...CallOption) (*wire.MessageList, error) {
	query := url.Values{}
	if q.State != "" {
		query.Set("state", q.State)
	}
	if q.Key != nil {
		query.Set("key", *q.Key)
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.After != "" {
		query.Set("cursor", q.After)
	}
	out := &wire.MessageList{}
	_, err := c.send(ctx, &call{method: http.MethodGet, path: queuePath(queue, "/messages"), query: query}, out, opts)
	return out, err
}

// Message returns a message with its payload and history, wherever it is.
func (c *Client) Message(ctx context.Context, id string, opts ...CallOption) (*wire.Message, error) {
	out := &wire.Message{}
	return out, c.do(ctx, http.MethodGet, "/v1/messages/"+url.PathEscape(id), nil, out, opts...)
}

// History returns every event of a message, oldest first, through dead-letter
// queues and replays.
func (c *Client) History(ctx context.Context, id string, opts ...CallOption) ([]wire.Event, error) {
	var out wire.History
	err := c.do(ctx, http.MethodGet, "/v1/messages/"+url.PathEscape(id)+"/history", nil, &out, opts...)
	return out.Events, err
}

// DeleteMessage takes a message out of its queue.
func (c *Client) DeleteMessage(ctx context.Context, id string, opts ...CallOption) error {
	return c.do(ctx, http.MethodDelete, "/v1/messages/"+url.PathEscape(id), nil, nil, opts...)
}
