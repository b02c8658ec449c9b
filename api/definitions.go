package api

import (
	"fmt"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// maxDefinitions bounds each of the two lists of one document.
const maxDefinitions = 1000

// getDefinitions answers GET /v1/definitions?at=&consistency=: all queues and
// webhooks as PUT takes them.
func (s *Server) getDefinitions(q *request) error {
	if err := q.allow("at", "consistency"); err != nil {
		return err
	}
	st, release, err := q.state()
	if err != nil {
		return err
	}
	defer release()
	out := wire.Definitions{Queues: []wire.DefinedQueue{}, Webhooks: []wire.DefinedWebhook{}}
	for _, v := range st.Queues() {
		out.Queues = append(out.Queues, wire.DefinedQueue{Name: v.Name, Policy: policyOf(&v.Policy)})
	}
	for _, v := range st.Webhooks() {
		w := wire.DefinedWebhook{Name: v.Name}
		if err := wire.Unmarshal(v.Definition, &w.WebhookDefinition); err != nil {
			return fmt.Errorf("webhook %s: %w", v.Name, err)
		}
		out.Webhooks = append(out.Webhooks, w)
	}
	return q.answer(http.StatusOK, &out)
}

// putDefinitions answers PUT /v1/definitions?dry_run=: puts the queues and
// webhooks that the body names, all or none, in one entry. What it does not name
// stays as it is.
func (s *Server) putDefinitions(q *request) error {
	if err := q.allow("dry_run"); err != nil {
		return err
	}
	dry, err := q.flag("dry_run")
	if err != nil {
		return err
	}
	var in wire.DefinitionsRequest
	if err := q.decode(&in, false, false); err != nil {
		return err
	}
	if n := max(len(in.Queues), len(in.Webhooks)); n > maxDefinitions {
		return bad("", "a document has at most %d queues and %d webhooks", maxDefinitions, maxDefinitions)
	}
	req, err := q.idempotency()
	if err != nil {
		return err
	}
	for range maxStale {
		if err := s.barrier(q.Context()); err != nil {
			return err
		}
		plan, err := s.plan(&in, s.deps.State)
		if err != nil {
			return err
		}
		refused := plan.refused(q)
		// Whether a request with a key was carried out before is found in deciding: what
		// is wrong with it now may have been right then.
		if refused != nil && (dry || req == nil || plan.mistaken) {
			return refused
		}
		if dry || req == nil && !plan.changes() {
			q.tellIndex()
			return q.answer(http.StatusOK, plan.answer())
		}
		res, err := q.propose(&event.Command{Request: req, Define: &plan.define})
		if isStale(err) {
			continue
		}
		if err != nil {
			if p, ok := err.(*event.Problem); ok && !p.Unknown && refused != nil && p.Code != event.CodeKeyReused {
				return refused
			}
			return err
		}
		if q.replayed {
			// What it changed when it was first done is told, as far as it is known.
			if plan, err = s.planOf(q, &in, res.Index); err != nil {
				return err
			}
		}
		return q.answer(http.StatusOK, plan.answer())
	}
	return event.Problemf(event.CodeConflict, "", "queues and webhooks keep changing; try again")
}

// planOf is the plan of a request as it was when it became the entry of this
// index.
func (s *Server) planOf(q *request, in *wire.DefinitionsRequest, index uint64) (*plan, error) {
	if s.deps.Past == nil || index == 0 {
		return s.plan(in, s.deps.State)
	}
	st, release, err := s.deps.Past.At(q.Context(), event.Instant{Kind: event.InstantIndex, Index: index - 1})
	if err != nil {
		return s.plan(in, s.deps.State)
	}
	defer release()
	return s.plan(in, st)
}

// refused is the problem of a plan that can't be carried out: it has all that is
// wrong with it, and nothing of it is done.
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
	for _, c := range p.told {
		if c.Action != wire.ActionUnchanged {
			return true
		}
	}
	return false
}

func (p *plan) answer() *wire.DefinitionChanges {
	if p.told == nil {
		p.told = []wire.DefinitionChange{}
	}
	return &wire.DefinitionChanges{Changes: p.told}
}
