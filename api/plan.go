package api

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// plan is what definitions mean in a state: the command that puts them, what it
// changes, and what is wrong. The state machine checks the command again.
type plan struct {
	s      *Server
	st     State
	define event.Define
	effect []wire.DefinitionChange
	wrong  []*event.Problem // Field is a path in the document: queues[1].delivery.on_dead

	will  map[string]*event.Policy // policies of the queues in the document, and of new auto ones
	users map[string]string        // in the end: dead-letter queue to a queue that uses it
	named map[string]int           // kind and name to the place in its list
	bad   map[int]bool             // queues that are wrong in themselves
}

// maxWrong bounds the number of reported problems: people read them.
const maxWrong = 200

// plan holds a document against a state. The error is no fault of the document.
func (s *Server) plan(in *wire.DefinitionsRequest, st State) (*plan, error) {
	p := &plan{s: s, st: st, effect: []wire.DefinitionChange{}, will: map[string]*event.Policy{},
		users: map[string]string{}, named: map[string]int{}, bad: map[int]bool{}}
	for i, raw := range in.Queues {
		p.queue(i, raw)
	}
	p.deadLetters()
	for i := range p.define.Queues {
		p.among(i)
	}
	for i, raw := range in.Webhooks {
		p.webhook(i, raw)
	}
	if len(p.wrong) > 0 {
		return p, nil
	}
	return p, p.compare()
}

// fault records a problem with an element of a list.
func (p *plan) fault(list string, i int, w *event.Problem) {
	out := *w
	out.Field = list + "[" + strconv.Itoa(i) + "]"
	if w.Field != "" {
		out.Field += "." + w.Field
	}
	if len(p.wrong) < maxWrong {
		p.wrong = append(p.wrong, &out)
	}
}

// element checks one element: its name, and the rest with check. Each problem that check finds
// is recorded and taken out of the element, and what remains is checked again.
func (p *plan) element(list string, i int, name string, raw jsontext.Value, check func(jsontext.Value) error) {
	var found []*event.Problem
	if first, ok := p.named[list+name]; !event.ValidName(name) {
		found = append(found, bad("name", "name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; it was %s", echo(name)))
	} else if ok {
		found = append(found, bad("name", "name %s is used by %s[%d] already", echo(name), list, first))
	} else {
		p.named[list+name] = i
	}
	start := len(found)
	for ok := true; ok && len(found) < 32; {
		w, wrong := check(raw).(*event.Problem)
		if !wrong || slices.ContainsFunc(found[start:], func(o *event.Problem) bool { return o.Field == w.Field }) {
			break
		}
		found = append(found, w)
		raw, ok = without(raw, w.Field)
	}
	for _, w := range found {
		p.fault(list, i, w)
	}
	if list == "queues" && len(found) > 0 {
		p.bad[i] = true
	}
}

// nameOf returns an element's name, "" where it has none.
func nameOf(raw jsontext.Value) string {
	var element struct {
		Name any `json:"name"`
	}
	_ = wire.Unmarshal(raw, &element)
	name, _ := element.Name.(string)
	return name
}

// queue reads one queue.
func (p *plan) queue(i int, raw jsontext.Value) {
	put := event.PutQueue{Name: nameOf(raw)}
	p.element("queues", i, put.Name, raw, func(raw jsontext.Value) (err error) {
		put.Policy, put.DeadLetterAuto, err = p.s.definedPolicy(put.Name, raw)
		return err
	})
	if v, ok := p.st.Queue(put.Name); ok {
		put.IfRevision = v.Revision
	}
	p.define.Queues = append(p.define.Queues, put)
	if p.will[put.Name] == nil {
		p.will[put.Name] = &put.Policy
	}
}

// definedPolicy reads a queue's policy. Its dead-letter queue can be named beside
// delivery or in it.
func (s *Server) definedPolicy(name string, raw jsontext.Value) (policy event.Policy, auto bool, err error) {
	var def wire.QueueDefinition
	policy = s.defaultPolicy()
	if err := decodeProblem(wire.Decode(raw, &def), codeInvalidJSON); err != nil {
		return policy, false, err
	}
	if beside := def.DeadLetterQueue; beside.Set {
		in := &def.Delivery.Value.DeadLetterQueue
		if in.Set && *in != beside {
			return policy, false, bad("dead_letter_queue", "dead_letter_queue and delivery.dead_letter_queue name different queues")
		}
		*in, def.Delivery.Set = beside, true
	}
	auto, err = s.updatePolicy(name, &policy, &def.PolicyUpdate)
	if w, ok := err.(*event.Problem); ok && def.DeadLetterQueue.Set && w.Field == "delivery.dead_letter_queue" {
		w.Field = "dead_letter_queue"
	}
	return policy, auto, err
}

// without returns an object without the member at a path such as
// delivery.backoff_schedule_ms[3], or without as much of it as there is. A list is removed
// whole. A webhook without its queue gets a valid one. False where there is no such member.
func without(raw jsontext.Value, path string) (jsontext.Value, bool) {
	var members map[string]jsontext.Value
	if raw.Kind() != '{' || wire.Unmarshal(raw, &members) != nil {
		return nil, false
	}
	name, rest, _ := strings.Cut(path, ".")
	name, _, _ = strings.Cut(name, "[")
	inner, ok := members[name]
	switch less, deeper := without(inner, rest); {
	case !ok && path == "queue":
		members[name] = jsontext.Value(`"x"`)
	case !ok:
		return nil, false
	case deeper:
		members[name] = less
	default:
		delete(members, name)
	}
	if name == "dead_letter_queue" { // on_dead may be wrong without it only because it is gone
		delete(members, "on_dead")
		if less, ok := without(members["delivery"], "on_dead"); ok {
			members["delivery"] = less
		}
	}
	out, err := wire.Marshal(members)
	return out, err == nil
}

