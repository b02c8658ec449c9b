package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
)

// policyFlags are a policy on the command line: a JSON file, and flags that
// change single fields of it.
type policyFlags struct {
	file, schema string
	text         map[string]*string
	changed      func(flag string) bool
}

// policyFields are the flags, named like the policy's fields.
var policyFields = []struct{ name, usage string }{
	{"ordering", "unordered, fifo or per_key"},
	{"max-age-seconds", "messages not acked by then leave; 0 no limit"},
	{"max-depth", "most messages in the queue; 0 no limit"},
	{"max-bytes", "most bytes in the queue; 0 no limit"},
	{"lease-ms", "how long a lease is by default"},
	{"max-attempts", "deliveries in all; 0 no limit"},
	{"initial-backoff-ms", "wait after the first failure"},
	{"backoff-multiplier", "how much longer each wait is than the one before"},
	{"max-backoff-ms", "longest wait"},
	{"backoff-jitter", "share by which waits are spread, 0 to 1"},
	{"backoff-schedule-ms", "waits in place of a computed backoff: 1000,5000,60000"},
	{"on-retry", "block, head or tail (fifo, per_key)"},
	{"on-dead", "skip, hold_key or dead_letter_key (fifo, per_key)"},
	{"dead-letter-queue", "where dead messages go; auto makes QUEUE.dlq, '' is none"},
	{"deduplication-window-seconds", "how long a message's idempotency key is known"},
	{"deduplication-by", "key or content"},
	{"namespace", "the queue's namespace"},
	{"description", "for people"},
}

func (p *policyFlags) flags(cmd *cobra.Command) {
	p.text, p.changed = map[string]*string{}, cmd.Flags().Changed
	for _, f := range policyFields {
		p.text[f.name] = cmd.Flags().String(f.name, "", f.usage)
	}
	cmd.Flags().StringVar(&p.file, "policy", "", "a JSON file with the policy (- is stdin)")
	cmd.Flags().StringVar(&p.schema, "message-schema", "", "a file with a JSON Schema that messages must fit; '' removes it")
}

// update builds the request: the file's fields, then the flags'.
func (p *policyFlags) update(a *app) (*wire.PolicyUpdate, error) {
	u := &wire.PolicyUpdate{}
	if p.file != "" {
		b, err := a.readInput(p.file)
		if err != nil {
			return nil, err
		}
		if err := wire.Decode(b, u); err != nil {
			return nil, usagef("%s: %w", p.file, err)
		}
	}
	r, d, w := &u.Retention.Value, &u.Delivery.Value, &u.Deduplication.Value
	set := func(name string) (string, bool) { return *p.text[name], p.changed(name) }
	strs := map[string]*wire.Opt[string]{
		"ordering": &u.Ordering, "on-retry": &d.OnRetry, "on-dead": &d.OnDead,
		"deduplication-by": &w.By, "namespace": &u.Namespace, "description": &u.Description,
	}
	for name, o := range strs {
		if v, ok := set(name); ok {
			*o = wire.Some(v)
		}
	}
	if v, ok := set("dead-letter-queue"); ok {
		d.DeadLetterQueue = wire.Some(v)
		if v == "" {
			d.DeadLetterQueue = wire.Null[string]()
		}
	}
	ints := map[string]*wire.Opt[int64]{
		"max-age-seconds": &r.MaxAgeSeconds, "max-depth": &r.MaxDepth, "max-bytes": &r.MaxBytes,
		"lease-ms": &d.LeaseMS, "max-attempts": &d.MaxAttempts,
		"initial-backoff-ms": &d.InitialBackoffMS, "max-backoff-ms": &d.MaxBackoffMS,
		"deduplication-window-seconds": &w.WindowSeconds,
	}
	for name, o := range ints {
		if v, ok := set(name); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return nil, usagef("--%s: %.64q is not a whole number", name, v)
			}
			*o = wire.Some(n)
		}
	}
	floats := map[string]*wire.Opt[float64]{"backoff-multiplier": &d.BackoffMultiplier, "backoff-jitter": &d.BackoffJitter}
	for name, o := range floats {
		if v, ok := set(name); ok {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return nil, usagef("--%s: %.64q is not a number", name, v)
			}
			*o = wire.Some(n)
		}
	}
	if v, ok := set("backoff-schedule-ms"); ok {
		d.BackoffScheduleMS = wire.Null[[]int64]()
		var list []int64
		for _, s := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' }) {
			n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			if err != nil {
				return nil, usagef("--backoff-schedule-ms: %.64q is not a whole number", s)
			}
			list = append(list, n)
		}
		if len(list) > 0 {
			d.BackoffScheduleMS = wire.Some(list)
		}
	}
	if p.changed("message-schema") {
		u.MessageSchema = wire.Null[jsontext.Value]()
		if p.schema != "" {
			b, err := a.readInput(p.schema)
			if err != nil {
				return nil, err
			}
			v := jsontext.Value(b)
			if !v.IsValid() {
				return nil, usagef("%s is not JSON", p.schema)
			}
			u.MessageSchema = wire.Some(v)
		}
	}
	u.Retention.Set = u.Retention.Set || *r != wire.RetentionUpdate{}
	u.Deduplication.Set = u.Deduplication.Set || *w != wire.DeduplicationUpdate{}
	u.Delivery.Set = u.Delivery.Set || deliverySet(d)
	return u, nil
}

func deliverySet(d *wire.DeliveryUpdate) bool {
	return d.LeaseMS.Set || d.MaxAttempts.Set || d.InitialBackoffMS.Set || d.BackoffMultiplier.Set || d.MaxBackoffMS.Set ||
		d.BackoffJitter.Set || d.BackoffScheduleMS.Set || d.OnRetry.Set || d.OnDead.Set || d.DeadLetterQueue.Set
}

// readInput reads a file, or stdin for "-".
func (a *app) readInput(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(a.stdin)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return b, nil
}
