package api

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
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
	dryMessages    = 100 // that a dry run names
	drySample      = 10  // and shows whole
)

// movement is a replay or a purge in hand.
type movement struct {
	q     *request
	queue string // in which they died
	kind  event.TaskKind
	dry   bool

	named   []event.ID        // as they were asked for; nil: filter
	index   map[event.ID]int  // by id in the dead-letter queue: position in named
	filter  *dead.Filter      // nil: named
	found   []dead.Letter     // the first maxAtOnce+1; all that are named
	total   int64             // how many were found in all
	skipped []wire.Skipped    // what is passed over without being proposed
	passed  int64             // how many these are; of a dry run, all that would be
	would   []wire.Skipped    // of a dry run: some of them
	sample  []dead.Letter     // of a dry run
	names   []event.ID        // of a dry run: some of what would be moved
	target  *event.QueueView  // of a replay; nil: it is not there
	spec    dead.Spec         // what a task would be told
	order   event.Order       // of a replay
	edits   map[event.ID]bool // that were not found yet
	again   bool              // see repeats
}

// replayDead answers POST /v1/queues/{queue}/dead/replay.
func (s *Server) replayDead(q *request) error {
	m, err := q.movement(event.TaskReplay)
	if err != nil {
		return err
	}
	var in wire.ReplayRequest
	if err := q.decode(&in, false, false); err != nil {
		return err
	}
	m.dry = in.DryRun
	if err := m.replayRequest(&in); err != nil {
		return err
	}
	if err := m.choose(in.MessageIDs, in.Filter); err != nil {
		return err
	}
	return m.carryOut()
}

// purgeDead answers POST /v1/queues/{queue}/dead/purge.
func (s *Server) purgeDead(q *request) error {
	m, err := q.movement(event.TaskPurge)
	if err != nil {
		return err
	}
	var in wire.PurgeRequest
	if err := q.decode(&in, false, false); err != nil {
		return err
	}
	m.dry = in.DryRun
	if err := m.choose(in.MessageIDs, in.Filter); err != nil {
		return err
	}
	return m.carryOut()
}

// deleteDead answers DELETE /v1/queues/{queue}/dead/{message_id}.
func (s *Server) deleteDead(q *request) error {
	if _, err := s.moveOne(q, event.TaskPurge, q.PathValue("message_id")); err != nil {
		return err
	}
	return q.noContent()
}

// moveOne replays or purges one message, named by the path.
func (s *Server) moveOne(q *request, kind event.TaskKind, id string) (to event.ID, err error) {
	m, err := q.movement(kind)
	if err != nil {
		return to, err
	}
	if err := q.decode(&struct{}{}, false, true); err != nil {
		return to, err
	}
	m.spec.MaxReplays = defaultReplays
	err = m.choose([]string{id}, nil)
	var res event.Result
	if err == nil {
		res, err = m.atOnce()
	}
	var p *event.Problem
	if errors.As(err, &p) && (p.Field == "message_ids" || p.Index >= 0) {
		one := *p
		one.Field, one.Index = "message_id", -1
		return to, &one
	}
	if err != nil {
		return to, err
	}
	for _, moved := range res.Moved {
		switch moved.Code {
		case "":
			return moved.To, nil
		case event.SkipLeased:
			return to, event.Problemf(event.CodeConflict, "message_id", "message %s is leased in its dead-letter queue: who works on it must settle it first", moved.ID)
		case event.SkipMaxReplays:
			return to, event.Problemf(event.CodeConflict, "message_id", "message %s was replayed %d times already; POST /v1/queues/{queue}/dead/replay takes max_replays", moved.ID, defaultReplays)
		}
	}
	return to, event.Problemf(event.CodeMessageNotFound, "message_id", "message %s is not dead in queue %s any more", id, m.queue)
}

// movement begins a replay or a purge.
func (q *request) movement(kind event.TaskKind) (*movement, error) {
	name, err := q.queue()
	if err != nil {
		return nil, err
	}
	if err := q.allow(); err != nil {
		return nil, err
	}
	// What is dead is looked for in this node's state: it must not be behind.
	if err := q.s.barrier(q.Context()); err != nil {
		return nil, err
	}
	return &movement{q: q, queue: name, kind: kind, index: map[event.ID]int{}}, nil
}

