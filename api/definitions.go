package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// maxDefinitions bounds each of the two lists of one document.
const maxDefinitions = 1000

// getDefinitions answers GET /v1/definitions?at=&consistency= with a document that PUT accepts.
func (s *Server) getDefinitions(q *request) error {
	st := q.read("at", "consistency").state()
	if q.err != nil {
		return q.err
	}
	var out wire.Definitions
	for _, v := range st.Queues() {
		queue := wire.DefinedQueue{Name: v.Name, Policy: policyOf(&v.Policy)}
		out.Queues = append(out.Queues, queue)
	}
	for _, v := range st.Webhooks() {
		w := get(q, func() (wire.Webhook, error) { return webhookOf(&v) })
		defined := wire.DefinedWebhook{Name: w.Name, WebhookDefinition: w.WebhookDefinition}
		out.Webhooks = append(out.Webhooks, defined)
	}
	return q.answer(http.StatusOK, &out)
}

// putDefinitions answers PUT /v1/definitions?dry_run=: it creates or updates the queues and
// webhooks in the body, all or none, in one entry. Others are unchanged.
func (s *Server) putDefinitions(q *request) error {
	var body wire.DefinitionsRequest
	dry := q.read("dry_run").flag("dry_run")
	q.body(&body)
	if n := max(len(body.Queues), len(body.Webhooks)); n > maxDefinitions {
		q.refuse("", "a document has at most %d queues and %d webhooks",
			maxDefinitions, maxDefinitions)
	}
	q.barrier()
	var p *plan
	changed := func(c wire.DefinitionChange) bool { return c.Action != wire.ActionUnchanged }
	res := q.commitFresh("", "a queue or webhook", func() (*event.Command, error) {
		p = s.plan(&body, s.deps.State)
		if len(p.wrong) > 0 {
			return nil, p.refused(q)
		}
		c := &event.Command{Define: &p.define}
		if dry { // else commitFresh checks it
			n, err := q.mayCreate(c)
			s.creating.Add(-n)
			if err != nil {
				return nil, err
			}
		}
		if dry || !q.keyed() && !slices.ContainsFunc(p.effect, changed) {
			q.setAppliedIndex()
			return nil, nil
		}
		return c, nil
	})
	if q.err != nil {
		return q.err
	}
	if q.replayed { // the answer is what the first request changed, as far as that is known
		p = s.plan(&body, q.stateAt(max(res.Index, 1)-1))
	}
	return q.answer(http.StatusOK, &wire.DefinitionChanges{Changes: p.effect})
}

// refused returns the problem to answer an invalid plan with; q.errors lists all its problems.
func (p *plan) refused(q *request) *event.Problem {
	q.errors = nil
	first := *p.wrong[0]
	for _, w := range p.wrong {
		if w.Code != event.CodeConflict {
			first.Code = w.Code // a mistake takes precedence over a conflict, which may pass
		}
		q.errors = append(q.errors, wire.Wrong{Field: w.Field, Detail: w.Detail})
	}
	if n := len(p.wrong) - 1; n > 0 {
		first.Detail = fmt.Sprintf("%s: %s (and %d more: see errors)", first.Field, first.Detail, n)
	}
	first.Index = -1
	return &first
}

// plan is a definitions document checked against a state: the command that applies it, what that
// changes, and what is wrong with it. The state machine checks the command again.
type plan struct {
	s      *Server
	st     State
	define event.Define
	effect []wire.DefinitionChange
	wrong  []*event.Problem // Field is a path in the document: queues[1].delivery.on_dead

	will  map[string]*event.Policy // resulting policies of all queues
	users map[string]string        // resulting dead-letter queues, each to a queue that uses it
	named map[string]int           // list and name to the position in that list
	bad   map[int]bool             // positions of queues that are invalid on their own
}

// maxWrong bounds the number of reported problems: people read them.
const maxWrong = 200

// plan checks a document against a state.
func (s *Server) plan(in *wire.DefinitionsRequest, st State) *plan {
	p := &plan{
		s: s, st: st, will: map[string]*event.Policy{},
		users: map[string]string{}, named: map[string]int{}, bad: map[int]bool{},
	}
	for i, raw := range in.Queues {
		p.queue(i, raw)
	}
	p.addOthers()
	for i := range p.define.Queues {
		p.checkReferences(i)
	}
	for i, raw := range in.Webhooks {
		p.webhook(i, raw)
	}
	if len(p.wrong) == 0 {
		p.compare()
	}
	return p
}

