package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	*pflag.FlagSet
	file, schema, priority string
	mapTo                  []string
}

// webhookPaths are the fields of a definition that flags set.
var webhookPaths = map[string]string{
	"queue": "queue", "target": "target", "filter": "filter", "idempotency-key": "idempotency_key",
	"key": "key", "kind": "kind", "max-age-seconds": "max_age_seconds", "allow-ips": "allow_ips",
	"scheme": "verify_hmac.scheme", "header": "verify_hmac.header", "prefix": "verify_hmac.prefix",
	"secret-env": "verify_hmac.secret_env", "secret-file": "verify_hmac.secret_file",
}

func (f *webhookFlags) flags(cmd *cobra.Command) {
	f.FlagSet = cmd.Flags()
	f.StringVar(&f.file, "definition", "", "a JSON file with the definition (- is stdin)")
	f.String("queue", "", "queue that messages go to")
	f.String("target", "", "URL to forward to at once, in place of a queue")
	f.String("scheme", "", "how requests are signed: github, pagerduty, stripe, standard, slack, shopify, generic")
	f.String("header", "", "header that has the signature, if not the scheme's usual one")
	f.String("prefix", "", "prefix of a generic signature")
	f.StringSlice("secret-env", nil, "environment variable of the servers that has the secret; several while it is rotated")
	f.StringSlice("secret-file", nil, "file below the servers' --secrets-dir that has the secret")
	f.Int64("max-age-seconds", webhook.DefaultMaxAgeSeconds, "how far a signed time may be off; 0 no limit")
	f.StringSlice("allow-ips", nil, "addresses and networks that may send")
	f.String("filter", "", "expression: drop webhooks for which it is not true")
	f.String("idempotency-key", "", "expression: a webhook with the same key is a duplicate")
	f.String("key", "", "expression: the messages' ordering key")
	f.String("kind", "", "expression: the messages' kind")
	f.StringVar(&f.priority, "priority", "", "1 to 10, or an expression")
	f.StringVar(&f.schema, "payload-schema", "", "a file with a JSON Schema that bodies must fit")
	f.StringArrayVar(&f.mapTo, "map", nil, "FIELD=EXPRESSION of the messages' payload; once for each field")
}

// definition builds the request: the file's fields, then the flags'.
func (f *webhookFlags) definition(a *app) (out wire.WebhookDefinition, err error) {
	d, err := readDocument[wire.WebhookDefinition](a, f.file)
	if err == nil {
		err = d.setFlags(f.FlagSet, webhookPaths)
	}
	if f.Changed("priority") && err == nil {
		var v any = f.priority // an expression
		if n, err := strconv.Atoi(f.priority); err == nil {
			v = n
		}
		err = d.set(v, "priority")
	}
	if f.schema != "" && err == nil {
		err = a.setFile(d, "payload_schema", f.schema)
	}
	for _, text := range f.mapTo {
		name, expr, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return out, usagef("map: %.64q must be FIELD=EXPRESSION", text)
		}
		err = errors.Join(err, d.set(expr, "map_to", "input", name))
	}
	if err == nil {
		err = d.decode(&out)
	}
	return out, err
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
			w, _, err := c.PutWebhook(ctx, argv[0], d)
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
