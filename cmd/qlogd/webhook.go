package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/webhook"
)

var webhookCommands = group("webhook",
	remote("webhook list", func(c request, f *struct{ At string }) error {
		webhooks, err := c.Webhooks(c.ctx, client.At(f.At))
		return list(c.app, webhooks, err, "name,to,signed,filter,idempotency key,updated",
			func(w *wire.Webhook) []any {
				return []any{w.Name, cmp.Or(w.Queue, w.Target), signedBy(w),
					cmp.Or(w.Filter, "-"), cmp.Or(w.IdempotencyKey, "-"), c.when(w.UpdatedAt)}
			})
	}),
	remote("webhook get", func(c request, f *struct{ At string }) error {
		return c.webhook(c.Webhook(c.ctx, c.args[0], client.At(f.At)))
	}),
	remote("webhook put", func(c request, f *definition) error {
		var d wire.WebhookDefinition
		if err := c.decode(f.Definition, f, &d); err != nil {
			return err
		}
		w, _, err := c.PutWebhook(c.ctx, c.args[0], d)
		return c.webhook(w, err)
	}),
	remote("webhook delete", func(c request, _ *none) error {
		name := c.args[0]
		if _, err := c.Webhook(c.ctx, name); err != nil {
			return err
		}
		return c.destroy("delete webhook "+name, name+" deleted",
			func() error { return c.DeleteWebhook(c.ctx, name) })
	}, (*app).destroyFlags),
	remote("webhook deliveries", func(c request, _ *none) error {
		deliveries, err := c.Deliveries(c.ctx, c.args[0])
		return list(c.app, deliveries, err, "at,node,status,code,message,from",
			func(d *wire.WebhookDelivery) []any {
				return []any{c.when(d.At), d.Node, d.Status, d.Code, orDash(d.MessageID), d.SourceIP}
			})
	}),
	remote("webhook test", func(c request, f *struct {
		SecretEnv, File string
		Header          repeated `flag:"header|H"`
	}) error {
		w, err := c.Webhook(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		var body []byte
		switch {
		case len(c.args) == 2 && f.File != "":
			return usagef("the body is given twice")
		case len(c.args) == 2:
			body = []byte(c.args[1])
		default:
			if body, err = c.readInput(cmp.Or(f.File, "-")); err != nil {
				return err
			}
		}
		header, err := c.signature(w, body, f.SecretEnv)
		if err != nil {
			return err
		}
		for _, line := range f.Header {
			name, v, ok := strings.Cut(line, ":")
			if !ok {
				return usagef("header: %.64q must be 'Name: value'", line)
			}
			header.Set(strings.TrimSpace(name), strings.TrimSpace(v))
		}
		return c.sendHook(w.Name, header, body)
	}),
)

func signedBy(w *wire.Webhook) string {
	if w.VerifyHMAC == nil {
		return "no"
	}
	return w.VerifyHMAC.Scheme
}

func (a *app) webhook(w *wire.Webhook, err error) error {
	v, age := cmp.Or(w.VerifyHMAC, &wire.VerifyHMAC{}), cmp.Or(w.MaxAgeSeconds, new(int64))
	input := cmp.Or(w.MapTo, &wire.MapTo{}).Input
	rows := [][]any{
		{"to", cmp.Or(w.Queue, w.Target)}, {"signed", signedBy(w)},
		{"header", optional(v.Header)}, {"prefix", optional(v.Prefix)},
		{"secret from environment", optional(strings.Join(v.SecretEnv, ", "))},
		{"secret from file", optional(strings.Join(v.SecretFile, ", "))},
		{"signed time may be off by", onlyIf(w.VerifyHMAC != nil && w.MaxAgeSeconds != nil,
			fmt.Sprintf("%d s", *age))},
		{"signed time", optional(w.SignedAt)},
		{"from", cmp.Or(strings.Join(w.AllowIPs, ", "), "anywhere")},
		{"filter", cmp.Or(w.Filter, "-")}, {"idempotency key", cmp.Or(w.IdempotencyKey, "-")},
		{"key", cmp.Or(w.Key, "-")}, {"kind", cmp.Or(w.Kind, "-")},
		{"priority", cmp.Or(string(w.Priority), "-")},
		{"schema", onlyIf(len(w.PayloadSchema) > 0, "set")},
	}
	for _, name := range sortedKeys(input) {
		rows = append(rows, []any{"input." + name, input[name]})
	}
	rows = append(rows,
		[]any{"created", a.when(w.CreatedAt)}, []any{"updated", a.when(w.UpdatedAt)})
	return a.show(w, err, "webhook", w.Name, rows)
}

// definition is a wire.WebhookDefinition, of a file and flags. A default is
// webhook.DefaultMaxAgeSeconds.
type definition struct {
	Definition     string
	Queue          string   `sets:"queue"`
	Target         string   `sets:"target"`
	Scheme         string   `sets:"verify_hmac.scheme"`
	Header         string   `sets:"verify_hmac.header"`
	Prefix         string   `sets:"verify_hmac.prefix"`
	SecretEnv      []string `sets:"verify_hmac.secret_env"`
	SecretFile     []string `sets:"verify_hmac.secret_file"`
	MaxAge         string   `sets:"max_age_seconds" as:"s" default:"5m"`
	SignedAt       string   `sets:"signed_at"`
	AllowIPs       []string `sets:"allow_ips" flag:"allow-ips"`
	Filter         string   `sets:"filter"`
	IdempotencyKey string   `sets:"idempotency_key"`
	Key            string   `sets:"key"`
	Kind           string   `sets:"kind"`
	Priority       string   `sets:"priority" as:"number or text"`
	PayloadSchema  string   `sets:"payload_schema" as:"file"`
	Map            repeated `sets:"map_to.input" as:"fields"`
}

// signature returns the headers that the sender of a webhook would send.
func (a *app) signature(w *wire.Webhook, body []byte, env string) (http.Header, error) {
	hook, err := webhook.Compile(w.Name, &w.WebhookDefinition)
	if err != nil {
		return nil, err
	}
	secret := ""
	if hook.Signed() {
		if env = cmp.Or(append([]string{env}, w.VerifyHMAC.SecretEnv...)...); env == "" {
			return nil, usagef("secret-env: the definition names no environment variable, " +
				"so say which one has the secret")
		}
		if secret = strings.TrimSpace(a.getenv(env)); secret == "" {
			return nil, usagef("secret-env: %s is not set here", env)
		}
	}
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	header.Set("User-Agent", "qlogd-cli/"+build().Version)
	if err := hook.Sign(header, body, secret, time.Now()); err != nil {
		return nil, usagef("secret-env: %w", err)
	}
	return header, nil
}

// sendHook sends a body to a webhook and prints the answer, whatever it is.
func (c request) sendHook(name string, header http.Header, body []byte) error {
	// A target may be slow.
	ctx, cancel := context.WithTimeout(c.ctx, api.ForwardTimeout+5*time.Second)
	defer cancel()
	resp, b, err := c.Raw(ctx, http.MethodPost, "/hook/"+name, header, body)
	if err != nil {
		return err
	}
	c.note("%s", resp.Status)
	if len(b) > 0 {
		fmt.Fprintln(c.stdout, string(bytes.TrimSpace(b)))
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("the webhook was answered %s", resp.Status)
	}
	return nil
}
