package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
)

// maxBatchBytes keeps a request well below the server's default limit of
// 16 MiB, whatever else is in it.
const maxBatchBytes = 8 << 20

// enqueuer is one run of qlogd enqueue. Its exported fields are the flags.
type enqueuer struct {
	Queue  string
	Import bool
	File   string `flag:"file|f"`
	As     string `default:"auto"`
	Batch  int    `default:"500"`

	Key            string
	Priority       int64
	Delay          *time.Duration
	TTL            time.Duration
	Kind           string
	CorrelationID  string
	IdempotencyKey string
	Header         map[string]string

	enqueued, dups int
}

var enqueueCommand = remote("enqueue", enqueue,
	func(_ *app, cmd *cobra.Command) { cmd.Args = cobra.ArbitraryArgs }) // --queue may name it

func enqueue(c request, e *enqueuer) error {
	payloads := c.args
	if e.Queue == "" {
		if len(payloads) == 0 {
			return usagef("name the queue: qlogd enqueue QUEUE [PAYLOAD…]")
		}
		e.Queue, payloads = payloads[0], payloads[1:]
	}
	switch {
	case e.Batch < 1 || e.Batch > 1000:
		return usagef("--batch must be from 1 to 1000")
	case e.As != "auto" && e.As != "payload" && e.As != "message":
		return usagef("--as must be auto, payload or message")
	case e.Import && (e.As == "payload" || e.IdempotencyKey != ""):
		return usagef("--import goes neither with --as payload nor with --idempotency-key")
	case len(payloads) > 0 && e.File != "":
		return usagef("either payloads as arguments or --file")
	}
	in, err := c.values(payloads, e.File)
	if err != nil {
		return err
	}
	err = e.send(c, in)
	if c.output != "json" || err != nil {
		text := messages(e.enqueued) + " enqueued"
		if e.Import {
			text += fmt.Sprintf(", %d ignored", e.dups)
		} else if e.dups > 0 {
			text += ", " + plural(e.dups, "duplicate", "duplicates")
		}
		fmt.Fprintln(c.stderr, text)
	}
	return err
}

