package console

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

var webhookPages = []route{
	{"GET webhooks", "webhooks", (*page).webhooks},
	{"GET webhooks/{name}", "webhooks", (*page).webhook},
	{"GET webhooks/{name}/recent", "webhooks", (*page).recent},
	{"POST webhooks/{name}/delete", "webhooks", (*page).deleteWebhook},
}

const webhooksPerPage = 50

// webhooks lists the webhooks.
func (p *page) webhooks() error {
	list, err := p.api.WebhookPage(p.ctx, p.Param("after"), webhooksPerPage, p.then()...)
	if err != nil {
		return err
	}
	data := listed[wire.Webhook]{list.Webhooks, p.pager(list.NextCursor)}
	return p.show("webhooks", "Webhooks", data)
}

// webhook shows one webhook and its last requests.
func (p *page) webhook() error {
	data, err := p.deliveries()
	if err == nil && !p.fragment() {
		data.Webhook, err = p.api.Webhook(p.ctx, data.Name, p.then()...)
	}
	if err != nil {
		return err
	}
	if w := data.Webhook; w != nil {
		data.Schema = indented(w.PayloadSchema)
	}
	return p.show("webhook", data.Name, data)
}

// recent is the cell of a list that says what a webhook has done with its last requests.
func (p *page) recent() error {
	data, err := p.deliveries()
	if err != nil {
		return err
	}
	return p.show("webhook-recent", data.Name, data)
}

// deliveries returns the last requests to the webhook in the path; a past has none.
func (p *page) deliveries() (*webhookData, error) {
	data := &webhookData{Name: p.r.PathValue("name"), URL: p.base + "/hook/" + p.r.PathValue("name")}
	if p.At != "" {
		return data, nil
	}
	list, err := p.api.Deliveries(p.ctx, data.Name, p.now())
	for _, d := range list {
		if d.Status >= http.StatusBadRequest {
			data.Refused++
		}
	}
	data.Deliveries = list
	return data, err
}

type webhookData struct {
	Name       string
	URL        string        // to which others post
	Webhook    *wire.Webhook // nil in a part without it
	Schema     string
	Deliveries []wire.WebhookDelivery
	Refused    int64
}

// indented returns JSON with line breaks; what is not JSON stays as it is.
func indented(raw []byte) string {
	v := jsontext.Value(raw).Clone()
	if v.Indent(jsontext.WithIndent("  ")) != nil {
		return string(raw)
	}
	return string(v)
}

// deleteWebhook deletes a webhook.
func (p *page) deleteWebhook() error {
	name := p.r.PathValue("name")
	if _, err := p.api.Webhook(p.ctx, name, p.now()); err != nil {
		return err
	}
	f := p.newForm("Delete webhook "+name, "Delete the webhook", p.LinkNow("webhooks", name))
	f.Danger, f.Type = true, name
	f.Text = "From then on requests to /hook/" + name + " are answered with 404. Messages that it " +
		"has brought stay."
	f.As = p.as("DELETE", v1("webhooks", name), nil, []string{"webhook", "delete", name, "--yes"})
	return p.send(f, func() error {
		err := p.api.DeleteWebhook(p.ctx, name, p.once())
		return p.done(err, "Deleted webhook "+name+".", "webhooks")
	})
}
