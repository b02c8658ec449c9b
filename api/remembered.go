package api

import (
	"github.com/qlogd/qlogd/event"
)

// The state remembers the newest deduplication hashes and requests; older ones,
// within their time, lie in the log. Before such a command is proposed the log
// is asked, and the command says up to where: deciding turns one back that
// looked too short (event.CodeStaleRevision).

// lookForDuplicates asks the log for messages of the same hashes as p's.
func (s *Server) lookForDuplicates(p *event.Produce, q *event.QueueView) error {
	window := dedupWindow(p, q)
	if window == 0 || s.deps.State.DedupFloor() == 0 {
		return nil
	}
	p.Looked = s.deps.Log.Head()
	from, err := s.since(window)
	if err != nil {
		return err
	}
	for i := range p.Messages {
		m := &p.Messages[i]
		hash := m.DedupKey
		if q.Policy.DedupBy == event.DedupByContent && !p.Import {
			hash = m.PayloadHash
		}
		m.Seen, m.SeenUntil = event.ID{}, 0
		if hash.IsZero() {
			continue
		}
		e, err := s.deps.Log.Find(hash.Of(q.Number), from)
		if err != nil {
			return err
		}
		if e != nil && e.Type == event.Enqueued {
			m.Seen, m.SeenUntil = e.ID, e.Until
		}
	}
	return nil
}

// firstOf returns the message of which another one of the same deduplication hash
// would be a duplicate, as the log tells it.
func (s *Server) firstOf(q *event.QueueView, m *event.NewMessage, payload []byte) (id event.ID, found bool, err error) {
	window := q.Policy.DedupWindowSeconds * 1000
	hash := m.DedupKey
	if q.Policy.DedupBy == event.DedupByContent {
		hash = hashBytes(payload)
	}
	if window == 0 || hash.IsZero() {
		return id, false, nil
	}
	from, err := s.since(window)
	if err != nil {
		return id, false, err
	}
	e, err := s.deps.Log.Find(hash.Of(q.Number), from)
	if err != nil || e == nil || e.Type != event.Enqueued || e.Until <= s.clock(s.deps.State) {
		return id, false, err
	}
	return e.ID, true, nil
}

// since returns the index from which on what is younger than age, in ms, lies in
// the log: 0, all that is kept, where history does not go back so far.
func (s *Server) since(age int64) (uint64, error) {
	from, err := s.deps.Log.From(event.Instant{Kind: event.InstantTime, Time: s.clock(s.deps.State) - age})
	if err != nil && s.gone(err) {
		return 0, nil
	}
	return from, err
}

// lookForAnswer asks the log for an earlier answer to a request. Where there is
// one, ref leads to it; else r says up to where was looked.
func (s *Server) lookForAnswer(r *event.Request) (ref event.Ref, err error) {
	if s.deps.State.AnswerFloor() == 0 {
		return event.Ref{}, nil
	}
	r.Looked = s.deps.Log.Head()
	from, err := s.since(event.KeepAnswersMS)
	if err != nil {
		return event.Ref{}, err
	}
	e, err := s.deps.Log.Find(r.Key, from)
	if err != nil || e == nil || e.Type != event.AnswerKept || e.Until <= s.clock(s.deps.State) {
		return event.Ref{}, err
	}
	if e.Body != r.Body {
		return event.Ref{}, event.Problemf(event.CodeKeyReused, "Idempotency-Key", "this Idempotency-Key came with another request before")
	}
	return event.RefOf(e.ID), nil
}

// lookedShort reports whether a request was looked for too short.
func (s *Server) lookedShort(r *event.Request) bool {
	return r != nil && r.Looked < s.deps.State.AnswerFloor()
}

// mayRepeat reports whether the request may be a repeated one: it came with an
// Idempotency-Key under which an answer was kept. Only such a one may go on where
// what it is about is not there. Ask it behind the look at the state: what a
// request does and its answer are one entry.
func (q *request) mayRepeat() (bool, error) {
	r, err := q.idempotency()
	if r == nil || err != nil {
		return false, err
	}
	from, err := q.s.since(event.KeepAnswersMS)
	if err != nil {
		return false, err
	}
	e, err := q.s.deps.Log.Find(r.Key, from)
	return e != nil && e.Type == event.AnswerKept, err
}

// repeated answers from the log what it holds already, if this request came
// with an Idempotency-Key that the state no longer remembers.
func (q *request) repeated(r *event.Request) (res event.Result, done bool, err error) {
	if r == nil {
		return res, false, nil
	}
	ref, err := q.s.lookForAnswer(r)
	if err != nil || ref.IsZero() {
		return res, false, err
	}
	res, err = q.kept(ref)
	return res, true, err
}
