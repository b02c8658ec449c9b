package api

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
)

// Limits of a replay and a purge.
const (
	maxNamed       = 10_000 // message_ids in one call; a filter has no bound
	maxAtOnce      = event.MaxBatch
	maxRate        = 10_000
	maxReplays     = 1_000_000
	defaultReplays = 100
	maxEdits       = event.MaxBatch
	dryMessages    = 100 // message ids in the answer to a dry run
	drySample      = 10  // whole messages in it

	// A filter by error reads at most so many before a task does the rest, whose total is then that
	// of all dead letters.
	mostErrors = 20_000
)

// movement is a replay or a purge of dead letters.
type movement struct {
	q     *request
	queue string // in which they died
	kind  event.TaskKind
	dry   bool
	field string                     // of the request, that names messages
	names []event.ID                 // message_ids; nil: by the spec's filter
	edits map[string]wire.ReplayEdit // by any id of a message
	order event.Order
	spec  dead.Spec // for a task

	// Set by the newest call of choose:
	target event.QueueView         // of a replay
	index  map[event.ID]int        // message to its position in names
	total  int64                   // number of messages found
	found  []event.MessageView     // the first of them; in a dry run the first that would move
	moved  []event.Moved           // messages skipped before the proposal
	passed int64                   // number of them
	unused map[event.ID]*dead.Edit // edits whose messages were not found yet
}

// movement starts reading a replay or purge request that may have these query parameters.
func (q *request) movement(kind event.TaskKind, query ...string) *movement {
	m := &movement{
		q: q, queue: q.read(append(query, "reason")...).queue(), kind: kind, field: "message_ids",
	}
	q.barrier() // this node's state is searched: it must not be behind
	q.ofTenant(m.queue)
	return m
}

// replayDead answers POST /v1/queues/{queue}/dead/replay.
func (s *Server) replayDead(q *request) error {
	var body wire.ReplayRequest
	m := q.movement(event.TaskReplay)
	q.body(&body)
	q.because(body.Reason)
	m.edits, m.dry, m.spec.Order = body.Edit, body.DryRun, body.Order
	var ok bool
	if m.order, ok = event.Parse[event.Order](body.Order); !ok {
		q.refuse("order", "order must be original, append or head, not %s", echo(body.Order))
	}
	if body.To != "" {
		q.do(func() error { return validName("to", body.To) })
	}
	if body.To != m.queue {
		m.spec.To = body.To
	}
	if r := body.RatePerSecond; r != nil && (*r < 1 || *r > maxRate) {
		q.refuse("rate_per_second", "rate_per_second must be from 1 to %d, not %d", maxRate, *r)
	}
	replays := *cmp.Or(body.MaxReplays, new(int64(defaultReplays)))
	if replays < 0 || replays > maxReplays {
		q.refuse("max_replays", "max_replays must be from 0 (no limit) to %d, not %d",
			maxReplays, replays)
	}
	m.spec.Rate, m.spec.MaxReplays = deref(body.RatePerSecond), uint32(replays)
	mustExist(q, m.to(), s.deps.State.Queue, m.noTarget)
	if len(body.Edit) > maxEdits {
		q.refuse("edit", "edit must be at most %d messages, not %d", maxEdits, len(body.Edit))
	}
	m.selection(body.MessageIDs, body.Filter)
	return m.execute()
}

// purgeDead answers POST /v1/queues/{queue}/dead/purge.
func (s *Server) purgeDead(q *request) error {
	var body wire.PurgeRequest
	m := q.movement(event.TaskPurge)
	q.body(&body)
	q.because(body.Reason)
	m.dry = body.DryRun
	m.selection(body.MessageIDs, body.Filter)
	return m.execute()
}

// deleteDead answers DELETE /v1/queues/{queue}/dead/{message_id}.
func (s *Server) deleteDead(q *request) error {
	s.moveOne(q, event.TaskPurge)
	return q.answer(http.StatusNoContent, nil)
}

