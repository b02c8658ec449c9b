package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Limits of a lineage.
const (
	maxLineage        = 1000 // messages
	maxLineagePayload = 1024 // bytes: longer ones are left out
)

// messageLineage answers GET /v1/messages/{id}/lineage: what a message came from, and what came
// from it.
func (s *Server) messageLineage(q *request) error {
	q.read("at", "consistency")
	id, st := q.pathID("id"), q.state()
	l := &lineage{q: q, st: st, found: map[event.ID]bool{}, open: []event.ID{id}}
	for len(l.open) > 0 && !l.out.Truncated && q.err == nil {
		next := l.open[0]
		l.open = l.open[1:]
		if _, ok := l.found[next]; !ok {
			q.do(func() error { return l.read(next) })
		}
	}
	if !l.found[id] && q.err == nil {
		return q.noMessage(id)
	}
	return q.answer(http.StatusOK, l.answer())
}

// lineage is a search. It needs no index: the messages that a call produces are in the same block
// as the ends of the leases that it settles.
type lineage struct {
	q     *request
	st    State             // the live one, or the past one of at=
	found map[event.ID]bool // ids that were read: whether they are in out
	edges []edge
	open  []event.ID
	out   wire.Lineage
}

// read reads a message under all its ids, and adds its neighbours to open.
func (l *lineage) read(id event.ID) error {
	history, err := l.q.s.deps.Log.History(l.q.Context(), id)
	if err != nil {
		return err
	}
	history = upTo(l.st, history)
	ids := []event.ID{id}
	for i := range history {
		e := &history[i]
		ids = append(ids, e.Subject)
		if e.IsMove() {
			ids = append(ids, e.ID)
			l.edges = append(l.edges, edge{e.Subject, e.ID, movedBy[e.Type]})
		}
	}
	for _, id := range ids {
		if err := l.node(history, id); err != nil || l.out.Truncated {
			return err
		}
	}
	for i := range history {
		e := &history[i]
		if !l.found[e.Subject] {
			continue // do not search behind messages that the token may not see
		}
		for _, c := range e.Cause {
			l.edges = append(l.edges, edge{c, e.ID, "produce"})
		}
		l.open = append(l.open, e.Cause...)
		if !e.Lease.IsZero() && e.Type != event.Leased {
			if err := l.produced(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// movedBy names the edges of moves.
var movedBy = map[event.Type]string{
	event.DeadLettered: "dead_letter", event.Replayed: "replay", event.Resurrected: "resurrect",
}

// edge is a wire.LineageEdge.
type edge struct {
	from, to event.ID
	by       string
}

// node adds a message, under one of its ids, if the token may see it.
func (l *lineage) node(history []event.Event, id event.ID) (err error) {
	if _, ok := l.found[id]; ok {
		return nil
	}
	l.found[id] = false
	var m wire.Message
	if v, ok := l.st.Message(id); ok && v.State.Live() {
		m, err = l.q.s.message(&v)
	} else if life := lifeOf(history, id); life != nil {
		m, _, err = l.q.s.pastMessage(life)
	}
	switch {
	case err != nil || m.ID == "" || !l.q.sees(m.Queue):
		return err
	case len(l.out.Nodes) == maxLineage:
		l.out.Truncated = true
		return nil
	}
	withoutLarge(&m, maxLineagePayload)
	l.out.Nodes, l.found[id] = append(l.out.Nodes, m), true
	if m.HistoryTruncated {
		l.out.HistoryBeginsAt = l.q.s.historyBegins(0)
	}
	return nil
}

// produced adds to open the messages produced by the call that ended or extended a lease with e.
func (l *lineage) produced(e *event.Event) error {
	at := event.RefOf(e.ID).Index
	for b, err := range l.q.s.deps.Log.Blocks(l.q.Context(), at, at, event.Enqueued) {
		if err != nil {
			return err
		}
		for i := range b.Events {
			if slices.Contains(b.Events[i].Cause, e.Subject) {
				l.open = append(l.open, b.Events[i].ID)
			}
		}
	}
	return nil
}

// answer returns the messages found, by id, and the edges between them.
func (l *lineage) answer() *wire.Lineage {
	l.out.Edges = []wire.LineageEdge{}
	for _, e := range l.edges {
		if l.found[e.from] && l.found[e.to] {
			edge := wire.LineageEdge{From: e.from.String(), To: e.to.String(), By: e.by}
			l.out.Edges = append(l.out.Edges, edge)
		}
	}
	slices.SortFunc(l.out.Nodes, func(a, b wire.Message) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(l.out.Edges, func(a, b wire.LineageEdge) int {
		return strings.Compare(a.To+a.From, b.To+b.From)
	})
	return &l.out
}
