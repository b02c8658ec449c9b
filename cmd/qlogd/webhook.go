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
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List webhooks",
		Example: "  qlogd webhook list\n  qlogd webhook list -o json | jq .name",
		Args:    args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			webhooks, err := c.Webhooks(ctx)
			if err != nil {
				return err
			}
			rows := make([][]any, 0, len(webhooks))
			for _, w := range webhooks {
				if a.output == "json" {
					if err := a.wire(w); err != nil {
						return err
					}
				}
				rows = append(rows, []any{w.Name, goesTo(&w), signedBy(&w), cmp.Or(w.Filter, "-"), cmp.Or(w.IdempotencyKey, "-"), a.when(w.UpdatedAt)})
			}
			if a.output == "json" {
				return nil
			}
			return a.table([]string{"name", "to", "signed", "filter", "idempotency key", "updated"}, rows)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func goesTo(w *wire.Webhook) string { return cmp.Or(w.Queue, w.Target) }

func signedBy(w *wire.Webhook) string {
	if w.VerifyHMAC == nil {
		return "no"
	}
	return w.VerifyHMAC.Scheme
}

func (a *app) webhookGetCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get WEBHOOK",
		Aliases: []string{"show"},
		Short:   "Show a webhook's definition",
		Example: "  qlogd webhook get github\n  qlogd webhook get github -o json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			w, err := c.Webhook(ctx, argv[0])
			if err != nil {
				return err
			}
			return a.webhook(w)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) webhook(w *wire.Webhook) error {
	if a.output == "json" {
		return a.wire(w)
	}
	rows := [][]any{{"to", goesTo(w)}, {"signed", signedBy(w)}}
	if v := w.VerifyHMAC; v != nil {
		for _, f := range [...]struct{ name, v string }{
			{"header", v.Header}, {"prefix", v.Prefix}, {"secret from environment", strings.Join(v.SecretEnv, ", ")}, {"secret from file", strings.Join(v.SecretFile, ", ")},
		} {
			if f.v != "" {
				rows = append(rows, []any{f.name, f.v})
			}
		}
		if w.MaxAgeSeconds != nil {
			rows = append(rows, []any{"signed time may be off by", fmt.Sprintf("%d s", *w.MaxAgeSeconds)})
		}
	}
	rows = append(rows, []any{"from", cmp.Or(strings.Join(w.AllowIPs, ", "), "anywhere")}, []any{"filter", cmp.Or(w.Filter, "-")},
		[]any{"idempotency key", cmp.Or(w.IdempotencyKey, "-")}, []any{"key", cmp.Or(w.Key, "-")}, []any{"kind", cmp.Or(w.Kind, "-")}, []any{"priority", cmp.Or(string(w.Priority), "-")})
	if len(w.PayloadSchema) > 0 {
		rows = append(rows, []any{"schema", "set"})
	}
	if w.MapTo != nil {
		for _, name := range sortedKeys(w.MapTo.Input) {
			rows = append(rows, []any{"input." + name, w.MapTo.Input[name]})
		}
	}
	rows = append(rows, []any{"created", a.when(w.CreatedAt)}, []any{"updated", a.when(w.UpdatedAt)})
	return a.pairs("webhook", w.Name, rows)
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
	fs.StringVar(&f.verify.Header, "header", "", "header that has the signature, where it is not the scheme's usual one")
	fs.StringVar(&f.verify.Prefix, "prefix", "", "what stands before a generic signature")
	fs.StringSliceVar(&f.env, "secret-env", nil, "environment variable of the servers that has the secret; several while it is rotated")
	fs.StringSliceVar(&f.files, "secret-file", nil, "file below the servers' --secrets-dir that has the secret")
	fs.Int64Var(&f.maxAge, "max-age-seconds", webhook.DefaultMaxAgeSeconds, "how far a signed time may be off; 0 no limit")
	fs.StringSliceVar(&f.d.AllowIPs, "allow-ips", nil, "addresses and networks that may send")
	fs.StringVar(&f.d.Filter, "filter", "", "expression: what is not true is dropped")
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
	f.setVerify(d)
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

func (f *webhookFlags) setVerify(d *wire.WebhookDefinition) {
	for _, flag := range []string{"scheme", "header", "prefix", "secret-env", "secret-file"} {
		if !f.changed(flag) {
			continue
		}
		if d.VerifyHMAC == nil {
			d.VerifyHMAC = &wire.VerifyHMAC{}
		}
		switch v := d.VerifyHMAC; flag {
		case "scheme":
			v.Scheme = f.verify.Scheme
		case "header":
			v.Header = f.verify.Header
		case "prefix":
			v.Prefix = f.verify.Prefix
		case "secret-env":
			v.SecretEnv = f.env
		case "secret-file":
			v.SecretFile = f.files
		}
	}
}

func (a *app) webhookPutCmd() *cobra.Command {
	f := &webhookFlags{}
	cmd := &cobra.Command{
		Use:   "put WEBHOOK",
		Short: "Make a webhook, or replace its definition",
		Long: `Makes a webhook: what is POSTed to /hook/WEBHOOK becomes a message. Where it exists
its definition is replaced whole.

Expressions are CEL over payload (the body), headers, source_ip, received_at and
webhook (the name). A secret is never given here: the definition names where each
server finds it.`,
		Example: `  qlogd webhook put github --queue jobs --scheme github --secret-env GITHUB_WEBHOOK_SECRET \
    --idempotency-key "headers['x-github-delivery']" --kind "headers['x-github-event']"
  qlogd webhook put pagerduty --definition pagerduty.json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			d, err := f.definition(a)
			if err != nil {
				return err
			}
			w, _, err := c.PutWebhook(ctx, argv[0], *d)
			if err != nil {
				return err
			}
			return a.webhook(w)
		}),
	}
	f.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) webhookDeleteCmd() *cobra.Command {
	d := &destroyer{}
	cmd := &cobra.Command{
		Use:     "delete WEBHOOK",
		Aliases: []string{"rm"},
		Short:   "Delete a webhook; its messages stay",
		Example: "  qlogd webhook delete github --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if _, err := c.Webhook(ctx, argv[0]); err != nil {
				return err
			}
			what := "delete webhook " + argv[0]
			if d.dryRun {
				fmt.Fprintln(a.stdout, "would", what)
				return nil
			}
			if err := d.confirm(a, what); err != nil {
				return err
			}
			if err := c.DeleteWebhook(ctx, argv[0]); err != nil {
				return err
			}
			if a.output != "json" {
				fmt.Fprintln(a.stderr, "deleted")
			}
			return nil
		}),
	}
	d.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) webhookTestCmd() *cobra.Command {
	var env, file string
	var headers []string
	cmd := &cobra.Command{
		Use:   "test WEBHOOK [BODY]",
		Short: "Sign a body as the sender would, and send it",
		Long: `Asks for the webhook's definition, signs the body as its sender would, sends it to
/hook/WEBHOOK and tells the answer. The secret is taken from this command's own
environment: the variable that the definition names, or --secret-env. Without BODY
it is read from --file or stdin. It fails (1) where the server refuses it.`,
		Example: `  GITHUB_WEBHOOK_SECRET=… qlogd webhook test github '{"action":"opened","issue":{"number":1}}' --header 'X-GitHub-Event: issues'
  qlogd webhook test pagerduty --file event.json --secret-env MY_SECRET`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			w, err := c.Webhook(ctx, argv[0])
			if err != nil {
				return err
			}
			body, err := a.hookBody(argv[1:], file)
			if err != nil {
				return err
			}
			req, err := a.signedRequest(ctx, w, body, env)
			if err != nil {
				return err
			}
			for _, line := range headers {
				name, v, ok := strings.Cut(line, ":")
				if !ok {
					return usagef("header: %.64q must be 'Name: value'", line)
				}
				req.Header.Set(strings.TrimSpace(name), strings.TrimSpace(v))
			}
			return a.sendHook(req)
		}),
	}
	cmd.Flags().StringVar(&env, "secret-env", "", "environment variable of this command that has the secret (default: the definition's)")
	cmd.Flags().StringVar(&file, "file", "", "read the body from this file (- is stdin)")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "'Name: value' to send along; once for each")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) hookBody(argv []string, file string) ([]byte, error) {
	switch {
	case len(argv) == 1 && file != "":
		return nil, usagef("the body is given twice")
	case len(argv) == 1:
		return []byte(argv[0]), nil
	case file == "":
		file = "-"
	}
	return a.readInput(file)
}

// signedRequest is what the sender of a webhook would send.
func (a *app) signedRequest(ctx context.Context, w *wire.Webhook, body []byte, env string) (*http.Request, error) {
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
	addr := cmp.Or(strings.Split(a.reach.addr, ",")[0], cmp.Or(strings.Split(a.getenv("QLOGD_ADDR"), ",")[0], defaultAddr))
	_, scheme, err := a.plainClient()
	if err != nil {
		return nil, err
	}
	if addr = strings.TrimSuffix(strings.TrimSpace(addr), "/"); !strings.Contains(addr, "://") {
		addr = scheme + addr
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, addr+"/hook/"+w.Name, bytes.NewReader(body))
	if err != nil {
		return nil, usagef("addr: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "qlogd-cli/"+build().Version)
	for name, v := range signature {
		req.Header.Set(name, v)
	}
	return req, nil
}

// sendHook sends the request and tells the answer, whatever it is.
func (a *app) sendHook(req *http.Request) error {
	c, _, err := a.plainClient()
	if err != nil {
		return err
	}
	c.Timeout = forwardTimeout + 5*time.Second // a target may take its time
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
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
		return &exitError{exitFailed, fmt.Errorf("the webhook was answered %s", resp.Status)}
	}
	return nil
}