// repeats reports whether the request is a repeated one: then what it is about may
// be gone, by its own doing, and deciding knows the answer. It is to be asked when
// the state was looked at: what that shows of an earlier one is in the log.
func (m *movement) repeats() bool {
	if !m.again && !m.dry {
		again, err := m.q.mayRepeat()
		m.again = again || err != nil // then let deciding say what is wrong
	}
	return m.again
}

// replayRequest checks what only a replay has.
func (m *movement) replayRequest(in *wire.ReplayRequest) error {
	var ok bool
	if m.order, ok = event.ParseOrder(in.Order); !ok {
		return bad("order", "order must be original, append or head, not %s", echo(in.Order))
	}
	if in.To != "" && !event.ValidName(in.To) {
		return bad("to", "to must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; it was %s", echo(in.To))
	}
	if r := in.RatePerSecond; r != nil {
		if *r < 1 || *r > maxRate {
			return bad("rate_per_second", "rate_per_second must be from 1 to %d, not %d", maxRate, *r)
		}
		m.spec.Rate = *r
	}
	m.spec.MaxReplays = defaultReplays
	if n := in.MaxReplays; n != nil {
		if *n < 0 || *n > maxReplays {
			return bad("max_replays", "max_replays must be from 0 (no limit) to %d, not %d", maxReplays, *n)
		}
		m.spec.MaxReplays = uint32(*n)
	}
	m.spec.Order, m.spec.To = in.Order, in.To
	if in.To == m.queue {
		m.spec.To = ""
	}
	if err := m.look(); err != nil && !m.repeats() {
		return err
	}
	if len(in.Edit) > maxEdits {
		return bad("edit", "edit must be at most %d messages, not %d", maxEdits, len(in.Edit))
	}
	for _, id := range slices.Sorted(maps.Keys(in.Edit)) {
		e := in.Edit[id]
		if err := m.edit(id, &e); err != nil {
			return err
		}
	}
	return nil
}

// look looks at the queue that they go to.
func (m *movement) look() error {
	v, ok := m.q.s.deps.State.Queue(m.to())
	if !ok {
		p := queueNotFound(m.to())
		if m.spec.To != "" {
			p.Field = "to"
		}
		m.target = nil
		return p
	}
	m.target = &v
	return nil
}

func (m *movement) to() string { return cmp.Or(m.spec.To, m.queue) }

// newEdit checks what is to take the place of a message's own.
func (s *Server) newEdit(field string, in *wire.ReplayEdit) (out *dead.Edit, err error) {
	out = &dead.Edit{ContentType: in.ContentType}
	switch {
	case in.Payload != nil && in.PayloadBytes != nil:
		return nil, bad(field+".payload", "%s has both payload and payload_base64", field)
	case in.Payload != nil:
		out.HasPayload, out.Payload = true, in.Payload
	case in.PayloadBytes != nil:
		out.HasPayload, out.Binary, out.Payload = true, true, in.PayloadBytes
	case !in.Headers.Set:
		return nil, bad(field, "%s needs a payload, a payload_base64 or headers", field)
	}
	if in.ContentType != "" && !out.Binary {
		return nil, bad(field+".content_type", "%s.content_type goes with payload_base64", field)
	}
	if len(in.ContentType) > maxContentType || !printable(in.ContentType) {
		return nil, bad(field+".content_type", "%s.content_type must be a media type of at most %d bytes", field, maxContentType)
	}
	if n := len(out.Payload); int64(n) > s.opts.MaxPayload {
		return nil, event.Problemf(codePayloadTooLarge, field+".payload", "the payload has %d bytes, more than %d", n, s.opts.MaxPayload)
	}
	if in.Headers.Set {
		out.HasHeaders = true
		if out.Headers, err = messageHeaders(in.Headers.Value); err != nil {
			p := *err.(*event.Problem)
			p.Field = field + ".headers"
			return nil, &p
		}
	}
	return out, nil
}