// fault records a problem with an element of a list.
func (p *plan) fault(list string, i int, w *event.Problem) {
	if len(p.wrong) < maxWrong {
		p.wrong = append(p.wrong, w.In(list, i))
	}
}

// element checks one element: its name, and the rest with check. It records each problem that check
// finds, removes the field from the element, and checks again. It returns the number of problems.
func (p *plan) element(
	list string, i int, name string, raw jsontext.Value, check func(jsontext.Value) error,
) (wrong int) {
	seen := map[string]bool{}
	fault := func(w *event.Problem) {
		p.fault(list, i, w)
		wrong++
	}
	if w, ok := validName("name", name).(*event.Problem); ok {
		fault(w)
	} else if first, ok := p.named[list+name]; ok {
		fault(bad("name", "name %s is used by %s[%d] already", echo(name), list, first))
	} else {
		p.named[list+name] = i
	}
	for ok := true; ok && wrong < 32; {
		w, isProblem := check(raw).(*event.Problem)
		if !isProblem || seen[w.Field] {
			break
		}
		seen[w.Field] = true
		fault(w)
		raw, ok = without(raw, w.Field)
	}
	return wrong
}

// nameOf returns an element's name, "" if it has none.
func nameOf(raw jsontext.Value) string {
	var element struct {
		Name string `json:"name"`
	}
	_ = wire.Unmarshal(raw, &element)
	return element.Name
}

// queue checks one queue on its own and adds it to the command.
func (p *plan) queue(i int, raw jsontext.Value) {
	put := event.PutQueue{Name: nameOf(raw)}
	wrong := p.element("queues", i, put.Name, raw, func(raw jsontext.Value) (err error) {
		put.Policy, put.DeadLetterAuto, err = p.s.definedPolicy(put.Name, raw)
		return err
	})
	p.bad[i] = wrong > 0
	if v, ok := p.st.Queue(put.Name); ok {
		put.IfRevision = v.Revision
	}
	p.define.Queues = append(p.define.Queues, put)
	if p.will[put.Name] == nil {
		p.will[put.Name] = &put.Policy
	}
}

// definedPolicy decodes a queue's policy. dead_letter_queue may be in delivery or beside it.
func (s *Server) definedPolicy(
	name string, raw jsontext.Value,
) (p event.Policy, auto bool, err error) {
	var def wire.QueueDefinition
	p = s.defaultPolicy()
	if err := decodeProblem(wire.Decode(raw, &def), codeInvalidJSON); err != nil {
		return p, false, err
	}
	beside, in := def.DeadLetterQueue, &def.Delivery.Value.DeadLetterQueue
	if beside.Set {
		if in.Set && *in != beside {
			return p, false, bad("dead_letter_queue",
				"dead_letter_queue and delivery.dead_letter_queue name different queues")
		}
		*in, def.Delivery.Set = beside, true
	}
	auto, err = s.updatePolicy(name, &p, &def.PolicyUpdate)
	w, ok := err.(*event.Problem)
	if ok && beside.Set && w.Field == "delivery.dead_letter_queue" {
		w.Field = "dead_letter_queue"
	}
	return p, auto, err
}

// without returns an object without the member at a path such as delivery.backoff_schedule_ms[3],
// or without the deepest existing member of that path; a list is removed whole. A webhook that
// lacks a queue gets a valid one. It returns false if there is no such member.
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
	if name == "dead_letter_queue" { // without it, on_dead may seem wrong
		delete(members, "on_dead")
		if less, ok := without(members["delivery"], "on_dead"); ok {
			members["delivery"] = less
		}
	}
	out, err := wire.Marshal(members)
	return out, err == nil
}

// addOthers adds the queues that the document leaves unchanged or creates as dead-letter queues,
// and records which queues use each dead-letter queue.
func (p *plan) addOthers() {
	for _, v := range p.st.Queues() {
		if p.will[v.Name] == nil {
			p.will[v.Name] = &v.Policy
			p.users[v.Policy.DeadLetterQueue] = v.Name
		}
	}
	for _, put := range p.define.Queues {
		dlq := put.Policy.DeadLetterQueue
		p.users[dlq] = put.Name
		if put.DeadLetterAuto && p.will[dlq] == nil {
			p.will[dlq] = &event.Policy{}
		}
	}
	delete(p.users, "") // none
}

