package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// maxBatchBytes keeps a request well below the server's default limit of
// 16 MiB, whatever else is in it.
const maxBatchBytes = 8 << 20

// linger is how long an unfinished batch waits for more input: a pipe that
// trickles is not held up, one that gushes is batched.
const linger = 50 * time.Millisecond

func (a *app) enqueueCmd() *cobra.Command {
	e := &enqueuer{}
	cmd := &cobra.Command{
		Use:   "enqueue QUEUE [PAYLOAD…]",
		Short: "Put messages into a queue",
		Long: `Puts messages into a queue: the payloads named as arguments, or the JSON values
of a file (--file, also gzipped) or of stdin, one after another, as in NDJSON.

Each value is a payload, whatever it is. Only an object that has "payload" or
"payload_base64" and otherwise nothing but a message's fields (key, priority,
headers, idempotency_key, delay_ms, deliver_at, ttl_ms, kind, correlation_id,
content_type) is a whole message. --as payload or --as message take the guess
away. The flags give what a message itself leaves open.

With --import each value is a whole message with a "source_id", which the other
system knows it by; one whose source_id is in the queue already is ignored.

Prints the new ids. Values are sent in batches; each batch is taken whole or not
at all, and repeated safely where its outcome was not learnt.`,
		Example: `  qlogd enqueue jobs '{"hello":"world"}'
  qlogd enqueue jobs --key customer-42 --delay 10m '{"remind":true}'
  qlogd enqueue jobs < lines.ndjson
  qlogd enqueue hooks --file testdata/github-webhooks.jsonl.gz --as payload
  echo '{"payload":{"n":1},"priority":1}' | qlogd enqueue --queue jobs
  qlogd enqueue jobs --import < exported.ndjson`,
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if e.queue == "" {
				if len(argv) == 0 {
					return usagef("name the queue: qlogd enqueue QUEUE [PAYLOAD…]")
				}
				e.queue, argv = argv[0], argv[1:]
			}
			return e.run(ctx, a, c, argv)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&e.queue, "queue", "", "the queue, in place of the first argument")
	f.BoolVar(&e.imported, "import", false, "messages of another system: each has a source_id, and one that is in the queue is ignored")
	f.StringVarP(&e.file, "file", "f", "", "read values from this file (- is stdin)")
	f.StringVar(&e.as, "as", "auto", "what a value is: auto, payload or message")
	f.IntVar(&e.batch, "batch", 500, "most messages in one request, 1 to 1000")
	f.StringVar(&e.key, "key", "", "ordering key")
	f.Int64Var(&e.priority, "priority", 0, "1 (first) to 10; 0 is the server's 5")
	f.DurationVar(&e.delay, "delay", 0, "deliver not before this from now")
	f.DurationVar(&e.ttl, "ttl", 0, "take it out if it is not acked by then")
	f.StringVar(&e.kind, "kind", "", "kind, for lease --kind")
	f.StringVar(&e.correlation, "correlation-id", "", "id that a group of messages shares")
	f.StringVar(&e.dedup, "idempotency-key", "", "of a single message: a second one with it is a duplicate")
	f.StringToStringVar(&e.headers, "header", nil, "NAME=VALUE, can be repeated")
	a.remoteFlags(cmd)
	return cmd
}

type enqueuer struct {
	queue, file, as         string
	batch                   int
	key, kind               string
	correlation, dedup      string
	priority                int64
	delay, ttl              time.Duration
	headers                 map[string]string
	imported                bool
	enqueued, dups, batches int
}

func (e *enqueuer) run(ctx context.Context, a *app, c *client.Client, argv []string) error {
	if e.batch < 1 || e.batch > 1000 {
		return usagef("--batch must be from 1 to 1000")
	}
	if e.as != "auto" && e.as != "payload" && e.as != "message" {
		return usagef("--as must be auto, payload or message")
	}
	if e.imported && (e.as == "payload" || e.dedup != "") {
		return usagef("--import goes neither with --as payload nor with --idempotency-key")
	}
	if len(argv) > 0 && e.file != "" {
		return usagef("either payloads as arguments or --file")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := a.values(ctx, argv, e.file)
	if err != nil {
		return err
	}
	err = e.send(ctx, a, c, in)
	if a.output != "json" || err != nil {
		fmt.Fprintf(a.stderr, "%s enqueued", plural(e.enqueued, "message", "messages"))
		switch {
		case e.imported:
			fmt.Fprintf(a.stderr, ", %d ignored", e.dups)
		case e.dups > 0:
			fmt.Fprintf(a.stderr, ", %s", plural(e.dups, "duplicate", "duplicates"))
		}
		fmt.Fprintln(a.stderr)
	}
	return err
}

// sendImport sends one batch of an import.
func (e *enqueuer) sendImport(ctx context.Context, a *app, c *client.Client, batch []wire.ImportMessage) error {
	out, err := c.Import(ctx, e.queue, batch)
	if err != nil {
		return err
	}
	e.enqueued += int(out.Imported)
	e.dups += int(out.Ignored)
	for _, m := range out.Messages {
		if a.output == "json" {
			err = a.wire(m)
		} else if m.Status == wire.Enqueued {
			_, err = fmt.Fprintln(a.stdout, m.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send groups what comes in into batches and sends them in order.
func (e *enqueuer) send(ctx context.Context, a *app, c *client.Client, in <-chan input) error {
	var batch []wire.ImportMessage
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if e.imported {
			if err := e.sendImport(ctx, a, c, batch); err != nil {
				return err
			}
			batch, size = batch[:0], 0
			return nil
		}
		messages := make([]wire.NewMessage, len(batch))
		for i := range batch {
			messages[i] = batch[i].NewMessage
		}
		out, err := c.ProduceAll(ctx, e.queue, messages)
		if err != nil {
			return err
		}
		batch, size = batch[:0], 0
		e.batches++
		for _, p := range out {
			if p.Status == wire.Duplicate {
				e.dups++
			} else {
				e.enqueued++
			}
			if a.output == "json" {
				err = a.wire(p)
			} else {
				_, err = fmt.Fprintln(a.stdout, p.ID)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case v, ok := <-in:
			if !ok {
				return flush()
			}
			if v.err != nil {
				if err := flush(); err != nil {
					return err
				}
				return v.err
			}
			m, err := e.message(v)
			if err != nil {
				if ferr := flush(); ferr != nil {
					return ferr
				}
				return err
			}
			if len(batch) > 0 && (len(batch) == e.batch || size+len(v.value) > maxBatchBytes) {
				if err := flush(); err != nil {
					return err
				}
			}
			batch, size = append(batch, m), size+len(v.value)
			timer.Reset(linger)
		case <-timer.C:
			if err := flush(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
