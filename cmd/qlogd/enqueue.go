package main

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// maxBatchBytes keeps a request well below the server's default limit of
// 16 MiB, whatever else is in it.
const maxBatchBytes = 8 << 20

// linger is how long an unfinished batch waits for more input: a slow pipe is
// not held up, a fast one is batched.
const linger = 50 * time.Millisecond

// enqueuer is one run of qlogd enqueue. Its message holds what the flags say.
type enqueuer struct {
	queue, file, as string
	batch           int
	imported        bool
	message         wire.NewMessage
	delay, ttl      time.Duration
	priority        int64
	enqueued, dups  int
}

func (a *app) enqueueCmd() *cobra.Command {
	e := &enqueuer{}
	cmd := a.remote("enqueue QUEUE [PAYLOAD…]", "Put messages into a queue",
		`  qlogd enqueue jobs '{"hello":"world"}'
  qlogd enqueue jobs --key customer-42 --delay 10m '{"remind":true}'
  qlogd enqueue jobs < lines.ndjson
  qlogd enqueue hooks --file testdata/github-webhooks.jsonl.gz --as payload
  echo '{"payload":{"n":1},"priority":1}' | qlogd enqueue --queue jobs
  qlogd enqueue jobs --import < exported.ndjson`, nil,
		func(ctx context.Context, c *client.Client, argv []string) error {
			if e.queue == "" {
				if len(argv) == 0 {
					return usagef("name the queue: qlogd enqueue QUEUE [PAYLOAD…]")
				}
				e.queue, argv = argv[0], argv[1:]
			}
			return e.run(ctx, a, c, argv)
		})
	cmd.Long = `Puts messages into a queue: the payloads named as arguments, or the JSON values
of a file (--file, also gzipped) or of stdin, one after another, as in NDJSON.

Each value is a payload, whatever it is. Only an object that has "payload" or
"payload_base64" and otherwise nothing but a message's fields (key, priority,
headers, idempotency_key, delay_ms, deliver_at, ttl_ms, kind, correlation_id,
content_type) is a whole message. --as payload or --as message avoid the guess.
The flags give what a message itself leaves open.

With --import each value is a whole message with a "source_id", its id in the other
system; one whose source_id is in the queue already is ignored.

Prints the new ids. Values are sent in batches; each batch is taken whole or not
at all, and repeated safely if its outcome is unknown.`
	f, m := cmd.Flags(), &e.message
	f.StringVar(&e.queue, "queue", "", "the queue, in place of the first argument")
	f.BoolVar(&e.imported, "import", false,
		"messages of another system: each has a source_id, and one that is in the queue is ignored")
	f.StringVarP(&e.file, "file", "f", "", "read values from this file (- is stdin)")
	f.StringVar(&e.as, "as", "auto", "what a value is: auto, payload or message")
	f.IntVar(&e.batch, "batch", 500, "most messages in one request, 1 to 1000")
	f.StringVar(&m.Key, "key", "", "ordering key")
	f.Int64Var(&e.priority, "priority", 0, "1 (first) to 10; 0 is the server's 5")
	f.DurationVar(&e.delay, "delay", 0, "deliver not before this from now")
	f.DurationVar(&e.ttl, "ttl", 0, "take it out if it is not acked by then")
	f.StringVar(&m.Kind, "kind", "", "kind, for lease --kind")
	f.StringVar(&m.CorrelationID, "correlation-id", "", "id that a group of messages shares")
	f.StringVar(&m.IdempotencyKey, "idempotency-key", "",
		"of a single message: a second one with it is a duplicate")
	f.StringToStringVar(&m.Headers, "header", nil, "NAME=VALUE, can be repeated")
	return cmd
}

func (e *enqueuer) run(ctx context.Context, a *app, c *client.Client, argv []string) error {
	switch {
	case e.batch < 1 || e.batch > 1000:
		return usagef("--batch must be from 1 to 1000")
	case e.as != "auto" && e.as != "payload" && e.as != "message":
		return usagef("--as must be auto, payload or message")
	case e.imported && (e.as == "payload" || e.message.IdempotencyKey != ""):
		return usagef("--import goes neither with --as payload nor with --idempotency-key")
	case len(argv) > 0 && e.file != "":
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
		text := messages(e.enqueued) + " enqueued"
		if e.imported {
			text += fmt.Sprintf(", %d ignored", e.dups)
		} else if e.dups > 0 {
			text += ", " + plural(e.dups, "duplicate", "duplicates")
		}
		fmt.Fprintln(a.stderr, text)
	}
	return err
}