// send groups the input into batches and sends them in order: a batch is full, or what has been
// read so far, so that a slow pipe is not held up. What was read before an error is still sent.
func (e *enqueuer) send(c request, in iter.Seq[input]) error {
	var batch []wire.ImportMessage
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := e.sendBatch(c, batch)
		batch, size = batch[:0], 0
		return err
	}
	for v := range in {
		var m wire.ImportMessage
		if v.err == nil {
			m, v.err = e.messageOf(v)
		}
		if v.err != nil || size+len(v.value) > maxBatchBytes {
			if err := cmp.Or(flush(), v.err); err != nil {
				return err
			}
		}
		batch, size = append(batch, m), size+len(v.value)
		if len(batch) == e.Batch || !v.more {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return cmp.Or(flush(), c.ctx.Err())
}

func (e *enqueuer) sendBatch(c request, batch []wire.ImportMessage) error {
	if e.Import {
		out, err := c.Import(c.ctx, e.Queue, batch)
		for i := 0; err == nil && i < len(out.Messages); i++ {
			m := &out.Messages[i]
			err = e.sent(c, m.ID, m.Status, m)
		}
		return err
	}
	plain := make([]wire.NewMessage, len(batch))
	for i := range batch {
		plain[i] = batch[i].NewMessage
	}
	out, err := c.Produce(c.ctx, e.Queue, plain...)
	for i := 0; err == nil && i < len(out); i++ {
		err = e.sent(c, out[i].ID, out[i].Status, &out[i])
	}
	return err
}

// sent counts and prints what became of a message. Ignored ones have no line of text.
func (e *enqueuer) sent(c request, id, status string, answer any) error {
	if status == wire.Duplicate {
		e.dups++
	} else {
		e.enqueued++
	}
	if e.Import && c.output != "json" && status != wire.Enqueued {
		return nil
	}
	return c.say(answer, "%s", id)
}

// input is one JSON value and where it came from.
type input struct {
	value jsontext.Value
	where string
	more  bool // the next one need not be waited for
	err   error
}

// values returns the JSON values of arguments, a file or stdin. An input that has an error
// is the last one.
func (a *app) values(args []string, file string) (iter.Seq[input], error) {
	switch {
	case len(args) > 0:
		return argumentValues(args), nil
	case file != "" && file != "-":
		f, err := os.Open(file)
		if err != nil {
			return nil, usagef("%w", err)
		}
		return func(yield func(input) bool) {
			defer f.Close()
			readValues(file, f)(yield)
		}, nil
	}
	if terminal(a.stdin) {
		fmt.Fprintln(a.stderr, "qlogd: reading JSON from the terminal; end with ctrl-D")
	}
	return readValues("stdin", a.stdin), nil
}

func argumentValues(args []string) iter.Seq[input] {
	return func(yield func(input) bool) {
		for i, s := range args {
			v := input{value: jsontext.Value(s), where: fmt.Sprintf("payload %d", i+1),
				more: i+1 < len(args)}
			if !v.value.IsValid() {
				v.err = usagef(`%s is not JSON: %.64q (a text is written '"text"')`, v.where, s)
			}
			if !yield(v) || v.err != nil {
				return
			}
		}
	}
}

// readValues reads JSON values, also gzipped, one after another.
func readValues(name string, r io.Reader) iter.Seq[input] {
	return func(yield func(input) bool) {
		br := bufio.NewReaderSize(r, 1<<20)
		r = br
		if magic, _ := br.Peek(2); string(magic) == "\x1f\x8b" {
			z, err := gzip.NewReader(br)
			if err != nil {
				yield(input{err: fmt.Errorf("%s: %w", name, err)})
				return
			}
			r = z
		}
		var lines newlines // read so far
		dec := jsontext.NewDecoder(io.TeeReader(r, &lines))
		for n := 1; ; n++ {
			v, err := dec.ReadValue()
			if errors.Is(err, io.EOF) {
				return
			}
			where := fmt.Sprintf("%s: value %d", name, n)
			rest := dec.UnreadBuffer() // from the end of the value before, a line's end
			if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
				var ahead newlines
				_, _ = ahead.Write(rest[min(1, len(rest)):])
				err = usagef("%s (line %d): %w", where, lines-ahead+1, syntax)
			}
			more := br.Buffered() > 0 || len(bytes.TrimSpace(rest)) > 0
			if !yield(input{v.Clone(), where, more, err}) || err != nil {
				return
			}
		}
	}
}

// newlines counts the line ends of what is written to it.
type newlines int

func (n *newlines) Write(p []byte) (int, error) {
	*n += newlines(bytes.Count(p, []byte("\n")))
	return len(p), nil
}

// messageOf returns a value as a message; the flags set what it leaves open.
func (e *enqueuer) messageOf(v input) (m wire.ImportMessage, err error) {
	switch {
	case e.Import:
		if err = wire.Decode(v.value, &m); err == nil && m.SourceID == "" {
			return m, usagef("%s has no source_id", v.where)
		}
	case e.As == "message" || e.As == "auto" && isMessage(v.value):
		err = wire.Decode(v.value, &m.NewMessage)
	default:
		m.Payload = v.value
	}
	if err != nil {
		return m, usagef("%s: %w", v.where, err)
	}
	m.Key, m.Kind = cmp.Or(m.Key, e.Key), cmp.Or(m.Kind, e.Kind)
	m.CorrelationID = cmp.Or(m.CorrelationID, e.CorrelationID)
	m.IdempotencyKey = cmp.Or(m.IdempotencyKey, e.IdempotencyKey)
	m.TTLMS = cmp.Or(m.TTLMS, e.TTL.Milliseconds())
	if e.Priority != 0 {
		m.Priority = cmp.Or(m.Priority, &e.Priority)
	}
	if m.DeliverAt == 0 && m.DelayMS == nil && e.Delay != nil {
		m.DelayMS = new(e.Delay.Milliseconds())
	}
	if len(e.Header) > 0 {
		headers := maps.Clone(e.Header)
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
