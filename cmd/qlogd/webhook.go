package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/webhook"
)

func (a *app) webhookCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "webhook",
		Aliases: []string{"webhooks"},
		Short:   "Take webhooks from others into queues",
		Example: `  qlogd webhook put github --queue jobs --scheme github --secret-env GITHUB_WEBHOOK_SECRET
  qlogd webhook test github '{"action":"opened"}'`,
	}, a.webhookListCmd(), a.webhookGetCmd(), a.webhookPutCmd(), a.webhookDeleteCmd(), a.webhookTestCmd())
}

func (a *app) webhookListCmd() *cobra.Command {
	cmd := a.remote("list", "List webhooks", "  qlogd webhook list\n  qlogd webhook list -o json | jq .name",
		exactly(0), func(ctx context.Context, c *client.Client, _ []string) error {
			webhooks, err := c.Webhooks(ctx)
			if err != nil {
				return err
			}
			return list(a, webhooks, "name,to,signed,filter,idempotency key,updated", func(w *wire.Webhook) []any {
				return []any{w.Name, cmp.Or(w.Queue, w.Target), signedBy(w), cmp.Or(w.Filter, "-"),
					cmp.Or(w.IdempotencyKey, "-"), a.when(w.UpdatedAt)}
			})
		})
	cmd.Aliases = []string{"ls"}
	return cmd
}

func signedBy(w *wire.Webhook) string {
	if w.VerifyHMAC == nil {
		return "no"
	}
	return w.VerifyHMAC.Scheme
}

func (a *app) webhookGetCmd() *cobra.Command {
	cmd := a.remote("get WEBHOOK", "Show a webhook's definition",
		"  qlogd webhook get github\n  qlogd webhook get github -o json", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			return a.webhook(c.Webhook(ctx, argv[0]))
		})
	cmd.Aliases = []string{"show"}
	return cmd
}

func (a *app) webhook(w *wire.Webhook, err error) error {
	if err != nil {
		return err
	}
	rows := [][]any{{"to", cmp.Or(w.Queue, w.Target)}, {"signed", signedBy(w)}}
	if v := w.VerifyHMAC; v != nil {
		rows = append(rows, []any{"header", optional(v.Header)}, []any{"prefix", optional(v.Prefix)},
			[]any{"secret from environment", optional(strings.Join(v.SecretEnv, ", "))},
			[]any{"secret from file", optional(strings.Join(v.SecretFile, ", "))})
		if w.MaxAgeSeconds != nil {
			rows = append(rows, []any{"signed time may be off by", fmt.Sprintf("%d s", *w.MaxAgeSeconds)})
		}
	}
	rows = append(rows, []any{"from", cmp.Or(strings.Join(w.AllowIPs, ", "), "anywhere")},
		[]any{"filter", cmp.Or(w.Filter, "-")}, []any{"idempotency key", cmp.Or(w.IdempotencyKey, "-")},
		[]any{"key", cmp.Or(w.Key, "-")}, []any{"kind", cmp.Or(w.Kind, "-")},
		[]any{"priority", cmp.Or(string(w.Priority), "-")})
	if len(w.PayloadSchema) > 0 {
		rows = append(rows, []any{"schema", "set"})
	}
	if w.MapTo != nil {
		for _, name := range sortedKeys(w.MapTo.Input) {
			rows = append(rows, []any{"input." + name, w.MapTo.Input[name]})
		}
	}
	rows = append(rows, []any{"created", a.when(w.CreatedAt)}, []any{"updated", a.when(w.UpdatedAt)})
	return a.show(w, "webhook", w.Name, rows)
}

// webhookFlags are a definition on the command line: a JSON file, and flags that
// set single fields of it.
type webhookFlags struct {
	file, schema, priority string
	maxAge                 int64
	mapTo                  []string
	d                      wire.WebhookDefinition
	verify                 wire.VerifyHMAC
	env, files             []string
	changed                func(string) bool
}