// edit checks one edit and finds its message.
func (m *movement) edit(id string, in *wire.ReplayEdit) error {
	asked, err := ulid("edit", id)
	if err != nil {
		return err
	}
	out, err := m.q.s.newEdit("edit."+id, in)
	if err != nil {
		return err
	}
	v, was, err := m.q.s.deadNow(m.q, m.queue, asked)
	if err != nil {
		return err
	}
	if v == nil {
		if m.repeats() {
			return nil
		}
		return was.problem("edit", m.queue, asked)
	}
	if m.spec.Edit[v.ID] != nil {
		return bad("edit", "edit names message %s twice, by two of its ids", v.ID)
	}
	if m.spec.Edit == nil {
		m.spec.Edit, m.edits = map[event.ID]*dead.Edit{}, map[event.ID]bool{}
	}
	m.spec.Edit[v.ID], m.edits[v.ID] = out, true
	return nil
}

// choose finds the messages that are named or that the filter selects.
func (m *movement) choose(named []string, filter *wire.DeadFilter) error {
	switch {
	case named != nil && filter != nil:
		return bad("filter", "message_ids and filter exclude each other")
	case named == nil && filter == nil:
		return bad("message_ids", `either message_ids or filter is needed; "filter": {} is all`)
	case filter != nil:
		f, err := m.q.deadFilter(filter, "filter.")
		if err != nil {
			return err
		}
		m.filter, m.spec.Filter = f, f
		if err := died(m.q.s.deps.State, m.queue); err != nil && !m.repeats() {
			return err
		}
		if err := m.bySelection(); err != nil {
			return err
		}
	default:
		if n := len(named); n < 1 || n > maxNamed {
			return bad("message_ids", "message_ids must have 1 to %d entries, not %d", maxNamed, n)
		}
		if err := m.byName(named); err != nil {
			return err
		}
	}
	if len(m.edits) > 0 && !m.repeats() {
		for _, id := range slices.SortedFunc(maps.Keys(m.edits), event.ID.Compare) {
			return bad("edit", "edit names message %s, which is not among those to be replayed", id)
		}
	}
	return nil
}

// byName finds messages by any ids that they ever had.
func (m *movement) byName(named []string) error {
	for i, s := range named {
		id, err := ulid("message_ids", s)
		if err != nil {
			return err.(*event.Problem).At(i)
		}
		m.named = append(m.named, id)
	}
	if err := died(m.q.s.deps.State, m.queue); err != nil && m.kind == event.TaskReplay && m.target == nil && !m.repeats() {
		return err
	}
	for i, id := range m.named {
		v, was, err := m.q.s.deadNow(m.q, m.queue, id)
		if err != nil {
			return err
		}
		if v == nil {
			if m.repeats() {
				// As it is: deciding has the answer.
				v = &event.MessageView{ID: id, Dead: &event.DeadView{First: id}}
			} else {
				return was.problem("message_ids", m.queue, id).At(i)
			}
		}
		if _, twice := m.index[v.ID]; twice {
			continue // named by two of its ids
		}
		m.index[v.ID] = i
		m.spec.IDs = append(m.spec.IDs, v.ID)
		if err := m.take(&dead.Letter{MessageView: *v}); err != nil {
			return err
		}
	}
	return nil
}

// bySelection finds messages by the filter.
func (m *movement) bySelection() error {
	var failed error
	_, err := m.q.s.finder(m.q.s.deps.State).Select(m.q.Context(), m.queue, m.filter, dead.Between{}, 0, func(l *dead.Letter) bool {
		failed = m.take(l)
		return failed == nil
	})
	return cmp.Or(failed, err)
}

// take counts a message in; of a dry run, it also looks what would become of it.
func (m *movement) take(l *dead.Letter) error {
	m.total++
	delete(m.edits, l.ID)
	if m.filter == nil || len(m.found) <= maxAtOnce {
		m.found = append(m.found, *l)
	}
	if !m.dry {
		return nil
	}
	code := ""
	switch {
	case l.State == event.StateLeased:
		code = event.SkipLeased
	case m.kind == event.TaskReplay && m.spec.MaxReplays > 0 && l.Dead.ReplayCount >= m.spec.MaxReplays:
		code = event.SkipMaxReplays
	case m.kind == event.TaskReplay:
		_, err := m.item(&l.MessageView)
		if code, err = m.misfit(l.ID, err); err != nil {
			return err
		}
	}
	if code != "" {
		if m.passed++; len(m.would) < maxAtOnce {
			m.would = append(m.would, wire.Skipped{MessageID: l.ID.String(), Code: code})
		}
		return nil
	}
	if len(m.names) < dryMessages {
		m.names = append(m.names, l.ID)
	}
	if len(m.sample) < drySample {
		m.sample = append(m.sample, *l)
	}
	return nil
}

