package api

import (
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// plan is what definitions mean to a state: the command that puts them, what it
// changes, and what is wrong. Deciding checks it again, against the state of then.
type plan struct {
	define event.Define
	told   []wire.DefinitionChange
	wrong  []*event.Problem // Field is of the whole document: queues[1].delivery.on_dead
	// mistaken: something is wrong with the document itself, whatever the state.
	mistaken bool
}

// planner makes a plan.
type planner struct {
	plan
	s     *Server
	st    State
	will  map[string]*event.Policy // queues that the document names, by name; auto ones too
	users map[string]string        // what a queue is the dead-letter queue of, when all is done
	bad   map[int]bool             // queues that are wrong in themselves

	queues, webhooks map[string]int // where each stands in its list
}

// maxWrong bounds how much that is wrong is told: somebody reads it.
const maxWrong = 200

// plan holds a document against a state. The error is no fault of the document.
func (s *Server) plan(in *wire.DefinitionsRequest, st State) (*plan, error) {
	p := &planner{s: s, st: st, will: map[string]*event.Policy{}, users: map[string]string{}, bad: map[int]bool{},
		queues: map[string]int{}, webhooks: map[string]int{}}
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
		return &p.plan, nil
	}
	return &p.plan, p.tell()
}

// fault notes what is wrong with an element of a list.
func (p *planner) fault(list string, i int, w *event.Problem) {
	out := *w
	out.Field = list + "[" + strconv.Itoa(i) + "]"
	if w.Field != "" {
		out.Field += "." + w.Field
	}
	if len(p.wrong) < maxWrong {
		p.wrong = append(p.wrong, &out)
	}
}

// mistake notes what is wrong with an element in itself.
func (p *planner) mistake(list string, i int, w *event.Problem) {
	p.fault(list, i, w)
	p.mistaken = true
	if list == "queues" {
		p.bad[i] = true
	}
}

// name checks an element's name. index is where others of its list are by name.
func (p *planner) name(list string, i int, name string, index map[string]int) {
	if !event.ValidName(name) {
		p.mistake(list, i, bad("name", "name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; it was %s", echo(name)))
		return
	}
	if first, ok := index[name]; ok {
		p.mistake(list, i, bad("name", "name %s stands in %s[%d] already", echo(name), list, first))
		return
	}
	index[name] = i
}

// queue reads one queue.
func (p *planner) queue(i int, raw jsontext.Value) {
	put := event.PutQueue{Name: nameOf(raw)}
	p.name("queues", i, put.Name, p.queues)
	wrong := p.everyFault(raw, func(raw jsontext.Value) (err error) {
		put.Policy, put.DeadLetterAuto, err = p.s.definedPolicy(put.Name, raw)
		return err
	})
	for _, w := range wrong {
		p.mistake("queues", i, w)
	}
	if v, ok := p.st.Queue(put.Name); ok {
		put.IfRevision = v.Revision
	}
	p.define.Queues = append(p.define.Queues, put)
	if p.will[put.Name] == nil {
		p.will[put.Name] = &put.Policy
	}
}

// nameOf returns an element's name, "" where it has none.
func nameOf(raw jsontext.Value) string {
	var named struct {
		Name jsontext.Value `json:"name"`
	}
	if raw.Kind() != '{' || wire.Unmarshal(raw, &named) != nil || named.Name.Kind() != '"' {
		return ""
	}
	name, _ := jsontext.AppendUnquote(nil, named.Name) // it was decoded before
	return string(name)
}

// definedPolicy reads a queue's policy. Its dead-letter queue can be named beside
// delivery or in it.
func (s *Server) definedPolicy(name string, raw jsontext.Value) (policy event.Policy, auto bool, err error) {
	var def wire.QueueDefinition
	policy = s.defaultPolicy()
	if err := decodeProblem(wire.Decode(raw, &def), codeInvalidJSON); err != nil {
		return policy, false, err
	}
	in := &def.Delivery.Value.DeadLetterQueue
	if beside := def.DeadLetterQueue; beside.Set {
		if in.Set && *in != beside {
			return policy, false, bad("dead_letter_queue", "dead_letter_queue and delivery.dead_letter_queue name different queues")
		}
		if def.Delivery.Null {
			def.Delivery = wire.Opt[wire.DeliveryUpdate]{}
			in = &def.Delivery.Value.DeadLetterQueue
		}
		*in, def.Delivery.Set = beside, true
	}
	auto, err = s.updatePolicy(name, &policy, &def.PolicyUpdate)
	if w, ok := err.(*event.Problem); ok && def.DeadLetterQueue.Set && w.Field == "delivery.dead_letter_queue" {
		w.Field = "dead_letter_queue"
	}
	return policy, auto, err
}

// everyFault finds all that is wrong with an element: what was found is taken out
// of it, and the rest is looked at again.
func (p *planner) everyFault(raw jsontext.Value, check func(jsontext.Value) error) (out []*event.Problem) {
	for range max(1, min(32, maxWrong-len(p.wrong))) {
		w, wrong := check(raw).(*event.Problem)
		if !wrong {
			return out
		}
		if slices.ContainsFunc(out, func(o *event.Problem) bool { return o.Field == w.Field }) {
			return out
		}
		out = append(out, w)
		less, ok := without(raw, w.Field)
		if !ok && w.Field == "queue" { // it is missing: any will do to see the rest
			less, ok = with(raw, w.Field, `"x"`)
		}
		if raw = less; !ok {
			return out
		}
	}
	return out
}

