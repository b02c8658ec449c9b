package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/qlogd/qlogd/api/wire"
)

// EraseMessage begins to erase what users wrote in a message, by any id that it
// has or had, on all nodes and in the archive; a live one is discarded. The reason
// is kept. The task tells on which nodes it is complete.
func (c *Client) EraseMessage(ctx context.Context, id, reason string, opts ...CallOption) (*wire.Task, error) {
	t := &wire.Task{}
	return t, c.do(ctx, http.MethodPost, "/v1/messages/"+url.PathEscape(id)+"/erase", wire.EraseRequest{Reason: reason}, t, opts...)
}

// EraseKey begins to erase all messages of a key that were in a queue.
func (c *Client) EraseKey(ctx context.Context, queue, key, reason string, opts ...CallOption) (*wire.Task, error) {
	t := &wire.Task{}
	return t, c.do(ctx, http.MethodPost, queuePath(queue, "/erase"), wire.EraseKeyRequest{Key: key, Reason: reason}, t, opts...)
}

// ErasableMessage tells what EraseMessage would erase.
func (c *Client) ErasableMessage(ctx context.Context, id string, opts ...CallOption) (*wire.Erasable, error) {
	out := &wire.Erasable{}
	return out, c.do(ctx, http.MethodPost, "/v1/messages/"+url.PathEscape(id)+"/erase", wire.EraseRequest{DryRun: true}, out, opts...)
}

// ErasableKey tells what EraseKey would erase. The node reads its whole log.
func (c *Client) ErasableKey(ctx context.Context, queue, key string, opts ...CallOption) (*wire.Erasable, error) {
	out := &wire.Erasable{}
	return out, c.do(ctx, http.MethodPost, queuePath(queue, "/erase"), wire.EraseKeyRequest{Key: key, DryRun: true}, out, opts...)
}
