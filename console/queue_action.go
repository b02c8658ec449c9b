package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// produceData is the form for a test message, as it was filled in.
type produceData struct {
	Queue                                    *wire.Queue
	Payload, Format, Key, Kind, Delay, Error string
	Headers                                  string // NAME: VALUE, one a line
	Priority                                 string
	As                                       *as
}

func (p *page) produceForm() error {
	data := produceData{
		Payload: "{\n  \"hello\": \"world\"\n}", Priority: "5", Format: "json",
		Key: p.Param("key"), Kind: p.Param("kind"),
	}
	return p.showProduce(http.StatusOK, &data)
}

// showProduce shows the form, of a queue that must be there.
func (p *page) showProduce(status int, data *produceData) (err error) {
	name := p.r.PathValue("queue")
	if data.Queue, err = p.api.Queue(p.ctx, name, p.now()); err != nil {
		return err
	}
	body := `{"messages":[{"payload":{"hello":"world"}}]}`
	data.As = p.as("POST", "/v1/queues/"+name+"/messages", body, "enqueue", name,
		`{"hello":"world"}`)
	return p.render(status, "queue-produce", "Produce into "+name, data)
}

// produce enqueues a test message.
func (p *page) produce() error {
	f := p.r.PostForm
	data := produceData{
		Payload: f.Get("payload"), Format: f.Get("format"), Key: f.Get("key"), Kind: f.Get("kind"),
		Delay: f.Get("delay"), Headers: f.Get("headers"), Priority: f.Get("priority"),
	}
	m, wrong := data.message()
	if wrong != "" {
		data.Error = wrong
		return p.showProduce(http.StatusBadRequest, &data)
	}
	name := p.r.PathValue("queue")
	done, err := p.api.Produce(p.ctx, name, m)
	if err != nil {
		data.Error = errText(err)
		return p.again(err, func(status int) error { return p.showProduce(status, &data) })
	}
	return p.done("Enqueued message "+done[0].ID+" into "+name+".", "queues", name)
}

// message returns what the form describes, or what is wrong with it.
func (d *produceData) message() (m wire.NewMessage, wrong string) {
	m = wire.NewMessage{Key: d.Key, Kind: d.Kind}
	if d.Format == "text" {
		m.PayloadBytes, m.ContentType = []byte(d.Payload), "text/plain; charset=utf-8"
	} else if m.Payload = jsontext.Value(d.Payload); !m.Payload.IsValid() {
		return m, "The payload is not JSON. Choose text to send it as it is."
	}
	if d.Priority != "" {
		n, err := strconv.ParseInt(d.Priority, 10, 64)
		if err != nil {
			return m, "The priority must be a number from 1 to 10."
		}
		m.Priority = &n
	}
	if d.Delay != "" {
		s, err := strconv.ParseFloat(d.Delay, 64)
		if err != nil || s < 0 || s > 400*24*3600 {
			return m, "The delay must be a number of seconds."
		}
		m.DelayMS = new(int64(s * 1000))
	}
	for line := range strings.Lines(d.Headers) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return m, fmt.Sprintf("Headers are lines of NAME: VALUE, not %q.", clip(60, line))
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return m, ""
}

// pauseData is the form that pauses or resumes a queue or a key.
type pauseData struct {
	Queue              *wire.Queue
	Resume             bool
	Key, Reason, Error string
	As                 *as
}

// Verb is what the form does.
func (d *pauseData) Verb() string {
	if d.Resume {
		return "resume"
	}
	return "pause"
}

func (p *page) pauseForm() error {
	return p.showPause(http.StatusOK, &pauseData{Key: p.Param("key")})
}

func (p *page) showPause(status int, data *pauseData) (err error) {
	name := p.r.PathValue("queue")
	data.Resume = strings.HasSuffix(p.r.URL.Path, "/resume")
	if data.Queue, err = p.api.Queue(p.ctx, name, p.now()); err != nil {
		return err
	}
	body, flags := "", []string{"queue", data.Verb(), name}
	if data.Key != "" {
		text, _ := jsontext.AppendQuote(nil, data.Key)
		body, flags = `{"key":`+string(text)+`}`, append(flags, "--key", data.Key)
	}
	data.As = p.as("POST", "/v1/queues/"+name+"/"+data.Verb(), body, flags...)
	title := strings.ToUpper(data.Verb()[:1]) + data.Verb()[1:] + " " + name
	return p.render(status, "queue-pause", title, data)
}

// pause pauses or resumes, as the path says.
func (p *page) pause() error {
	name := p.r.PathValue("queue")
	data := pauseData{
		Resume: strings.HasSuffix(p.r.URL.Path, "/resume"),
		Key:    p.r.PostForm.Get("key"), Reason: p.r.PostForm.Get("reason"),
	}
	why := client.Reason(data.Reason)
	var err error
	switch {
	case data.Resume && data.Key != "":
		err = p.api.ResumeKey(p.ctx, name, data.Key, why)
	case data.Resume:
		err = p.api.ResumeQueue(p.ctx, name, why)
	case data.Key != "":
		err = p.api.PauseKey(p.ctx, name, data.Key, why)
	default:
		err = p.api.PauseQueue(p.ctx, name, why)
	}
	if err != nil {
		data.Error = errText(err)
		return p.again(err, func(status int) error { return p.showPause(status, &data) })
	}
	what := name
	if data.Key != "" {
		what = fmt.Sprintf("key %q of %s", data.Key, name)
	}
	return p.done(strings.ToUpper(data.Verb()[:1])+data.Verb()[1:]+"d "+what+".", "queues", name)
}

// purgeData is the form that discards all but leased messages.
type purgeData struct {
	Queue         *wire.Queue
	Reason, Error string
	As            *as
}

// Count is how many messages would be discarded now.
func (d *purgeData) Count() int64 { return d.Queue.Stats.Depth + d.Queue.Stats.Scheduled }

func (p *page) purgeForm() error { return p.showPurge(http.StatusOK, &purgeData{}) }

func (p *page) showPurge(status int, data *purgeData) (err error) {
	name := p.r.PathValue("queue")
	if data.Queue, err = p.api.Queue(p.ctx, name, p.now()); err != nil {
		return err
	}
	data.As = p.as("POST", "/v1/queues/"+name+"/purge", "", "queue", "purge", name, "--yes")
	return p.render(status, "queue-purge", "Purge "+name, data)
}

// purge discards the messages, if the name of the queue was typed.
func (p *page) purge() error {
	name := p.r.PathValue("queue")
	data := purgeData{Reason: p.r.PostForm.Get("reason")}
	if p.r.PostForm.Get("confirm") != name {
		data.Error = "Type the name of the queue to confirm."
		return p.showPurge(http.StatusBadRequest, &data)
	}
	n, err := p.api.PurgeQueue(p.ctx, name, client.Reason(data.Reason))
	if err != nil {
		data.Error = errText(err)
		return p.again(err, func(status int) error { return p.showPurge(status, &data) })
	}
	return p.done("Purged "+plural(n, "message")+" of "+name+".", "queues", name)
}

// explained returns the query of an explanation, as a script would write it.
func (p *page) explained(id string, key *string) string {
	q := url.Values{}
	if id != "" {
		q.Set("message_id", id)
	}
	if key != nil {
		q.Set("key", *key)
	}
	if p.At != "" {
		q.Set("at", p.At)
	}
	return q.Encode()
}

// explainFlags are those of qlogd queue explain.
func explainFlags(id string, key *string) (flags []string) {
	if id != "" {
		flags = append(flags, "--message", id)
	}
	if key != nil {
		flags = append(flags, "--key", *key)
	}
	return flags
}