// without returns an object without the member at a path such as
// delivery.backoff_schedule_ms[3], or without as much of it as there is. A list
// goes whole. False where nothing of it is there.
func without(raw jsontext.Value, path string) (jsontext.Value, bool) {
	var members map[string]jsontext.Value
	if raw.Kind() != '{' || wire.Unmarshal(raw, &members) != nil {
		return nil, false
	}
	name, rest, deeper := strings.Cut(path, ".")
	name, _, _ = strings.Cut(name, "[")
	inner, ok := members[name]
	if !ok {
		return nil, false
	}
	delete(members, name)
	if deeper {
		if less, ok := without(inner, rest); ok {
			members[name] = less
		}
	}
	if name == "dead_letter_queue" || path == "delivery.dead_letter_queue" {
		// on_dead may be wrong without it only because it went.
		for _, name := range []string{"delivery", ""} {
			if less, ok := without(members[name], "on_dead"); ok {
				members[name] = less
			}
		}
	}
	out, err := wire.Marshal(members)
	return out, err == nil
}

// with returns an object with one more member.
func with(raw jsontext.Value, name, value string) (jsontext.Value, bool) {
	var members map[string]jsontext.Value
	if raw.Kind() != '{' || wire.Unmarshal(raw, &members) != nil {
		return nil, false
	}
	members[name] = jsontext.Value(value)
	out, err := wire.Marshal(members)
	return out, err == nil
}

// deadLetters notes which queues will be dead-letter queues, and whose.
func (p *planner) deadLetters() {
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
func (p *planner) policy(name string) *event.Policy {
	if will := p.will[name]; will != nil {
		return will
	}
	if v, ok := p.st.Queue(name); ok {
		return &v.Policy
	}
	return nil
}

// among checks what can only be said of a queue looking at the others, as they
// will be.
func (p *planner) among(i int) {
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
	switch to := AnswerTo(&put.Policy); {
	case to == "", to == put.Name:
	case p.policy(to) == nil:
		p.fault("queues", i, bad("push.answer_to", "push.answer_to '%s' does not exist; create it first", to))
	default:
		if circle, ok := answersEnd(put.Name, &put.Policy, p.policy).(*event.Problem); ok {
			p.fault("queues", i, circle)
		}
	}
}

// webhook reads one webhook.
func (p *planner) webhook(i int, raw jsontext.Value) {
	put := event.PutWebhook{Name: nameOf(raw)}
	p.name("webhooks", i, put.Name, p.webhooks)
	if rest, ok := without(raw, "name"); ok {
		raw = rest
	}
	wrong := p.everyFault(raw, func(raw jsontext.Value) (err error) {
		put.Queue, put.Definition, err = p.s.definedWebhook(put.Name, raw)
		return err
	})
	for _, w := range wrong {
		p.mistake("webhooks", i, w)
	}
	if len(wrong) == 0 && put.Queue != "" && p.policy(put.Queue) == nil {
		p.fault("webhooks", i, bad("queue", "queue '%s' does not exist; create it first", put.Queue))
	}
	p.define.Webhooks = append(p.define.Webhooks, put)
}

// definedWebhook reads a webhook's definition, which has no name in it.
func (s *Server) definedWebhook(name string, raw jsontext.Value) (queue string, definition []byte, err error) {
	var d wire.WebhookDefinition
	if err := decodeProblem(wire.Decode(raw, &d), codeInvalidJSON); err != nil {
		return "", nil, err
	}
	definition, err = s.checkWebhook(name, &d)
	return d.Queue, definition, err
}

// tell says what the plan changes.
func (p *planner) tell() error {
	for i := range p.define.Queues {
		put := &p.define.Queues[i]
		c := wire.DefinitionChange{Kind: wire.KindQueue, Name: put.Name, Action: wire.ActionUpdate}
		was := p.s.defaultPolicy()
		if v, ok := p.st.Queue(put.Name); ok {
			was = v.Policy
		} else {
			c.Action = wire.ActionCreate
		}
		before, err := wire.Marshal(policyOf(&was))
		if err != nil {
			return err
		}
		after, err := wire.Marshal(policyOf(&put.Policy))
		if err != nil {
			return err
		}
		p.change(c, before, after)
		dlq := put.Policy.DeadLetterQueue
		_, there := p.st.Queue(dlq)
		if _, named := p.queues[dlq]; put.DeadLetterAuto && !there && !named {
			p.told = append(p.told, wire.DefinitionChange{Kind: wire.KindQueue, Name: dlq, Action: wire.ActionCreate, Diff: []wire.Difference{}})
		}
	}
	for i := range p.define.Webhooks {
		put := &p.define.Webhooks[i]
		c := wire.DefinitionChange{Kind: wire.KindWebhook, Name: put.Name, Action: wire.ActionUpdate}
		was := jsontext.Value("{}")
		if v, ok := p.st.Webhook(put.Name); ok {
			was = v.Definition
		} else {
			c.Action = wire.ActionCreate
		}
		p.change(c, was, put.Definition)
	}
	return nil
}

func (p *planner) change(c wire.DefinitionChange, before, after jsontext.Value) {
	c.Diff = differences("", before, after)
	if c.Action == wire.ActionUpdate && len(c.Diff) == 0 {
		c.Action = wire.ActionUnchanged
	}
	if c.Action == wire.ActionCreate {
		for i := range c.Diff {
			c.Diff[i].Before = null
		}
	}
	p.told = append(p.told, c)
}