// moveOne replays or purges the message in the path, and returns its new id.
func (s *Server) moveOne(q *request, kind event.TaskKind, query ...string) event.ID {
	m := q.movement(kind, query...)
	q.becauseBody()
	m.field, m.spec.MaxReplays = "message_id", defaultReplays
	m.selection([]string{q.PathValue("message_id")}, nil)
	moved := append(m.commit().Moved, event.Moved{Code: event.SkipGone})[0]
	switch {
	case q.err != nil:
	case moved.Code == "":
		return moved.To
	case moved.Code == event.SkipLeased:
		q.err = event.Problemf(event.CodeConflict, m.field, "message %s is leased in its "+
			"dead-letter queue: its worker must settle it first", moved.ID)
	case moved.Code == event.SkipMaxReplays:
		q.err = event.Problemf(event.CodeConflict, m.field, "message %s was replayed %d times "+
			"already; POST /v1/queues/{queue}/dead/replay takes max_replays",
			moved.ID, defaultReplays)
	default:
		q.err = event.Problemf(event.CodeMessageNotFound, m.field,
			"message %s is not dead in queue %s any more", m.names[0], m.queue)
	}
	return event.ID{}
}

// selection reads the message ids, or the filter.
func (m *movement) selection(named []string, filter *wire.DeadFilter) {
	q := m.q
	switch n := len(named); {
	case named != nil && filter != nil:
		q.refuse("filter", "message_ids and filter exclude each other")
	case filter != nil:
		m.spec.Filter = q.deadFilter(filter, "filter.")
	case named == nil:
		q.refuse("message_ids", `either message_ids or filter is needed; "filter": {} is all`)
	case n < 1 || n > maxNamed:
		q.refuse("message_ids", "message_ids must have 1 to %d entries, not %d", maxNamed, n)
	}
	for i, name := range named {
		m.names = append(m.names, get(q, func() (event.ID, error) {
			id, err := ulid(m.field, name)
			return id, m.at(i, err)
		}))
	}
}

// at sets a problem's position in message_ids.
func (m *movement) at(i int, err error) error {
	p, ok := err.(*event.Problem)
	if !ok {
		return err
	}
	if m.field != "message_ids" {
		i = -1
	}
	p = p.At(i)
	p.Field = m.field
	return p
}

// find returns a message that is dead in the queue now, by any id that it has or had.
func (m *movement) find(field string, id event.ID) (*event.MessageView, error) {
	t, err := m.q.s.follow(m.q.Context(), m.q.s.deps.State, id)
	if err == nil && (t.live == nil || !t.live.DiedIn(m.queue)) {
		err = m.q.notDead(field, m.queue, id, &t)
	}
	return t.live, err
}

// newEdit validates an edit of a message.
func (s *Server) newEdit(field string, in *wire.ReplayEdit) (out *dead.Edit, err error) {
	out = &dead.Edit{
		ContentType: in.ContentType, Payload: in.Payload, HasHeaders: in.Headers.Set,
		HasPayload: in.Payload != nil || in.PayloadBytes != nil, Binary: in.PayloadBytes != nil,
	}
	if out.Binary {
		out.Payload = in.PayloadBytes
	}
	n := len(out.Payload)
	switch {
	case in.Payload != nil && out.Binary:
		return nil, bad(field+".payload", "%s has both payload and payload_base64", field)
	case !out.HasPayload && !out.HasHeaders:
		return nil, bad(field, "%s needs a payload, a payload_base64 or headers", field)
	case in.ContentType != "" && !out.Binary:
		return nil, bad(field+".content_type", "%s.content_type goes with payload_base64", field)
	case int64(n) > s.opts.MaxPayload:
		return nil, event.Problemf(event.CodePayloadTooLarge, field+".payload",
			"the payload has %d bytes, more than %d", n, s.opts.MaxPayload)
	}
	if err := mediaType(field+".content_type", in.ContentType); err != nil {
		return nil, err
	}
	if out.Headers, err = messageHeaders(in.Headers.Value); err != nil {
		p := *err.(*event.Problem)
		p.Field = field + ".headers"
		return nil, &p
	}
	return out, nil
}

