package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/qlogd/qlogd/api/wire"
)

// Enqueue enqueues one message and returns when it is durable. It is for many
// goroutines at once: their messages share requests, and each gets its own
// answer or error. One call alone is as fast as Produce.
//
// Messages that one goroutine enqueues one after the other, into a queue or with
// a key, are in that order. Messages enqueued at the same time by several are in
// none.
//
// Where ctx ends first, the message is not enqueued if it had not been sent;
// else the error is also ErrOutcomeUnknown. Give the message an IdempotencyKey if
// it is to be enqueued again then.
func (c *Client) Enqueue(ctx context.Context, queue string, m wire.NewMessage) (wire.Produced, error) {
	v, ok := c.lanes.Load(queue)
	if !ok {
		v, _ = c.lanes.LoadOrStore(queue, c.enqueueLane(queue))
	}
	return v.(*enqueueLane).do(ctx, m, sizeOf(&m))
}

type enqueueLane = lane[wire.NewMessage, wire.Produced]

func (c *Client) enqueueLane(queue string) *enqueueLane {
	path := queuePath(queue, "/messages")
	return &enqueueLane{c: c, list: "messages", send: func(ctx context.Context, messages []wire.NewMessage) ([]wire.Produced, error) {
		var out wire.ProduceResponse
		_, err := c.send(ctx, &call{
			method: http.MethodPost, path: path, body: &wire.ProduceRequest{Messages: messages}, query: url.Values{},
			spread: true, several: len(messages) > 1,
		}, &out, nil)
		return out.Messages, err
	}}
}

// sizeOf is about how many bytes a message takes in a request.
func sizeOf(m *wire.NewMessage) int {
	n := 64 + len(m.Payload) + len(m.PayloadBytes) + len(m.Key)
	for k, v := range m.Headers {
		n += len(k) + len(v) + 8
	}
	return n
}
