package console

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// changeTypes are the events that change how a queue treats its messages, or empty it.
var changeTypes = []string{"queue_created", "queue_updated", "queue_paused", "queue_resumed",
	"queue_purged", "queue_deleted"}

const maxChanges = 500

// policy shows the policy of a queue as it is at the instant, and how it came to be so.
func (p *page) policy() error {
	name := p.r.PathValue("queue")
	q, err := p.api.Queue(p.ctx, name, p.then()...)
	if err != nil {
		return err
	}
	data := policyData{Queue: q, Groups: groupsOf(settingsOf(&q.Policy))}
	data.As = p.as("GET", v1("queues", name), nil, []string{"queue", "show", name})
	if p.part("changes") && p.fragment() { // the log is read: after the rest of the page
		found, err := p.api.Events(p.ctx, client.EventQuery{
			From: "start", To: p.At, Queue: name, Types: changeTypes, Limit: maxChanges,
			After: p.Param("changes"),
		}, p.now())
		if err != nil {
			return err
		}
		data.Changes = changesOf(found.Events)
		if found.Partial || len(found.Events) == maxChanges {
			data.More = p.Query("changes", found.NextCursor)
		}
		data.Begins = found.HistoryBeginsAt
	}
	return p.show("queue-policy", "Policy of "+name, data)
}

type policyData struct {
	Queue   *wire.Queue
	Groups  []group
	As      *as
	Changes []policyChange // the newest first
	More    string         // the query of what comes after these; "" is none
	Begins  *wire.Time     // of history, where it does not have all of them
}

// policyChange is an event of a queue, with the settings that it changed.
type policyChange struct {
	wire.Event
	Settings []wire.Difference
}

// setting is one value of a policy.
type setting struct {
	Path  string // delivery.max_attempts
	Value string // JSON
}

// Name is the last part of the path.
func (s setting) Name() string { return s.Path[strings.LastIndexByte(s.Path, '.')+1:] }

// Text is the value for people.
func (s setting) Text() string { return settingText(s.Path, s.Value) }

// settingText writes a value with its unit, which is in the name.
func settingText(path, value string) string {
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case value == "null":
		return "–"
	case strings.HasPrefix(value, `"`):
		text, _ := jsontext.AppendUnquote(nil, value) // an error: it was read from JSON
		return string(text)
	case err != nil || n == 0:
		return value
	case strings.HasSuffix(path, "_ms"):
		return span(time.Duration(n) * time.Millisecond)
	case strings.HasSuffix(path, "_seconds"):
		return span(time.Duration(n) * time.Second)
	case strings.HasSuffix(path, "_bytes"):
		return humanize.IBytes(uint64(n))
	}
	return humanize.Comma(n)
}

// settingsOf returns the values of a policy, in the order of its fields.
func settingsOf(p *wire.Policy) (out []setting) {
	b, err := wire.Marshal(p)
	if err != nil {
		return nil // it was read from JSON
	}
	dec := jsontext.NewDecoder(bytes.NewReader(b))
	var walk func(path string)
	walk = func(path string) {
		if dec.PeekKind() != '{' || path == "message_schema" {
			v, _ := dec.ReadValue()
			out = append(out, setting{path, string(v)})
			return
		}
		_, _ = dec.ReadToken()
		for dec.PeekKind() == '"' {
			name, _ := dec.ReadToken()
			walk(strings.TrimPrefix(path+"."+name.String(), "."))
		}
		_, _ = dec.ReadToken()
	}
	walk("")
	return out
}

// group is the settings below one name.
type group struct {
	Name     string
	Settings []setting
}

func groupsOf(settings []setting) (out []group) {
	for _, s := range settings {
		name, _, nested := strings.Cut(s.Path, ".")
		if !nested {
			name = "queue"
		}
		i := slices.IndexFunc(out, func(g group) bool { return g.Name == name })
		if i < 0 {
			i, out = len(out), append(out, group{Name: name})
		}
		out[i].Settings = append(out[i].Settings, s)
	}
	return out
}

// changesOf returns events, the newest first, with what each has changed since the one before.
func changesOf(events []wire.Event) []policyChange {
	out := make([]policyChange, len(events))
	var before []byte
	for i, e := range events {
		c := policyChange{Event: e}
		if e.Policy != nil {
			now, _ := wire.Marshal(e.Policy) // an error: it was read from JSON
			if before != nil {
				c.Settings = wire.Differences(before, now)
			}
			before = now
		}
		out[len(events)-1-i] = c
	}
	return out
}