// choose finds the named or filtered messages in the current state.
func (m *movement) choose() error {
	st := m.q.s.deps.State
	m.index, m.total, m.found, m.moved, m.passed = map[event.ID]int{}, 0, nil, nil, 0
	if m.kind == event.TaskReplay {
		var ok bool
		if m.target, ok = st.Queue(m.to()); !ok {
			return m.noTarget(m.to())
		}
	}
	if err := m.findEdits(); err != nil {
		return err
	}
	var err error
	if m.spec.Filter == nil {
		err = m.chooseNamed()
	} else if err = diedIn(st, m.queue); err == nil {
		search := &dead.Search{Queue: m.queue, Filter: *m.spec.Filter}
		if !m.dry && search.Filter.ReadsErrors() {
			search.Most = mostErrors
		}
		for v, err := range m.q.s.deadLetters(st).Select(m.q.Context(), search) {
			if err == nil {
				err = m.take(v)
			}
			if err != nil {
				return err
			}
		}
		if search.More {
			m.total = max(st.DeadCount(m.queue), maxAtOnce+1)
			return nil
		}
	}
	if err == nil && len(m.unused) > 0 {
		id := slices.SortedFunc(maps.Keys(m.unused), event.ID.Compare)[0]
		return bad("edit", "edit names message %s, which is not among those to be replayed", id)
	}
	return err
}

func (m *movement) to() string { return cmp.Or(m.spec.To, m.queue) }

func (m *movement) noTarget(name string) *event.Problem {
	p := queueNotFound(name)
	if m.spec.To != "" {
		p.Field = "to"
	}
	return p
}

// findEdits checks the edits and finds their messages.
func (m *movement) findEdits() error {
	m.spec.Edit = map[event.ID]*dead.Edit{}
	for _, name := range slices.Sorted(maps.Keys(m.edits)) {
		id, err := ulid("edit", name)
		if err != nil {
			return err
		}
		in := m.edits[name]
		edit, err := m.q.s.newEdit("edit."+name, &in)
		if err != nil {
			return err
		}
		v, err := m.find("edit", id)
		if err == nil && m.spec.Edit[v.ID] != nil {
			err = bad("edit", "edit names message %s twice, by two of its ids", v.ID)
		}
		if err != nil {
			return err
		}
		m.spec.Edit[v.ID] = edit
	}
	m.unused = maps.Clone(m.spec.Edit)
	return nil
}

// chooseNamed finds the named messages by any ids that they have or had.
func (m *movement) chooseNamed() error {
	m.spec.IDs = nil
	for i, id := range m.names {
		v, err := m.find("", id)
		if err != nil {
			return m.at(i, err)
		}
		if _, twice := m.index[v.ID]; twice {
			continue // named by two of its ids
		}
		m.index[v.ID] = i
		m.spec.IDs = append(m.spec.IDs, v.ID)
		if err := m.take(v); err != nil {
			return err
		}
	}
	return nil
}

// take adds a message that was found. A dry run also checks whether it would be moved.
func (m *movement) take(v *event.MessageView) (err error) {
	m.total++
	delete(m.unused, v.ID)
	moves, most := true, m.spec.MaxReplays
	switch replay := m.kind == event.TaskReplay; {
	case !m.dry:
	case v.State == event.StateLeased:
		moves = m.skip(v.ID, event.SkipLeased)
	case replay && most > 0 && v.Dead.ReplayCount >= most:
		moves = m.skip(v.ID, event.SkipMaxReplays)
	case replay:
		_, moves, err = m.item(v)
	}
	if moves && len(m.found) < maxAtOnce {
		m.found = append(m.found, *v)
	}
	return err
}

func (m *movement) skip(id event.ID, code string) (moves bool) {
	if m.passed++; len(m.moved) < maxAtOnce {
		m.moved = append(m.moved, event.Moved{ID: id, Code: code})
	}
	return false
}

