package console

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// produce enqueues a test message.
func (p *page) produce() error {
	q, err := p.api.Queue(p.ctx, p.r.PathValue("queue"), p.now())
	if err != nil {
		return err
	}
	f := p.newForm("Produce into "+q.Name, "Enqueue message", p.LinkNow("queues", q.Name),
		field{Name: "payload", Label: "Payload", Rows: 8, Wide: true,
			Value: "{\n  \"hello\": \"world\"\n}"},
		field{Name: "format", Label: "Format", Options: []string{"json", "text"}},
		field{Name: "key", Label: "Key"}, field{Name: "kind", Label: "Kind"},
		field{Name: "priority", Label: "Priority", Hint: "1 is first", Kind: "number"},
		field{Name: "delay", Label: "Delay", Placeholder: "10m"},
		field{Name: "headers", Label: "Headers", Hint: "NAME: VALUE, one a line", Rows: 2, Wide: true})
	if q.Paused {
		f.Text = "The queue is paused: the message waits until it is resumed."
	}
	m, wrong := newMessage(f)
	if body := (wire.ProduceRequest{Messages: []wire.NewMessage{m}}); wrong == nil {
		text, _ := wire.Marshal(m) // as encodes it too, and has no command if that fails
		f.As = p.as("POST", v1("queues", q.Name, "messages"), body,
			[]string{"enqueue", q.Name, "--as", "message", string(text)})
	}
	return p.send(f, func() error {
		if wrong != nil {
			return wrong
		}
		done, err := p.api.ProduceAll(p.ctx, q.Name, []wire.NewMessage{m}, p.once())
		if err != nil {
			return err
		}
		return p.done(nil, "Enqueued message "+done[0].ID+" into "+q.Name+".", "queues", q.Name)
	})
}

// newMessage returns what the form describes.
func newMessage(f *form) (m wire.NewMessage, err error) {
	m = wire.NewMessage{Key: f.get("key"), Kind: f.get("kind")}
	if f.get("format") == "text" {
		m.PayloadBytes, m.ContentType = []byte(f.get("payload")), "text/plain; charset=utf-8"
	} else if m.Payload = jsontext.Value(f.get("payload")); !m.Payload.IsValid() {
		return m, mistake("The payload is not JSON. Choose text to send it as it is.")
	}
	if m.Priority, err = f.number("priority"); err != nil {
		return m, err
	}
	if m.DelayMS, err = f.delay(); err != nil {
		return m, err
	}
	for line := range strings.Lines(f.get("headers")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return m, mistake(fmt.Sprintf("Headers are lines of NAME: VALUE, not “%s”.", clip(60, line)))
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return m, nil
}

// pause pauses or resumes a queue or a key of it, as the path says.
func (p *page) pause() error {
	verb, name := path.Base(p.r.URL.Path), p.r.PathValue("queue")
	q, err := p.api.Queue(p.ctx, name, p.now())
	if err != nil {
		return err
	}
	ofKey := field{Name: "key", Label: "Key", Hint: "leave it empty for the whole queue", Wide: true}
	fields := []field{ofKey, reason}
	if q.Ordering == "fifo" {
		fields = fields[1:]
	}
	title := capital(verb) + " " + name
	f := p.newForm(title, title, p.LinkNow("queues", name), fields...)
	ready := plural(q.Stats.Depth, "message")
	f.Text = "Workers lease again. " + ready + " would be ready."
	all, one := p.api.ResumeQueue, p.api.ResumeKey
	if verb == "pause" {
		all, one = p.api.PauseQueue, p.api.PauseKey
		f.Text = "Nothing more is leased; " + plural(q.Stats.InFlight, "message") + " in flight can " +
			"still be settled, and producing continues. " + ready + " would wait."
	}
	key, body := f.get("key"), wire.PauseRequest{Reason: f.get("reason")}
	if key != "" {
		body.Key = wire.Some(key)
	}
	f.As = p.as("POST", v1("queues", name, verb), body, []string{"queue", verb, name}, "key", key,
		"reason", body.Reason)
	return p.send(f, func() error {
		what, because := name, client.Reason(body.Reason)
		if key != "" {
			what = "key “" + clip(80, key) + "” of " + name
			all = func(ctx context.Context, queue string, opts ...client.CallOption) error {
				return one(ctx, queue, key, opts...)
			}
		}
		return p.done(all(p.ctx, name, because, p.once()), capital(verb)+"d "+what+".", "queues", name)
	})
}

// purge discards all messages that are not leased, if the name of the queue was typed.
func (p *page) purge() error {
	name := p.r.PathValue("queue")
	q, err := p.api.Queue(p.ctx, name, p.now())
	if err != nil {
		return err
	}
	n := plural(q.Stats.Depth+q.Stats.Scheduled, "message")
	f := p.newForm("Purge "+name, "Purge "+n, p.LinkNow("queues", name), reason)
	f.Danger, f.Type = true, name
	f.Text = fmt.Sprintf("Discards %s: %s ready and %s scheduled. %s in flight stay. While history "+
		"has them, Undo brings them back. Messages that arrive before you confirm are discarded too.", n,
		humanize.Comma(q.Stats.Depth), humanize.Comma(q.Stats.Scheduled),
		plural(q.Stats.InFlight, "message"))
	why := f.get("reason")
	f.As = p.as("POST", v1("queues", name, "purge"), wire.ReasonBody{Reason: why},
		[]string{"queue", "purge", name, "--yes"}, "reason", why)
	return p.send(f, func() error {
		n, err := p.api.PurgeQueue(p.ctx, name, client.Reason(why), p.once())
		return p.done(err, "Purged "+plural(n, "message")+" of "+name+".", "queues", name)
	})
}