func (f *webhookFlags) flags(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.changed = fs.Changed
	fs.StringVar(&f.file, "definition", "", "a JSON file with the definition (- is stdin)")
	fs.StringVar(&f.d.Queue, "queue", "", "queue that messages go to")
	fs.StringVar(&f.d.Target, "target", "", "URL to forward to at once, in place of a queue")
	fs.StringVar(&f.verify.Scheme, "scheme", "", "how requests are signed: github, pagerduty, stripe, standard, slack, shopify, generic")
	fs.StringVar(&f.verify.Header, "header", "", "header that has the signature, if not the scheme's usual one")
	fs.StringVar(&f.verify.Prefix, "prefix", "", "prefix of a generic signature")
	fs.StringSliceVar(&f.env, "secret-env", nil, "environment variable of the servers that has the secret; several while it is rotated")
	fs.StringSliceVar(&f.files, "secret-file", nil, "file below the servers' --secrets-dir that has the secret")
	fs.Int64Var(&f.maxAge, "max-age-seconds", webhook.DefaultMaxAgeSeconds, "how far a signed time may be off; 0 no limit")
	fs.StringSliceVar(&f.d.AllowIPs, "allow-ips", nil, "addresses and networks that may send")
	fs.StringVar(&f.d.Filter, "filter", "", "expression: drop webhooks for which it is not true")
	fs.StringVar(&f.d.IdempotencyKey, "idempotency-key", "", "expression: a webhook with the same key is a duplicate")
	fs.StringVar(&f.d.Key, "key", "", "expression: the messages' ordering key")
	fs.StringVar(&f.d.Kind, "kind", "", "expression: the messages' kind")
	fs.StringVar(&f.priority, "priority", "", "1 to 10, or an expression")
	fs.StringVar(&f.schema, "payload-schema", "", "a file with a JSON Schema that bodies must fit")
	fs.StringArrayVar(&f.mapTo, "map", nil, "FIELD=EXPRESSION of the messages' payload; once for each field")
}

// definition builds the request: the file's fields, then the flags'.
func (f *webhookFlags) definition(a *app) (*wire.WebhookDefinition, error) {
	d := &wire.WebhookDefinition{}
	if f.file != "" {
		b, err := a.readInput(f.file)
		if err != nil {
			return nil, err
		}
		if err := wire.Decode(b, d); err != nil {
			return nil, usagef("definition: %w", err)
		}
	}
	for _, v := range []struct {
		flag     string
		from, to *string
	}{
		{"queue", &f.d.Queue, &d.Queue}, {"target", &f.d.Target, &d.Target}, {"filter", &f.d.Filter, &d.Filter},
		{"idempotency-key", &f.d.IdempotencyKey, &d.IdempotencyKey}, {"key", &f.d.Key, &d.Key}, {"kind", &f.d.Kind, &d.Kind},
	} {
		if f.changed(v.flag) {
			*v.to = *v.from
		}
	}
	verify := []struct {
		flag string
		set  func(v *wire.VerifyHMAC)
	}{
		{"scheme", func(v *wire.VerifyHMAC) { v.Scheme = f.verify.Scheme }},
		{"header", func(v *wire.VerifyHMAC) { v.Header = f.verify.Header }},
		{"prefix", func(v *wire.VerifyHMAC) { v.Prefix = f.verify.Prefix }},
		{"secret-env", func(v *wire.VerifyHMAC) { v.SecretEnv = f.env }},
		{"secret-file", func(v *wire.VerifyHMAC) { v.SecretFile = f.files }},
	}
	for _, v := range verify {
		if f.changed(v.flag) {
			if d.VerifyHMAC == nil {
				d.VerifyHMAC = &wire.VerifyHMAC{}
			}
			v.set(d.VerifyHMAC)
		}
	}
	if f.changed("max-age-seconds") {
		d.MaxAgeSeconds = &f.maxAge
	}
	if f.changed("allow-ips") {
		d.AllowIPs = f.d.AllowIPs
	}
	if f.changed("priority") {
		d.Priority = jsontext.Value(f.priority)
		if _, err := strconv.Atoi(f.priority); err != nil {
			d.Priority, _ = jsontext.AppendQuote(nil, f.priority) // an expression
		}
	}
	if f.schema != "" {
		b, err := a.readInput(f.schema)
		if err != nil {
			return nil, err
		}
		if d.PayloadSchema = jsontext.Value(bytes.TrimSpace(b)); !d.PayloadSchema.IsValid() {
			return nil, usagef("payload-schema: %s is not JSON", f.schema)
		}
	}
	for _, text := range f.mapTo {
		name, expr, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usagef("map: %.64q must be FIELD=EXPRESSION", text)
		}
		if d.MapTo == nil {
			d.MapTo = &wire.MapTo{}
		}
		if d.MapTo.Input == nil {
			d.MapTo.Input = map[string]string{}
		}
		d.MapTo.Input[name] = expr
	}
	return d, nil
}

func (a *app) webhookPutCmd() *cobra.Command {
	f := &webhookFlags{}
	cmd := a.remote("put WEBHOOK", "Make a webhook, or replace its definition",
		`  qlogd webhook put github --queue jobs --scheme github --secret-env GITHUB_WEBHOOK_SECRET \
    --idempotency-key "headers['x-github-delivery']" --kind "headers['x-github-event']"
  qlogd webhook put pagerduty --definition pagerduty.json`, exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			d, err := f.definition(a)
			if err != nil {
				return err
			}
			w, _, err := c.PutWebhook(ctx, argv[0], *d)
			return a.webhook(w, err)
		})
	cmd.Long = `Makes a webhook: a body POSTed to /hook/WEBHOOK becomes a message. If the webhook
exists, its whole definition is replaced.

Expressions are CEL over payload (the body), headers, source_ip, received_at and
webhook (the name). A secret is never given here: the definition names where each
server finds it.`
	f.flags(cmd)
	return cmd
}