// item returns a message's item of a Replay command. If a filter selected the message, one that
// does not match the target's schema is skipped.
func (m *movement) item(v *event.MessageView) (item event.ReplayItem, ok bool, err error) {
	item, err = m.q.s.deadLetters(m.q.s.deps.State).Item(v, m.spec.Edit[v.ID], &m.target)
	if p, misfit := err.(*event.Problem); misfit && m.spec.Filter != nil {
		return item, m.skip(v.ID, p.Code), nil
	}
	return item, err == nil, m.at(m.index[v.ID], err)
}

// execute moves the selected messages, or in a dry run finds what would be moved, and answers. A
// repeated request gets the first answer, whether a task did it or not.
func (m *movement) execute() error {
	q, out := m.q, wire.DeadMoved{DryRun: m.dry}
	if m.dry {
		q.do(m.choose)
		for _, v := range m.found[:min(dryMessages, len(m.found))] {
			m.moved = append(m.moved, event.Moved{ID: v.ID})
		}
		sample := m.found[:min(drySample, len(m.found))]
		out.Sample = get(q, func() ([]wire.Message, error) { return q.s.messages(sample, math.MaxInt64) })
		out.Count = new(m.total - m.passed)
	} else {
		res := m.commit()
		if !res.ID.IsZero() {
			return q.accepted(res.ID)
		}
		m.moved = append(m.moved, res.Moved...)
	}
	for _, r := range m.moved {
		id := r.ID.String()
		if r.Code != "" {
			out.Skipped = append(out.Skipped, wire.Skipped{MessageID: id, Code: r.Code})
			continue
		}
		moved := wire.ReplayedMessage{MessageID: id}
		if !r.To.IsZero() {
			moved.NewMessageID = r.To.String()
		}
		out.Messages = append(out.Messages, moved)
	}
	n := cmp.Or(out.Count, new(int64(len(out.Messages))))
	if out.Replayed = n; m.kind == event.TaskPurge {
		out.Replayed, out.Purged = nil, n
	}
	return q.answer(http.StatusOK, &out)
}

// commit moves the selected messages, at once or by a task.
func (m *movement) commit() event.Result {
	return get(m.q, func() (event.Result, error) {
		res, err := m.q.proposeFresh("to", "the queue's policy", m.command)
		p, ok := errors.AsType[*event.Problem](err)
		if ok && p.Code == event.CodeMessageNotFound && m.names != nil {
			// Another request was faster: choose returns which message it moved, and where.
			err = cmp.Or(m.choose(), m.at(-1, err))
		}
		return res, err
	})
}

// command returns the command that moves the selected messages, nil (no entry) if there are none.
func (m *movement) command() (*event.Command, error) {
	if err := m.choose(); err != nil {
		return nil, err
	}
	if m.total > maxAtOnce || m.spec.Rate > 0 && m.total > m.spec.Rate {
		return task.Create(m.kind, m.queue, m.total, &m.spec)
	}
	named := m.spec.Filter == nil
	purge := &event.PurgeDead{Queue: m.queue, Strict: named}
	replay := &event.Replay{
		Queue: m.queue, To: m.spec.To, Order: m.order, MaxReplays: m.spec.MaxReplays,
		Strict: named, Revision: m.target.Revision,
	}
	inOrder := m.order.In(m.target.Policy.Ordering) != event.OrderAppend
	if m.kind == event.TaskReplay && inOrder {
		slices.SortStableFunc(m.found, func(a, b event.MessageView) int {
			return a.Dead.First.Compare(b.Dead.First)
		})
	}
	for i := range m.found {
		v := &m.found[i]
		if m.kind == event.TaskPurge {
			purge.IDs = append(purge.IDs, v.ID)
		} else if item, ok, err := m.item(v); err != nil {
			return nil, err
		} else if ok {
			replay.Items = append(replay.Items, item)
		}
	}
	switch {
	case !m.q.keyed() && len(replay.Items)+len(purge.IDs) == 0:
		return nil, nil
	case m.kind == event.TaskPurge:
		return &event.Command{PurgeDead: purge}, nil
	}
	return &event.Command{Replay: replay}, nil
}