// deadLetters records which queues will be dead-letter queues, and whose.
func (p *plan) deadLetters() {
	for _, v := range p.st.Queues() {
		if dlq := v.Policy.DeadLetterQueue; dlq != "" && p.will[v.Name] == nil {
			p.users[dlq] = v.Name
		}
	}
	for i := range p.define.Queues {
		put := &p.define.Queues[i]
		dlq := put.Policy.DeadLetterQueue
		if dlq == "" {
			continue
		}
		p.users[dlq] = put.Name
		if _, ok := p.st.Queue(dlq); put.DeadLetterAuto && !ok && p.will[dlq] == nil {
			p.will[dlq] = &event.Policy{}
		}
	}
}

// policy returns a queue's policy as it will be, nil where there will be none.
func (p *plan) policy(name string) *event.Policy {
	if will := p.will[name]; will != nil {
		return will
	}
	if v, ok := p.st.Queue(name); ok {
		return &v.Policy
	}
	return nil
}

// among checks a queue against the others as they will be.
func (p *plan) among(i int) {
	put := &p.define.Queues[i]
	if dlq := put.Policy.DeadLetterQueue; dlq != "" && dlq != put.Name {
		const field = "dead_letter_queue"
		target := p.policy(dlq)
		switch user := p.users[put.Name]; {
		case target == nil && !p.bad[i]:
			p.fault("queues", i, bad(field, "dead_letter_queue '%s' does not exist; create it first", dlq))
		case target != nil && target.DeadLetterQueue != "":
			p.fault("queues", i, bad(field, "dead_letter_queue '%s' cannot have its own dead_letter_queue", dlq))
		case user != "" && user != put.Name:
			p.fault("queues", i, bad(field, "queue '%s' is the dead_letter_queue of '%s' and cannot have its own dead_letter_queue", put.Name, user))
		}
	}
	if v, ok := p.st.Queue(put.Name); ok && v.Policy.Ordering != put.Policy.Ordering && v.Stats.Ready+v.Stats.Scheduled+v.Stats.InFlight > 0 {
		p.fault("queues", i, event.Problemf(event.CodeConflict, "ordering", "ordering can't change while the queue holds messages"))
	}
	if w := checkAnswerTo(put.Name, &put.Policy, p.policy); w != nil {
		p.fault("queues", i, w)
	}
}

// webhook reads one webhook.
func (p *plan) webhook(i int, raw jsontext.Value) {
	put := event.PutWebhook{Name: nameOf(raw)}
	if rest, ok := without(raw, "name"); ok {
		raw = rest
	}
	mistakes := len(p.wrong)
	p.element("webhooks", i, put.Name, raw, func(raw jsontext.Value) (err error) {
		var d wire.WebhookDefinition
		if err := decodeProblem(wire.Decode(raw, &d), codeInvalidJSON); err != nil {
			return err
		}
		put.Queue = d.Queue
		put.Definition, err = p.s.checkWebhook(put.Name, &d)
		return err
	})
	if len(p.wrong) == mistakes && p.policy(put.Queue) == nil {
		p.fault("webhooks", i, bad("queue", "queue '%s' does not exist; create it first", put.Queue))
	}
	p.define.Webhooks = append(p.define.Webhooks, put)
}

// compare finds what the plan changes.
func (p *plan) compare() error {
	for i := range p.define.Queues {
		put := &p.define.Queues[i]
		was := p.s.defaultPolicy()
		v, exists := p.st.Queue(put.Name)
		if exists {
			was = v.Policy
		}
		before, err := wire.Marshal(policyOf(&was))
		after, err2 := wire.Marshal(policyOf(&put.Policy))
		if err := cmp.Or(err, err2); err != nil {
			return err
		}
		p.change(wire.KindQueue, put.Name, exists, before, after)
		dlq := put.Policy.DeadLetterQueue
		_, exists = p.st.Queue(dlq)
		if _, named := p.named["queues"+dlq]; put.DeadLetterAuto && !exists && !named {
			p.change(wire.KindQueue, dlq, false, nil, nil)
		}
	}
	for i := range p.define.Webhooks {
		put := &p.define.Webhooks[i]
		v, exists := p.st.Webhook(put.Name)
		was := jsontext.Value("{}")
		if exists {
			was = v.Definition
		}
		p.change(wire.KindWebhook, put.Name, exists, was, put.Definition)
	}
	return nil
}

func (p *plan) change(kind, name string, exists bool, before, after jsontext.Value) {
	c := wire.DefinitionChange{Kind: kind, Name: name, Action: wire.ActionUpdate, Diff: differences(before, after)}
	switch {
	case !exists:
		c.Action = wire.ActionCreate
		for i := range c.Diff {
			c.Diff[i].Before = null
		}
	case len(c.Diff) == 0:
		c.Action = wire.ActionUnchanged
	}
	p.effect = append(p.effect, c)
}
