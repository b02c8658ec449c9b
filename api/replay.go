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
	dryMessages    = 100 // whose ids a dry run returns
	drySample      = 10  // that it returns whole
)

// movement is a replay or a purge of dead letters.
type movement struct {
	q     *request
	queue string // in which they died
	kind  event.TaskKind
	dry   bool
	spec  dead.Spec // for a task

	named  []event.ID        // message_ids; nil: by filter
	index  map[event.ID]int  // by id in the dead-letter queue: position in named
	edits  map[event.ID]bool // whose message was not selected yet
	order  event.Order       // of a replay
	target *event.QueueView  // of a replay; nil: it does not exist

	found   []dead.Letter  // the first maxAtOnce+1; all that are named
	total   int64          // how many were found in all
	skipped []wire.Skipped // without being proposed, at most maxAtOnce
	passed  int64          // how many a dry run skips
	would   []dead.Letter  // some of what a dry run would move
}

// replayDead answers POST /v1/queues/{queue}/dead/replay.
func (s *Server) replayDead(q *request) error {
	var body wire.ReplayRequest
	m, err := q.movement(event.TaskReplay, &body, false)
	if err != nil {
		return err
	}
	return m.execute(body.DryRun, func() error {
		if err := m.replayRequest(&body); err != nil {
			return err
		}
		return m.choose(body.MessageIDs, body.Filter)
	})
}

// purgeDead answers POST /v1/queues/{queue}/dead/purge.
func (s *Server) purgeDead(q *request) error {
	var body wire.PurgeRequest
	m, err := q.movement(event.TaskPurge, &body, false)
	if err != nil {
		return err
	}
	return m.execute(body.DryRun, func() error { return m.choose(body.MessageIDs, body.Filter) })
}

// deleteDead answers DELETE /v1/queues/{queue}/dead/{message_id}.
func (s *Server) deleteDead(q *request) error {
	if _, err := s.moveOne(q, event.TaskPurge); err != nil {
		return err
	}
	return q.noContent()
}

// moveOne replays or purges the message in the path.
func (s *Server) moveOne(q *request, kind event.TaskKind) (to event.ID, err error) {
	id := q.PathValue("message_id")
	m, err := q.movement(kind, &struct{}{}, true)
	if err != nil {
		return to, err
	}
	m.spec.MaxReplays = defaultReplays
	res, err := m.result(func() error { return m.choose([]string{id}, nil) })
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
			return to, event.Problemf(event.CodeConflict, "message_id", "message %s is leased in its dead-letter queue: its worker must settle it first", moved.ID)
		case event.SkipMaxReplays:
			return to, event.Problemf(event.CodeConflict, "message_id", "message %s was replayed %d times already; POST /v1/queues/{queue}/dead/replay takes max_replays", moved.ID, defaultReplays)
		}
	}
	return to, event.Problemf(event.CodeMessageNotFound, "message_id", "message %s is not dead in queue %s any more", id, m.queue)
}

// movement begins a replay or a purge.
func (q *request) movement(kind event.TaskKind, body any, optional bool) (*movement, error) {
	in := q.read()
	m := &movement{q: q, queue: in.queue(), kind: kind, index: map[event.ID]int{}}
	in.barrier() // this node's state is searched: it must not be behind
	in.do(func() error { return q.decode(body, optional) })
	return m, in.err
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
	m.spec.Order = in.Order
	if in.To != m.queue {
		m.spec.To = in.To
	}
	if err := m.look(); err != nil {
		return err
	}
	if len(in.Edit) > maxEdits {
		return bad("edit", "edit must be at most %d messages, not %d", maxEdits, len(in.Edit))
	}
	m.spec.Edit, m.edits = map[event.ID]*dead.Edit{}, map[event.ID]bool{}
	for _, id := range slices.Sorted(maps.Keys(in.Edit)) {
		e := in.Edit[id]
		if err := m.edit(id, &e); err != nil {
			return err
		}
	}
	return nil
}

// look looks up the queue that they go to.
func (m *movement) look() error {
	m.target = nil
	v, ok := m.q.s.deps.State.Queue(m.to())
	if ok {
		m.target = &v
		return nil
	}
	p := queueNotFound(m.to())
	if m.spec.To != "" {
		p.Field = "to"
	}
	return p
}

func (m *movement) to() string { return cmp.Or(m.spec.To, m.queue) }

