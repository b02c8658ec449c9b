package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/webhook/egress"
)

// What is taken from a webhook's target. Who sent the webhook waits meanwhile,
// and most of those who do so give up after half a minute at most.
const (
	forwardTimeout   = 30 * time.Second
	maxForwardAnswer = 1 << 20
)

// forwarder sends webhooks to their targets: the api's api.Forwarder.
type forwarder struct{ client *egress.Client }

func newForwarder(c *config) *forwarder {
	return &forwarder{egress.New(egress.Options{
		AllowPrivate: c.PushAllowPrivate, Timeout: 2 * forwardTimeout, MaxAnswer: maxForwardAnswer, UserAgent: "qlogd/" + build().Version,
	})}
}

// CheckTarget implements api.Forwarder.
func (f *forwarder) CheckTarget(url string) error {
	return egress.CheckURL(url, f.client.AllowPrivate())
}

// Forward implements api.Forwarder.
func (f *forwarder) Forward(ctx context.Context, url string, header http.Header, body []byte) (*api.Forwarded, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	a, err := f.client.Do(ctx, egress.Request{URL: url, Header: header, Body: body})
	if egress.Unsent(err) {
		return nil, fmt.Errorf("%w: %w", api.ErrNotForwarded, err)
	}
	if err != nil {
		if ne, ok := errors.AsType[net.Error](err); ctx.Err() == context.DeadlineExceeded || ok && ne.Timeout() {
			return nil, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		return nil, err
	}
	return &api.Forwarded{Status: a.Status, ContentType: a.Header.Get("Content-Type"), Body: a.Body, Cut: a.Cut}, nil
}
