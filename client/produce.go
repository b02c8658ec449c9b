package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/qlogd/qlogd/api/wire"
)

// JSON returns a message whose payload is v's JSON. It panics where v has
// none: a programming error.
func JSON(v any) wire.NewMessage {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("client: payload: %v", err))
	}
	return wire.NewMessage{Payload: b}
}

// Bytes returns a message whose payload is bytes of a content type.
func Bytes(b []byte, contentType string) wire.NewMessage {
	if b == nil {
		b = []byte{} // an empty payload, not none
	}
	return wire.NewMessage{PayloadBytes: b, ContentType: contentType}
}

// Produce enqueues 1 to 1000 messages, all or none, and answers in their
// order.
func (c *Client) Produce(ctx context.Context, queue string, messages ...wire.NewMessage) ([]wire.Produced, error) {
	return c.ProduceAll(ctx, queue, messages)
}

// ProduceAll is Produce with options.
func (c *Client) ProduceAll(ctx context.Context, queue string, messages []wire.NewMessage, opts ...CallOption) ([]wire.Produced, error) {
	var out wire.ProduceResponse
	_, err := c.send(ctx, &call{
		method: http.MethodPost, path: queuePath(queue, "/messages"), body: &wire.ProduceRequest{Messages: messages}, query: url.Values{},
	}, &out, opts)
	return out.Messages, err
}