func (a *app) webhookDeleteCmd() *cobra.Command {
	cmd := a.destroyFlags(a.remote("delete WEBHOOK", "Delete a webhook; its messages stay",
		"  qlogd webhook delete github --yes", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			if _, err := c.Webhook(ctx, argv[0]); err != nil {
				return err
			}
			return a.destroy("delete webhook "+argv[0], func() error {
				if err := c.DeleteWebhook(ctx, argv[0]); err != nil {
					return err
				}
				return a.say(nil, "%s deleted", argv[0])
			})
		}))
	cmd.Aliases = []string{"rm"}
	return cmd
}

func (a *app) webhookTestCmd() *cobra.Command {
	var env, file string
	var headers []string
	cmd := a.remote("test WEBHOOK [BODY]", "Sign a body as the sender would, and send it",
		`  GITHUB_WEBHOOK_SECRET=… qlogd webhook test github '{"action":"opened"}' --header 'X-GitHub-Event: issues'
  qlogd webhook test pagerduty --file event.json --secret-env MY_SECRET`, args(cobra.RangeArgs(1, 2)),
		func(ctx context.Context, c *client.Client, argv []string) error {
			w, err := c.Webhook(ctx, argv[0])
			if err != nil {
				return err
			}
			var body []byte
			switch {
			case len(argv) == 2 && file != "":
				return usagef("the body is given twice")
			case len(argv) == 2:
				body = []byte(argv[1])
			default:
				if body, err = a.readInput(cmp.Or(file, "-")); err != nil {
					return err
				}
			}
			header, err := a.signature(w, body, env)
			if err != nil {
				return err
			}
			for _, line := range headers {
				name, v, ok := strings.Cut(line, ":")
				if !ok {
					return usagef("header: %.64q must be 'Name: value'", line)
				}
				header.Set(strings.TrimSpace(name), strings.TrimSpace(v))
			}
			return a.sendHook(ctx, w.Name, header, body)
		})
	cmd.Long = `Asks for the webhook's definition, signs the body as its sender would, sends it to
/hook/WEBHOOK and prints the answer. The secret is taken from this command's own
environment: the variable that the definition names, or --secret-env. Without BODY
it is read from --file or stdin. It fails (1) if the server refuses it.`
	cmd.Flags().StringVar(&env, "secret-env", "",
		"environment variable of this command that has the secret (default: the definition's)")
	cmd.Flags().StringVar(&file, "file", "", "read the body from this file (- is stdin)")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "'Name: value' to send along; once for each")
	return cmd
}

// signature returns the headers that the sender of a webhook would send.
func (a *app) signature(w *wire.Webhook, body []byte, env string) (http.Header, error) {
	hook, err := webhook.Compile(w.Name, &w.WebhookDefinition)
	if err != nil {
		return nil, err
	}
	secret := ""
	if hook.Signed() {
		if env == "" && len(w.VerifyHMAC.SecretEnv) > 0 {
			env = w.VerifyHMAC.SecretEnv[0]
		}
		if env == "" {
			return nil, usagef("secret-env: the definition names no environment variable, so say which one has the secret")
		}
		if secret = strings.TrimSpace(a.getenv(env)); secret == "" {
			return nil, usagef("secret-env: %s is not set here", env)
		}
	}
	signature, err := hook.Sign(body, secret, time.Now())
	if err != nil {
		return nil, usagef("secret-env: %w", err)
	}
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	header.Set("User-Agent", "qlogd-cli/"+build().Version)
	for name, v := range signature {
		header.Set(name, v)
	}
	return header, nil
}

// sendHook sends a body to a webhook and prints the answer, whatever it is.
func (a *app) sendHook(ctx context.Context, name string, header http.Header, body []byte) error {
	c, urls, err := a.plainClient(forwardTimeout + 5*time.Second) // a target may be slow
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, urls[0]+"/hook/"+name, bytes.NewReader(body))
	if err != nil {
		return usagef("addr: %w", err)
	}
	req.Header = header
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxForwardAnswer))
	if err != nil {
		return err
	}
	if a.output != "json" {
		fmt.Fprintln(a.stderr, resp.Status)
	}
	if len(b) > 0 {
		fmt.Fprintln(a.stdout, string(bytes.TrimSpace(b)))
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("the webhook was answered %s", resp.Status)
	}
	return nil
}
