package api

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// maxDefinitions bounds each of the two lists of one document.
const maxDefinitions = 1000

// getDefinitions answers GET /v1/definitions?at=&consistency=: all queues and webhooks as PUT takes
// them.
func (s *Server) getDefinitions(q *request) error {
	st := q.read("at", "consistency").state()
	if q.err != nil {
		return q.err
	}
	out := wire.Definitions{Queues: []wire.DefinedQueue{}, Webhooks: []wire.DefinedWebhook{}}
	for _, v := range st.Queues() {
		out.Queues = append(out.Queues, wire.DefinedQueue{Name: v.Name, Policy: policyOf(&v.Policy)})
	}
	for _, v := range st.Webhooks() {
		w := wire.DefinedWebhook{Name: v.Name}
		q.do(func() error { return readDefinition(&v, &w.WebhookDefinition) })
		out.Webhooks = append(out.Webhooks, w)
	}
	return q.answer(http.StatusOK, &out)
}

// putDefinitions answers PUT /v1/definitions?dry_run=: puts the queues and webhooks in the body, all
// or none, in one entry. Others stay as they are.
func (s *Server) putDefinitions(q *request) error {
	var body wire.DefinitionsRequest
	dry := q.read("dry_run").flag("dry_run")
	q.body(&body)
	if n := max(len(body.Queues), len(body.Webhooks)); n > maxDefinitions {
		q.refuse("", "a document has at most %d queues and %d webhooks", maxDefinitions, maxDefinitions)
	}
	q.barrier()
	var p *plan
	res := q.commitFresh("", "a queue or webhook", func() (c *event.Command, err error) {
		if p, err = s.plan(&body, s.deps.State); err != nil {
			return nil, err
		}
		if err := p.refused(q); err != nil {
			return nil, err
		}
		if dry || !q.keyed() && !p.changes() {
			q.tellIndex()
			return nil, nil
		}
		return &event.Command{Define: &p.define}, nil
	})
	if q.replayed { // the answer is what it changed the first time, as far as that is known
		p = get(q, func() (*plan, error) { return s.planOf(q, &body, res.Index) })
	}
	if q.err != nil {
		return q.err
	}
	return q.answer(http.StatusOK, &wire.DefinitionChanges{Changes: p.effect})
}

// planOf is the plan of a request as it was when it became the entry of this index.
func (s *Server) planOf(q *request, in *wire.DefinitionsRequest, index uint64) (*plan, error) {
	if s.deps.Past != nil && index > 0 {
		st, err := s.deps.Past(q.Context(), event.Instant{Kind: event.InstantIndex, Index: index - 1})
		if err == nil {
			return s.plan(in, st)
		}
	}
	return s.plan(in, s.deps.State)
}

// refused is the problem of a plan that cannot be carried out, with everything that is wrong
// with it.
func (p *plan) refused(q *request) error {
	if len(p.wrong) == 0 {
		return nil
	}
	q.errors = nil
	first := *p.wrong[0]
	for _, w := range p.wrong {
		if w.Code != event.CodeConflict {
			first.Code = w.Code // the mistakes first: a conflict may pass
		}
		q.errors = append(q.errors, wire.Wrong{Field: w.Field, Detail: w.Detail})
	}
	if n := len(p.wrong) - 1; n > 0 {
		first.Detail = fmt.Sprintf("%s: %s (and %d more: see errors)", first.Field, first.Detail, n)
	}
	first.Index = -1
	return &first
}

func (p *plan) changes() bool {
	return slices.ContainsFunc(p.effect, func(c wire.DefinitionChange) bool { return c.Action != wire.ActionUnchanged })
}
