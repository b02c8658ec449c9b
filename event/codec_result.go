package event

import "fmt"

// EncodeResult returns a result's bytes, for an answer that is kept. A lease's
// messages and a mark's digest are not part of it: neither takes an
// Idempotency-Key.
func EncodeResult(s *Result) []byte {
	w := newWriter(s.size())
	pos, outer := w.open()
	w.uint(1, s.Index)
	w.bool(2, s.Created)
	w.int(3, s.Count)
	writeProduced(w, 4, s.Produced)
	writeSettled(w, 5, s.Settled)
	writeMoved(w, 6, s.Moved)
	w.b16(7, s.ID)
	w.close(pos, outer)
	return w.buf
}

// size is what a result's bytes take, more or less: what is produced and settled.
func (s *Result) size() int {
	const produced, settled = 3 + 2 + 17 + 2, 3 + 8 + 2*18 + 16 + 2*9
	n := 32 + produced*len(s.Produced) + settled*len(s.Settled) + (3+2*18+20)*len(s.Moved)
	for i := range s.Settled {
		n += len(s.Settled[i].Queue)
	}
	return n
}

// Without closures: a forwarded group has up to a thousand answers, and most are
// small.
func writeProduced(w *writer, tag int, list []Produced) {
	if len(list) == 0 {
		return
	}
	w.list(tag, len(list))
	for i := range list {
		pos, outer := w.open()
		w.b16(1, list[i].ID)
		w.bool(2, list[i].Duplicate)
		w.close(pos, outer)
	}
}

func writeSettled(w *writer, tag int, list []Settled) {
	if len(list) == 0 {
		return
	}
	w.list(tag, len(list))
	for i := range list {
		s := &list[i]
		pos, outer := w.open()
		w.b16(1, s.Lease)
		w.str(2, s.Status)
		w.str(3, s.Code)
		w.int(4, s.NextAt)
		w.int(5, s.ExpiresAt)
		w.b16(6, s.Message)
		w.str(7, s.Queue)
		w.close(pos, outer)
	}
}

func writeMoved(w *writer, tag int, list []Moved) {
	if len(list) == 0 {
		return
	}
	w.list(tag, len(list))
	for i := range list {
		pos, outer := w.open()
		w.b16(1, list[i].ID)
		w.b16(2, list[i].To)
		w.str(3, list[i].Code)
		w.close(pos, outer)
	}
}

// DecodeResult is the inverse of EncodeResult.
func DecodeResult(b []byte) (*Result, error) {
	r := &reader{}
	if err := r.versioned(b); err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	s := &Result{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			s.Index = r.uint()
		case 2:
			s.Created = r.bool()
		case 3:
			s.Count = r.int()
		case 4:
			s.Produced = list(r, r.produced)
		case 5:
			s.Settled = list(r, r.settled)
		case 6:
			s.Moved = list(r, r.moved)
		case 7:
			s.ID = r.b16()
		default:
			return false
		}
		return true
	})
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	return s, nil
}

func (r *reader) produced(p *Produced) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			p.ID = r.b16()
		case 2:
			p.Duplicate = r.bool()
		default:
			return false
		}
		return true
	})
}

func (r *reader) moved(m *Moved) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			m.ID = r.b16()
		case 2:
			m.To = r.b16()
		case 3:
			m.Code = r.str()
		default:
			return false
		}
		return true
	})
}

func (r *reader) settled(s *Settled) {
	r.fields(func(t int) bool {
		switch t {
		case 1:
			s.Lease = r.b16()
		case 2:
			s.Status = r.str()
		case 3:
			s.Code = r.str()
		case 4:
			s.NextAt = r.int()
		case 5:
			s.ExpiresAt = r.int()
		case 6:
			s.Message = r.b16()
		case 7:
			s.Queue = r.str()
		default:
			return false
		}
		return true
	})
}