// checkReferences checks a queue's references to the other queues as they will be.
func (p *plan) checkReferences(i int) {
	put := &p.define.Queues[i]
	wrong := func(format string, args ...any) {
		p.fault("queues", i, bad("dead_letter_queue", format, args...))
	}
	if dlq := put.Policy.DeadLetterQueue; dlq != "" && dlq != put.Name {
		target, user := p.will[dlq], p.users[put.Name]
		switch {
		case target == nil && !p.bad[i]:
			wrong("dead_letter_queue '%s' does not exist; create it first", dlq)
		case target != nil && target.DeadLetterQueue != "":
			wrong("dead_letter_queue '%s' cannot have its own dead_letter_queue", dlq)
		case user != "" && user != put.Name:
			wrong("queue '%s' is the dead_letter_queue of '%s' and cannot have its own "+
				"dead_letter_queue", put.Name, user)
		}
	}
	v, _ := p.st.Queue(put.Name)
	if fixed := v.Policy.Fixed(&put.Policy); fixed != "" && v.Stats.Messages() > 0 {
		p.fault("queues", i, event.Problemf(event.CodeConflict, fixed,
			"%s can't change while the queue holds messages", fixed))
	}
	will := func(name string) *event.Policy { return p.will[name] }
	if w, ok := checkAnswerTo(put.Name, &put.Policy, will).(*event.Problem); ok {
		p.fault("queues", i, w)
	}
}

// webhook checks one webhook and adds it to the command.
func (p *plan) webhook(i int, raw jsontext.Value) {
	put := event.PutWebhook{Name: nameOf(raw)}
	if rest, ok := without(raw, "name"); ok {
		raw = rest
	}
	wrong := p.element("webhooks", i, put.Name, raw, func(raw jsontext.Value) (err error) {
		var d wire.WebhookDefinition
		if err := decodeProblem(wire.Decode(raw, &d), codeInvalidJSON); err != nil {
			return err
		}
		put.Queue = d.Queue
		put.Definition, err = p.s.checkWebhook(put.Name, &d)
		return err
	})
	if wrong == 0 && put.Queue != "" && p.will[put.Queue] == nil {
		w := bad("queue", "queue '%s' does not exist; create it first", put.Queue)
		p.fault("webhooks", i, w)
	}
	p.define.Webhooks = append(p.define.Webhooks, put)
}

// compare records what the plan changes.
func (p *plan) compare() {
	for i := range p.define.Queues {
		put := &p.define.Queues[i]
		was := p.s.defaultPolicy()
		v, exists := p.st.Queue(put.Name)
		if exists {
			was = v.Policy
		}
		before, _ := wire.Marshal(policyOf(&was)) // an error: not UTF-8, which none is
		after, _ := wire.Marshal(policyOf(&put.Policy))
		p.change(wire.KindQueue, put.Name, exists, before, after)
		dlq := put.Policy.DeadLetterQueue
		_, named := p.named["queues"+dlq]
		if put.DeadLetterAuto && !named && policyIn(p.st, dlq) == nil {
			p.change(wire.KindQueue, dlq, false, nil, nil)
		}
	}
	for _, put := range p.define.Webhooks {
		was := jsontext.Value("{}")
		v, exists := p.st.Webhook(put.Name)
		if exists {
			was = definitionOf(&v)
		}
		now := definitionOf(&event.WebhookView{Name: put.Name, Definition: put.Definition})
		p.change(wire.KindWebhook, put.Name, exists, was, now)
	}
}

func (p *plan) change(kind, name string, exists bool, before, after jsontext.Value) {
	c := wire.DefinitionChange{Kind: kind, Name: name, Action: wire.ActionUpdate}
	c.Diff = wire.Differences(before, after)
	switch {
	case !exists:
		c.Action = wire.ActionCreate
		for i := range c.Diff {
			c.Diff[i].Before = jsontext.Value("null")
		}
	case len(c.Diff) == 0:
		c.Action = wire.ActionUnchanged
	}
	p.effect = append(p.effect, c)
}