// send groups the input into batches and sends them in order. What was read
// before an error is still sent.
func (e *enqueuer) send(ctx context.Context, a *app, c *client.Client, in <-chan input) error {
	var batch []wire.ImportMessage
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := e.sendBatch(ctx, a, c, batch)
		batch, size = batch[:0], 0
		return err
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for {
		select {
		case v, ok := <-in:
			if !ok {
				return flush()
			}
			var m wire.ImportMessage
			if v.err == nil {
				m, v.err = e.messageOf(v)
			}
			if v.err != nil {
				if err := flush(); err != nil {
					return err
				}
				return v.err
			}
			if len(batch) == e.batch || size+len(v.value) > maxBatchBytes {
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

func (e *enqueuer) sendBatch(ctx context.Context, a *app, c *client.Client, batch []wire.ImportMessage) error {
	if e.imported {
		out, err := c.Import(ctx, e.queue, batch)
		if err != nil {
			return err
		}
		e.enqueued += int(out.Imported)
		e.dups += int(out.Ignored)
		for _, m := range out.Messages {
			if a.output != "json" && m.Status != wire.Enqueued {
				continue
			}
			if err := a.say(m, "%s", m.ID); err != nil {
				return err
			}
		}
		return nil
	}
	plain := make([]wire.NewMessage, len(batch))
	for i := range batch {
		plain[i] = batch[i].NewMessage
	}
	out, err := c.ProduceAll(ctx, e.queue, plain)
	if err != nil {
		return err
	}
	for _, p := range out {
		if p.Status == wire.Duplicate {
			e.dups++
		} else {
			e.enqueued++
		}
		if err := a.say(p, "%s", p.ID); err != nil {
			return err
		}
	}
	return nil
}

// input is one JSON value and where it came from.
type input struct {
	value jsontext.Value
	where string
	err   error
}

// values delivers the JSON values of arguments, a file or stdin. It ends with
// an input that has an error, or by closing.
func (a *app) values(ctx context.Context, argv []string, file string) (<-chan input, error) {
	out := make(chan input, 64)
	send := func(v input) bool {
		select {
		case out <- v:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if len(argv) > 0 {
		go func() {
			defer close(out)
			for i, s := range argv {
				v := input{value: jsontext.Value(s), where: fmt.Sprintf("payload %d", i+1)}
				if !v.value.IsValid() {
					v.err = usagef(`%s is not JSON: %.64q (a text is written '"text"')`, v.where, s)
				}
				if !send(v) || v.err != nil {
					return
				}
			}
		}()
		return out, nil
	}
	name, r := "stdin", a.stdin
	var closer io.Closer
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usagef("%w", err)
		}
		name, r, closer = file, f, f
	} else if terminal(a.stdin) {
		fmt.Fprintln(a.stderr, "qlogd: reading JSON from the terminal; end with ctrl-D")
	}
	go func() {
		defer close(out)
		if closer != nil {
			defer closer.Close()
		}
		br := bufio.NewReaderSize(r, 256<<10)
		var src io.Reader = br
		if magic, _ := br.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
			z, err := gzip.NewReader(br)
			if err != nil {
				send(input{err: fmt.Errorf("%s: %w", name, err)})
				return
			}
			src = z
		}
		lines := &lineCounter{r: src}
		dec := jsontext.NewDecoder(lines)
		for n := 1; ; n++ {
			v, err := dec.ReadValue()
			if errors.Is(err, io.EOF) {
				return
			}
			where := fmt.Sprintf("%s: value %d", name, n)
			if err != nil {
				var syntax *jsontext.SyntacticError
				if errors.As(err, &syntax) {
					err = usagef("%s (line %d): %w", where, lines.at(min(syntax.ByteOffset, dec.InputOffset()+1)), err)
				}
				send(input{err: err})
				return
			}
			if !send(input{value: v.Clone(), where: where}) {
				return
			}
		}
	}()
	return out, nil
}

// lineCounter remembers where lines end, so that an error names one.
type lineCounter struct {
	r     io.Reader
	pos   int64
	lines []int64 // offsets of line ends
}

func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for i, b := range p[:n] {
		if b == '\n' {
			l.lines = append(l.lines, l.pos+int64(i))
		}
	}
	l.pos += int64(n)
	return n, err
}

func (l *lineCounter) at(offset int64) int {
	n := 1
	for _, end := range l.lines {
		if end >= offset {
			break
		}
		n++
	}
	return n
}

// messageOf makes a message of a value, with the flags where it leaves
// something open.
func (e *enqueuer) messageOf(v input) (m wire.ImportMessage, err error) {
	switch {
	case e.imported:
		if err = wire.Decode(v.value, &m); err == nil && m.SourceID == "" {
			return m, usagef("%s has no source_id", v.where)
		}
	case e.as == "message" || e.as == "auto" && isMessage(v.value):
		err = wire.Decode(v.value, &m.NewMessage)
	default:
		m.Payload = v.value
	}
	if err != nil {
		return m, usagef("%s: %w", v.where, err)
	}
	f := &e.message
	m.Key, m.Kind = cmp.Or(m.Key, f.Key), cmp.Or(m.Kind, f.Kind)
	m.CorrelationID = cmp.Or(m.CorrelationID, f.CorrelationID)
	m.IdempotencyKey = cmp.Or(m.IdempotencyKey, f.IdempotencyKey)
	m.TTLMS = cmp.Or(m.TTLMS, e.ttl.Milliseconds())
	if m.Priority == nil && e.priority != 0 {
		m.Priority = &e.priority
	}
	if m.DelayMS == 0 && m.DeliverAt == 0 {
		m.DelayMS = e.delay.Milliseconds()
	}
	if len(f.Headers) > 0 {
		headers := maps.Clone(f.Headers)
		maps.Copy(headers, m.Headers)
		m.Headers = headers
	}
	return m, nil
}

// isMessage reports whether a value is a whole message rather than a payload.
func isMessage(v jsontext.Value) bool {
	if v.Kind() != '{' {
		return false
	}
	var m wire.NewMessage
	if err := json.Unmarshal(v, &m, json.RejectUnknownMembers(true)); err != nil {
		return errors.Is(err, wire.ErrBase64) // the server says what is wrong with it
	}
	return m.Payload != nil || m.PayloadBytes != nil
}