// newEdit checks what replaces parts of a message.
func (s *Server) newEdit(field string, in *wire.ReplayEdit) (out *dead.Edit, err error) {
	out = &dead.Edit{
		ContentType: in.ContentType, HasPayload: in.Payload != nil || in.PayloadBytes != nil, Binary: in.PayloadBytes != nil,
		Payload: in.Payload, HasHeaders: in.Headers.Set,
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
	case len(in.ContentType) > maxContentType || !printable(in.ContentType):
		return nil, bad(field+".content_type", "%s.content_type must be a media type of at most %d bytes", field, maxContentType)
	case int64(n) > s.opts.MaxPayload:
		return nil, event.Problemf(codePayloadTooLarge, field+".payload", "the payload has %d bytes, more than %d", n, s.opts.MaxPayload)
	}
	if out.Headers, err = messageHeaders(in.Headers.Value); err != nil {
		p := *err.(*event.Problem)
		p.Field = field + ".headers"
		return nil, &p
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
	switch {
	case err != nil:
		return err
	case v == nil:
		return was.problem("edit", m.queue, asked)
	case m.spec.Edit[v.ID] != nil:
		return bad("edit", "edit names message %s twice, by two of its ids", v.ID)
	}
	m.spec.Edit[v.ID], m.edits[v.ID] = out, true
	return nil
}

// choose finds the messages that are named or that the filter selects.
func (m *movement) choose(named []string, filter *wire.DeadFilter) (err error) {
	switch n := len(named); {
	case named != nil && filter != nil:
		return bad("filter", "message_ids and filter exclude each other")
	case named == nil && filter == nil:
		return bad("message_ids", `either message_ids or filter is needed; "filter": {} is all`)
	case filter != nil:
		err = m.bySelection(filter)
	case n < 1 || n > maxNamed:
		return bad("message_ids", "message_ids must have 1 to %d entries, not %d", maxNamed, n)
	default:
		err = m.byName(named)
	}
	if err == nil && len(m.edits) > 0 {
		id := slices.SortedFunc(maps.Keys(m.edits), event.ID.Compare)[0]
		return bad("edit", "edit names message %s, which is not among those to be replayed", id)
	}
	return err
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
	if err := died(m.q.s.deps.State, m.queue); err != nil && m.kind == event.TaskReplay && m.target == nil {
		return err
	}
	for i, id := range m.named {
		v, was, err := m.q.s.deadNow(m.q, m.queue, id)
		if err != nil {
			return err
		}
		if v == nil {
			return was.problem("message_ids", m.queue, id).At(i)
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
func (m *movement) bySelection(filter *wire.DeadFilter) (err error) {
	if m.spec.Filter, err = m.q.deadFilter(filter, "filter."); err != nil {
		return err
	}
	st := m.q.s.deps.State
	if err := died(st, m.queue); err != nil {
		return err
	}
	var failed error
	_, err = m.q.s.finder(st).Select(m.q.Context(), m.queue, m.spec.Filter, dead.Between{}, 0, func(l *dead.Letter) bool {
		failed = m.take(l)
		return failed == nil
	})
	return cmp.Or(failed, err)
}

// take adds a message that was found. A dry run also checks what would become of it.
func (m *movement) take(l *dead.Letter) error {
	m.total++
	delete(m.edits, l.ID)
	if m.named != nil || len(m.found) <= maxAtOnce {
		m.found = append(m.found, *l)
	}
	if !m.dry {
		return nil
	}
	replay := m.kind == event.TaskReplay
	switch {
	case l.State == event.StateLeased:
		m.skip(l.ID, event.SkipLeased)
	case replay && m.spec.MaxReplays > 0 && l.Dead.ReplayCount >= m.spec.MaxReplays:
		m.skip(l.ID, event.SkipMaxReplays)
	default:
		if replay {
			if _, fits, err := m.item(&l.MessageView); err != nil || !fits {
				return err
			}
		}
		if len(m.would) < dryMessages {
			m.would = append(m.would, *l)
		}
	}
	return nil
}

func (m *movement) skip(id event.ID, code string) {
	if m.passed++; len(m.skipped) < maxAtOnce {
		m.skipped = append(m.skipped, wire.Skipped{MessageID: id.String(), Code: code})
	}
}

// item is one message's part of a replay. What was edited, or goes to another queue, must fit
// there. A message that does not is skipped if a filter selected it, else it is an error.
func (m *movement) item(v *event.MessageView) (item event.ReplayItem, fits bool, err error) {
	item.ID = v.ID
	edit := m.spec.Edit[v.ID]
	if m.target == nil || edit == nil && (m.spec.To == "" || len(m.target.Policy.MessageSchema) == 0) {
		return item, true, nil
	}
	c, err := m.q.s.content(v.Content)
	if err != nil {
		return item, false, err
	}
	if c == nil && (edit == nil || !edit.HasPayload) {
		err = event.Problemf(codeSchemaMismatch, "payload", "the payload of message %s was erased", v.ID)
	} else {
		if c == nil {
			c = &event.Content{}
		}
		if edit != nil {
			c = edit.Apply(c)
			item = dead.Item(v.ID, c)
		}
		err = m.q.s.Fits(m.target, c)
	}
	var p *event.Problem
	if !errors.As(err, &p) || p.Code != codeSchemaMismatch {
		return item, err == nil, err
	}
	if m.named == nil {
		m.skip(v.ID, codeSchemaMismatch)
		return item, false, nil
	}
	p = p.At(m.index[v.ID])
	p.Field = "message_ids"
	return item, false, p
}

// execute does what choose selects, or for a dry run finds out what would be done, and
// answers.
func (m *movement) execute(dry bool, choose func() error) error {
	if m.dry = dry; dry {
		if err := choose(); err != nil {
			return err
		}
		return m.answerDry()
	}
	res, err := m.result(choose)
	if err != nil {
		return err
	}
	return m.answer(&res)
}

// result does what choose selects, at once or by a task. Of a repeated request it is the first
// result, whose effect may be that nothing is left to choose.
func (m *movement) result(choose func() error) (res event.Result, err error) {
	if err = choose(); err != nil {
		return m.q.orFirst(err)
	}
	if m.total <= maxAtOnce && (m.spec.Rate == 0 || m.total <= m.spec.Rate) {
		return m.atOnce()
	}
	spec, err := m.spec.Encode()
	if err != nil {
		return res, err
	}
	return m.q.propose(&event.Command{CreateTask: &event.CreateTask{
		Kind: m.kind, Queue: m.queue, Total: m.total, Content: event.EncodeContent(&event.Content{Spec: spec}),
	}})
}

// answer answers with what was done, at once or by a task: a repeated request as
// the first one was, however it would be done by now.
func (m *movement) answer(res *event.Result) error {
	if !res.ID.IsZero() {
		return m.q.accepted(res.ID)
	}
	out := wire.Replayed{Messages: []wire.ReplayedMessage{}, Skipped: append([]wire.Skipped{}, m.skipped...)}
	for _, r := range res.Moved {
		if r.Code != "" {
			out.Skipped = append(out.Skipped, wire.Skipped{MessageID: r.ID.String(), Code: r.Code})
			continue
		}
		moved := wire.ReplayedMessage{MessageID: r.ID.String()}
		if m.kind == event.TaskReplay {
			moved.NewMessageID = r.To.String()
		}
		out.Messages = append(out.Messages, moved)
	}
	out.Replayed = int64(len(out.Messages))
	return m.send(&out)
}

// answerDry answers with what would be done.
func (m *movement) answerDry() error {
	n := m.total - m.passed
	out := wire.Replayed{DryRun: true, Replayed: n, Count: &n, Messages: []wire.ReplayedMessage{}, Skipped: append([]wire.Skipped{}, m.skipped...)}
	for _, l := range m.would {
		out.Messages = append(out.Messages, wire.ReplayedMessage{MessageID: l.ID.String()})
	}
	sample := m.would[:min(drySample, len(m.would))]
	err := m.q.s.fillErrors(sample)
	if err == nil {
		out.Sample, err = m.q.s.letters(sample)
	}
	if err != nil {
		return err
	}
	return m.send(&out)
}

// send sends an answer; a purge's differs in one name.
func (m *movement) send(r *wire.Replayed) error {
	if m.kind == event.TaskReplay {
		return m.q.answer(http.StatusOK, r)
	}
	return m.q.answer(http.StatusOK, &wire.DeadPurged{
		DryRun: r.DryRun, Purged: r.Replayed, Count: r.Count, Messages: r.Messages, Sample: r.Sample, Skipped: r.Skipped,
	})
}

// atOnce proposes all of it in one entry; nothing to do leaves no entry.
func (m *movement) atOnce() (event.Result, error) {
	var c *event.Command
	keyed := m.q.Header["Idempotency-Key"] != nil
	res, err := m.q.proposeFresh("to", "the policy of queue "+echo(m.to()), func() (_ *event.Command, err error) {
		if m.kind == event.TaskReplay && m.target != nil { // as it is now
			if err := m.look(); err != nil {
				return nil, err
			}
		}
		c = &event.Command{}
		if m.kind == event.TaskPurge {
			c.PurgeDead = &event.PurgeDead{Queue: m.queue, Strict: m.named != nil}
			for i := range m.found {
				c.PurgeDead.IDs = append(c.PurgeDead.IDs, m.found[i].ID)
			}
			if !keyed && len(c.PurgeDead.IDs) == 0 {
				return nil, nil
			}
			return c, nil
		}
		if c.Replay, err = m.command(); err != nil || !keyed && len(c.Replay.Items) == 0 {
			return nil, err
		}
		return c, nil
	})
	return res, m.refused(c, err)
}

// command is a replay of all that was found.
func (m *movement) command() (*event.Replay, error) {
	c := &event.Replay{Queue: m.queue, To: m.spec.To, Order: m.order, MaxReplays: m.spec.MaxReplays, Strict: m.named != nil}
	m.skipped = nil
	if m.target != nil {
		c.Revision = m.target.Revision
		if dead.InOrder(m.order, m.target) {
			dead.ByFirst(m.found, func(l *dead.Letter) event.ID { return l.Dead.First })
		}
	}
	for i := range m.found {
		item, fits, err := m.item(&m.found[i].MessageView)
		if err != nil {
			return nil, err
		}
		if fits {
			c.Items = append(c.Items, item)
		}
	}
	return c, nil
}

// refused gives a refusal the position in the request's message_ids.
func (m *movement) refused(c *event.Command, err error) error {
	var p *event.Problem
	if !errors.As(err, &p) || p.Code != event.CodeMessageNotFound || p.Index < 0 || m.named == nil {
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
	// Another request was faster.
	at := m.index[id]
	_, was, err := m.q.s.deadNow(m.q, m.queue, m.named[at])
	if err != nil || was.text == "" {
		return p.At(at)
	}
	return was.problem("message_ids", m.queue, m.named[at]).At(at)
}