// misfit tells a message that does not fit from another error: with a filter it
// is passed over, by name the whole is refused.
func (m *movement) misfit(id event.ID, err error) (code string, _ error) {
	var p *event.Problem
	if err == nil || !errors.As(err, &p) || p.Code != codeSchemaMismatch {
		return "", err
	}
	if m.filter != nil {
		return codeSchemaMismatch, nil
	}
	at := p.At(m.index[id])
	at.Field = "message_ids"
	return "", at
}

// item is one message's part of a replay. What was edited, or goes to another
// queue, must fit there.
func (m *movement) item(v *event.MessageView) (event.ReplayItem, error) {
	out := event.ReplayItem{ID: v.ID}
	edit := m.spec.Edit[v.ID]
	if v.State == event.StateNone {
		return out, nil // not found: a repeated request (byName)
	}
	if m.target == nil || edit == nil && (m.spec.To == "" || len(m.target.Policy.MessageSchema) == 0) {
		return out, nil
	}
	c, err := m.q.s.content(v.Content)
	if err != nil {
		return out, err
	}
	if c == nil {
		if edit == nil || !edit.HasPayload {
			return out, event.Problemf(codeSchemaMismatch, "payload", "the payload of message %s was erased", v.ID)
		}
		c = &event.Content{}
	}
	if edit != nil {
		c = edit.Apply(c)
		out = dead.Item(v.ID, c)
	}
	return out, m.q.s.Fits(m.target, c)
}

// Fits checks a content against a queue's message_schema; that it does not fit
// is an *event.Problem.
func (s *Server) Fits(v *event.QueueView, c *event.Content) error {
	err := s.schemas.check(v, func(i int) ([]byte, bool, bool) { return c.Payload, c.Binary, i == 0 })
	var p *event.Problem
	if errors.As(err, &p) {
		return p.At(-1)
	}
	return err
}

// carryOut does what was asked for: at once, or by a task.
func (m *movement) carryOut() error {
	if m.dry {
		return m.tellDry()
	}
	if m.total > maxAtOnce || m.spec.Rate > 0 && m.total > m.spec.Rate {
		return m.byTask()
	}
	res, err := m.atOnce()
	if err != nil {
		return err
	}
	return m.tell(res)
}

// tell answers with what was done, at once or by a task: a repeated request as
// the first one was, whichever it would be by now.
func (m *movement) tell(res event.Result) error {
	q := m.q
	if !res.ID.IsZero() {
		return q.accepted(res.ID)
	}
	moved, gone := []wire.ReplayedMessage{}, []wire.PurgedMessage{}
	skipped := append([]wire.Skipped{}, m.skipped...)
	for _, r := range res.Moved {
		switch {
		case r.Code != "":
			skipped = append(skipped, wire.Skipped{MessageID: r.ID.String(), Code: r.Code})
		case m.kind == event.TaskPurge:
			gone = append(gone, wire.PurgedMessage{MessageID: r.ID.String()})
		default:
			moved = append(moved, wire.ReplayedMessage{MessageID: r.ID.String(), NewMessageID: r.To.String()})
		}
	}
	if m.kind == event.TaskPurge {
		return q.answer(http.StatusOK, &wire.DeadPurged{Purged: int64(len(gone)), Messages: gone, Skipped: skipped})
	}
	return q.answer(http.StatusOK, &wire.Replayed{Replayed: int64(len(moved)), Messages: moved, Skipped: skipped})
}

// atOnce proposes all of it in one entry.
func (m *movement) atOnce() (event.Result, error) {
	q := m.q
	req, err := q.idempotency()
	if err != nil {
		return event.Result{}, err
	}
	for range maxStale {
		c := &event.Command{Request: req}
		switch m.kind {
		case event.TaskPurge:
			c.PurgeDead = &event.PurgeDead{Queue: m.queue, Strict: m.filter == nil}
			for i := range m.found {
				c.PurgeDead.IDs = append(c.PurgeDead.IDs, m.found[i].ID)
			}
		default:
			if c.Replay, err = m.command(); err != nil {
				return event.Result{}, err
			}
		}
		if req == nil && (c.Replay == nil || len(c.Replay.Items) == 0) && (c.PurgeDead == nil || len(c.PurgeDead.IDs) == 0) {
			return event.Result{}, nil // nothing to do leaves no entry
		}
		res, err := q.propose(c)
		if isStale(err) {
			q.unhurried()
			if err := q.s.barrier(q.Context()); err != nil {
				return event.Result{}, err
			}
			if err := m.look(); err != nil && !m.repeats() {
				return event.Result{}, err
			}
			continue
		}
		return res, m.refused(c, err)
	}
	return event.Result{}, event.Problemf(event.CodeConflict, "to", "the policy of %s keeps changing; try again", echo(m.to()))
}

