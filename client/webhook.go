package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/qlogd/qlogd/api/wire"
)

func webhookPath(name string) string { return "/v1/webhooks/" + url.PathEscape(name) }

// PutWebhook makes a webhook, or replaces its definition where there is one.
// created tells which.
func (c *Client) PutWebhook(ctx context.Context, name string, d wire.WebhookDefinition, opts ...CallOption) (w *wire.Webhook, created bool, err error) {
	w = &wire.Webhook{}
	status, err := c.send(ctx, &call{method: http.MethodPut, path: webhookPath(name), body: d, query: url.Values{}}, w, opts)
	return w, status == http.StatusCreated, err
}

// Webhook returns a webhook's definition.
func (c *Client) Webhook(ctx context.Context, name string, opts ...CallOption) (*wire.Webhook, error) {
	w := &wire.Webhook{}
	return w, c.do(ctx, http.MethodGet, webhookPath(name), nil, w, opts...)
}

// Webhooks returns all webhooks, by name.
func (c *Client) Webhooks(ctx context.Context, opts ...CallOption) ([]wire.Webhook, error) {
	var out []wire.Webhook
	for cursor := ""; ; {
		query := url.Values{}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var page wire.WebhookList
		if _, err := c.send(ctx, &call{method: http.MethodGet, path: "/v1/webhooks", query: query}, &page, opts); err != nil {
			return nil, err
		}
		out = append(out, page.Webhooks...)
		if cursor = page.NextCursor; cursor == "" {
			return out, nil
		}
	}
}

// DeleteWebhook deletes a webhook.
func (c *Client) DeleteWebhook(ctx context.Context, name string, opts ...CallOption) error {
	return c.do(ctx, http.MethodDelete, webhookPath(name), nil, nil, opts...)
}
