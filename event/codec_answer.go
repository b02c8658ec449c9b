package event

import "fmt"

// Answer is what became of one command that a node passed on to the leader:
// Result, or one of the others.
type Answer struct {
	Result Result
	// Refusal, if set, is the leader's in place of a result: the command was
	// not executed, or it is not known whether it was (Problem.Unknown).
	Refusal *Problem
	// Back: the command was not proposed and never will be by who answers; it
	// can be taken to the next leader.
	Back bool
}

// EncodeAnswers returns the bytes of a group's answers, in the group's order.
// Unlike EncodeResult it leaves nothing out.
func EncodeAnswers(group []Answer) []byte {
	w := newWriter(answersSize(group))
	pos, outer := w.open()
	if len(group) > 0 {
		w.list(1, len(group))
		for i := range group {
			writeAnswer(w, &group[i])
		}
	}
	w.close(pos, outer)
	return w.buf
}

// DecodeAnswers is the inverse of EncodeAnswers. The group must have want
// answers: another number is refused before anything is made room for.
func DecodeAnswers(b []byte, want int) ([]Answer, error) {
	r := &reader{}
	if err := r.versioned(b); err != nil {
		return nil, fmt.Errorf("answers: %w", err)
	}
	var group []Answer
	r.only(func() {
		n := r.count()
		if r.err == nil && n != want {
			r.fail(fmt.Errorf("%d for %d commands", n, want))
		}
		if r.err != nil {
			return
		}
		group = make([]Answer, n)
		for i := 0; i < n && r.err == nil; i++ {
			r.answer(&group[i])
		}
	})
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("answers: %w", err)
	}
	if len(group) != want {
		return nil, fmt.Errorf("answers: %d for %d commands", len(group), want)
	}
	return group, nil
}

// answersSize is what a group's answers take, more or less.
func answersSize(group []Answer) int {
	const leased = 3 + 18 + 2*18 + 2*12 + 8*9
	n := 16
	for i := range group {
		s := &group[i].Result
		n += s.size() + 16*len(s.Leased)
		for j := range s.Leased {
			n += leased + len(s.Leased[j].Queue) + len(s.Leased[j].Key) + len(s.Leased[j].Kind)
		}
	}
	return n
}

func writeAnswer(w *writer, a *Answer) {
	pos, outer := w.open()
	s := &a.Result
	w.uint(1, s.Index)
	w.bool(2, s.Created)
	w.int(3, s.Count)
	w.ref(4, s.Kept)
	writeProduced(w, 5, s.Produced)
	writeSettled(w, 6, s.Settled)
	if len(s.Leased) > 0 {
		w.list(7, len(s.Leased))
		for i := range s.Leased {
			writeLeased(w, &s.Leased[i])
		}
	}
	writeProblem(w, 8, s.Problem)
	writeProblem(w, 9, a.Refusal)
	w.bool(10, a.Back)
	w.b16(11, s.Digest)
	writeMoved(w, 12, s.Moved)
	w.b16(13, s.ID)
	w.close(pos, outer)
}

func writeLeased(w *writer, m *LeasedMessage) {
	pos, outer := w.open()
	w.b16(1, m.ID)
	w.str(2, m.Queue)
	w.str(3, m.Key)
	w.str(4, m.Kind)
	w.uint(5, uint64(m.State))
	w.bool(6, m.Held)
	w.uint(7, uint64(m.Priority))
	w.uint(8, uint64(m.Attempt))
	w.uint(9, uint64(m.Size))
	w.int(10, m.EnqueuedAt)
	w.int(11, m.Due)
	w.int(12, m.Expires)
	w.b16(13, m.Lease)
	w.int(14, m.LeaseExpiresAt)
	w.ref(15, m.Content)
	w.ref(16, m.Last)
	if d := m.Dead; d != nil {
		w.tag(17)
		p, o := w.open()
		w.str(1, d.Queue)
		w.b16(2, d.MessageID)
		w.uint(3, uint64(d.Reason))
		w.uint(4, uint64(d.Attempts))
		w.int(5, d.FailedAt)
		w.int(6, d.FirstEnqueuedAt)
		w.uint(7, uint64(d.ReplayCount))
		w.close(p, o)
	}
	w.uint(18, uint64(m.MaxAttempts))
	w.close(pos, outer)
}

func writeProblem(w *writer, tag int, p *Problem) {
	if p == nil {
		return
	}
	w.tag(tag)
	pos, outer := w.open()
	w.str(1, p.Code)
	w.str(2, p.Detail)
	w.str(3, p.Field)
	w.int(4, int64(p.Index)+1) // -1, none, is the usual one
	w.int(5, p.RetryAfterMS)
	w.bool(6, p.Unknown)
	w.int(7, p.QueueDepth)
	w.close(pos, outer)
}

func (r *reader) answer(a *Answer) {
	s := &a.Result
	r.fields(func(t int) bool {
		switch t {
		case 1:
			s.Index = r.uint()
		case 2:
			s.Created = r.bool()
		case 3:
			s.Count = r.int()
		case 4:
			s.Kept = r.ref()
		case 5:
			s.Produced = list(r, r.produced)
		case 6:
			s.Settled = list(r, r.settled)
		case 7:
			s.Leased = list(r, r.leased)
		case 8:
			s.Problem = r.problem()
		case 9:
			a.Refusal = r.problem()
		case 10:
			a.Back = r.bool()
		case 11:
			s.Digest = r.b16()
		case 12:
			s.Moved = list(r, r.moved)
		case 13:
			s.ID = r.b16()
		default:
			return false
		}
		return true
	})
}

func (r *reader) leased(m *LeasedMessage) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			m.ID = r.b16()
		case 2:
			m.Queue = r.str()
		case 3:
			m.Key = r.str()
		case 4:
			m.Kind = r.str()
		case 5:
			m.State = State(r.u8())
		case 6:
			m.Held = r.bool()
		case 7:
			m.Priority = r.u8()
		case 8:
			m.Attempt = r.u32()
		case 9:
			m.Size = r.u32()
		case 10:
			m.EnqueuedAt = r.int()
		case 11:
			m.Due = r.int()
		case 12:
			m.Expires = r.int()
		case 13:
			m.Lease = r.b16()
		case 14:
			m.LeaseExpiresAt = r.int()
		case 15:
			m.Content = r.ref()
		case 16:
			m.Last = r.ref()
		case 17:
			m.Dead = r.dead()
		case 18:
			m.MaxAttempts = r.u32()
		default:
			return false
		}
		return true
	})
}

func (r *reader) dead() *DeadView {
	d := &DeadView{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			d.Queue = r.str()
		case 2:
			d.MessageID = r.b16()
		case 3:
			d.Reason = Reason(r.u8())
		case 4:
			d.Attempts = r.u32()
		case 5:
			d.FailedAt = r.int()
		case 6:
			d.FirstEnqueuedAt = r.int()
		case 7:
			d.ReplayCount = r.u32()
		default:
			return false
		}
		return true
	})
	return d
}

func (r *reader) problem() *Problem {
	p := &Problem{Index: -1}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			p.Code = r.str()
		case 2:
			p.Detail = r.str()
		case 3:
			p.Field = r.str()
		case 4:
			p.Index = int(r.int()) - 1
		case 5:
			p.RetryAfterMS = r.int()
		case 6:
			p.Unknown = r.bool()
		case 7:
			p.QueueDepth = r.int()
		default:
			return false
		}
		return true
	})
	return p
}