// command is a replay of all that was found.
func (m *movement) command() (*event.Replay, error) {
	c := &event.Replay{Queue: m.queue, To: m.spec.To, Order: m.order, MaxReplays: m.spec.MaxReplays, Strict: m.filter == nil}
	m.skipped = nil
	if m.target != nil {
		c.Revision = m.target.Revision
		if dead.InOrder(m.order, m.target) {
			dead.ByFirst(m.found, func(l *dead.Letter) event.ID { return l.Dead.First })
		}
	}
	for i := range m.found {
		l := &m.found[i]
		item, err := m.item(&l.MessageView)
		code, err := m.misfit(l.ID, err)
		if err != nil {
			return nil, err
		}
		if code != "" {
			m.skipped = append(m.skipped, wire.Skipped{MessageID: l.ID.String(), Code: code})
			continue
		}
		c.Items = append(c.Items, item)
	}
	return c, nil
}

// refused tells a refusal in the words of the request: by the positions of its
// message_ids.
func (m *movement) refused(c *event.Command, err error) error {
	var p *event.Problem
	if !errors.As(err, &p) || p.Code != event.CodeMessageNotFound || p.Index < 0 || m.filter != nil {
		return err
	}
	var id event.ID
	switch i := p.Index; {
	case c.Replay != nil && i < len(c.Replay.Items):
		id = c.Replay.Items[i].ID
	case c.PurgeDead != nil && i < len(c.PurgeDead.IDs):
		id = c.PurgeDead.IDs[i]
	default:
		return err
	}
	at := m.index[id]
	// Somebody was faster, or it never was.
	_, was, err2 := m.q.s.deadNow(m.q, m.queue, m.named[at])
	if err2 != nil || was.text == "" {
		return p.At(at)
	}
	return was.problem("message_ids", m.queue, m.named[at]).At(at)
}

// byTask lets a task do it.
func (m *movement) byTask() error {
	if m.kind == event.TaskReplay && m.target == nil {
		return m.look()
	}
	spec, err := m.spec.Encode()
	if err != nil {
		return err
	}
	res, err := m.q.propose(&event.Command{CreateTask: &event.CreateTask{
		Kind: m.kind, Queue: m.queue, Total: m.total, Content: event.EncodeContent(&event.Content{Spec: spec}),
	}})
	if err != nil {
		return err
	}
	return m.tell(res)
}

// tellDry tells what would be.
func (m *movement) tellDry() error {
	n := m.total - m.passed
	f := m.q.s.finder(m.q.s.deps.State)
	views := make([]event.MessageView, len(m.sample))
	for i := range m.sample {
		views[i] = m.sample[i].MessageView
	}
	texts, err := f.Errors(views)
	if err != nil {
		return err
	}
	for i := range m.sample {
		m.sample[i].Error = texts[i]
	}
	sample, err := m.q.s.letters(m.sample)
	if err != nil {
		return err
	}
	if m.would == nil {
		m.would = []wire.Skipped{}
	}
	if m.kind == event.TaskPurge {
		out := wire.DeadPurged{DryRun: true, Purged: n, Count: &n, Sample: sample, Skipped: m.would, Messages: []wire.PurgedMessage{}}
		for _, id := range m.names {
			out.Messages = append(out.Messages, wire.PurgedMessage{MessageID: id.String()})
		}
		return m.q.answer(http.StatusOK, &out)
	}
	out := wire.Replayed{DryRun: true, Replayed: n, Count: &n, Sample: sample, Skipped: m.would, Messages: []wire.ReplayedMessage{}}
	for _, id := range m.names {
		out.Messages = append(out.Messages, wire.ReplayedMessage{MessageID: id.String()})
	}
	return m.q.answer(http.StatusOK, &out)
}
