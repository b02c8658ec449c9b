package console

import "github.com/qlogd/qlogd/api/wire"

var webhookPages = []route{
	{"GET webhooks", "webhooks", (*page).webhooks},
	{"GET webhooks/{name}", "webhooks", (*page).webhook},
}

// webhooks lists the webhooks.
func (p *page) webhooks() error {
	list, err := p.api.Webhooks(p.ctx, p.then()...)
	if err != nil {
		return err
	}
	return p.show("webhooks", "Webhooks", list)
}

// webhook shows one webhook and its last deliveries.
func (p *page) webhook() error {
	name := p.r.PathValue("name")
	w, err := p.api.Webhook(p.ctx, name, p.then()...)
	if err != nil {
		return err
	}
	data := webhookData{Webhook: w}
	if p.At == "" {
		if data.Deliveries, err = p.api.Deliveries(p.ctx, name, p.now()); err != nil {
			return err
		}
	}
	return p.show("webhook", name, data)
}

type webhookData struct {
	Webhook    *wire.Webhook
	Deliveries []wire.WebhookDelivery
}
