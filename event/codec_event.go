package event

import (
	"crypto/sha256"
	"fmt"
)

// Version is the first byte of every coded header, content, command and
// result.
const Version = 1

// EncodeHeader returns the header of an event's record: everything but what
// the record itself carries (id, subject, back-pointer, alias, content).
func EncodeHeader(e *Event) []byte { return AppendHeader(nil, e) }

// AppendHeader appends what EncodeHeader returns to b.
func AppendHeader(b []byte, e *Event) []byte {
	w := &writer{buf: append(b, Version)}
	pos, outer := w.open()
	w.uint(1, uint64(e.Type))
	w.str(2, e.Queue)
	w.str(3, e.Actor)
	w.str(4, e.Key)
	w.str(5, e.Kind)
	w.uint(6, uint64(e.Priority))
	w.int(7, e.Due)
	w.int(8, e.Expires)
	w.uint(9, uint64(e.Size))
	w.int(10, e.Until)
	w.str(11, e.SourceID)
	w.b16(12, e.Lease)
	w.int(13, e.LeaseExpires)
	w.uint(14, uint64(e.Attempt))
	w.str(15, e.Worker)
	w.uint(16, uint64(e.Place))
	w.uint(17, uint64(e.Reason))
	w.str(18, e.ToQueue)
	w.bool(19, e.HoldsKey)
	w.bool(20, e.TakesKey)
	w.b16(21, e.Task)
	if e.Policy != nil {
		w.sub(22, func() { writePolicy(w, e.Policy) })
	}
	w.uint(23, uint64(e.Number))
	w.int(24, e.Count)
	w.b16(25, e.Body)
	w.uint(26, e.Before)
	w.uint(27, uint64(e.Rules))
	w.str(28, e.DiedIn)
	w.uint(29, uint64(e.Order))
	w.bool(30, e.Edited)
	w.uint(31, uint64(e.TaskKind))
	w.bool(32, e.Failed)
	w.str(33, e.Node)
	writeRefs(w, 34, e.Refs)
	w.str(35, e.Webhook)
	w.bytes(36, e.Definition)
	w.b16(37, e.First)
	w.close(pos, outer)
	return w.buf
}

// DecodeHeader fills an event from its record's header. What is in e.Queue before
// is taken for the queue's name if it is the same: most follow one of their queue.
func DecodeHeader(b []byte, e *Event) error {
	r := &reader{last: e.Queue}
	e.Queue = ""
	if err := r.versioned(b); err != nil {
		return fmt.Errorf("event header: %w", err)
	}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			e.Type = r.eventType()
		case 2:
			e.Queue = r.str()
		case 3:
			e.Actor = r.str()
		case 4:
			e.Key = r.str()
		case 5:
			e.Kind = r.str()
		case 6:
			e.Priority = r.u8()
		case 7:
			e.Due = r.int()
		case 8:
			e.Expires = r.int()
		case 9:
			e.Size = r.u32()
		case 10:
			e.Until = r.int()
		case 11:
			e.SourceID = r.str()
		case 12:
			e.Lease = r.b16()
		case 13:
			e.LeaseExpires = r.int()
		case 14:
			e.Attempt = r.u32()
		case 15:
			e.Worker = r.str()
		case 16:
			e.Place = Place(r.u8())
		case 17:
			e.Reason = Reason(r.u8())
		case 18:
			e.ToQueue = r.str()
		case 19:
			e.HoldsKey = r.bool()
		case 20:
			e.TakesKey = r.bool()
		case 21:
			e.Task = r.b16()
		case 22:
			e.Policy = readPolicy(r)
		case 23:
			e.Number = r.u32()
		case 24:
			e.Count = r.int()
		case 25:
			e.Body = r.b16()
		case 26:
			e.Before = r.uint()
		case 27:
			e.Rules = r.u16()
		case 28:
			e.DiedIn = r.str()
		case 29:
			e.Order = Order(r.u8())
		case 30:
			e.Edited = r.bool()
		case 31:
			e.TaskKind = TaskKind(r.u8())
		case 32:
			e.Failed = r.bool()
		case 33:
			e.Node = r.str()
		case 34:
			e.Refs = list(r, func(v *Ref) { *v = r.ref() })
		case 35:
			e.Webhook = r.str()
		case 36:
			e.Definition = r.bytes()
		case 37:
			e.First = r.b16()
		default:
			return false
		}
		return true
	})
	if err := r.end(); err != nil {
		return fmt.Errorf("event header: %w", err)
	}
	return nil
}

// Glance reads how the header of nearly every message's event begins: its type,
// and the name of its queue, which lies in b. It is not ok for another, of which
// DecodeHeader tells the same, or what is wrong.
func Glance(b []byte) (t Type, queue []byte, ok bool) {
	// Version, a map of some fields, 1: the type, 2: a text of up to 31 bytes.
	const start = 8
	if len(b) < start || b[0] != Version || b[1] != 0xde || b[4] != 1 || int(b[5]) >= len(typeNames) || b[6] != 2 || b[7]&0xe0 != 0xa0 {
		return 0, nil, false
	}
	end := start + int(b[7]&0x1f)
	if end > len(b) || b[3] < 2 {
		return 0, nil, false
	}
	return Type(b[5]), b[start:end], true
}

func (r *reader) eventType() Type {
	t := Type(r.u8())
	if int(t) >= len(typeNames) {
		r.fail(fmt.Errorf("unknown event type %d", t))
	}
	return t
}

func writeRefs(w *writer, tag int, refs []Ref) {
	if len(refs) == 0 {
		return
	}
	w.list(tag, len(refs))
	for _, v := range refs {
		w.buf = append(w.buf, 0x92) // two numbers, as ref reads them
		w.buf = appendUint(appendUint(w.buf, v.Index), uint64(v.Number))
	}
}

// versioned checks the version byte and lets r read what follows.
func (r *reader) versioned(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("empty")
	}
	if b[0] != Version {
		return fmt.Errorf("version %d is not this program's %d", b[0], Version)
	}
	r.b, r.at = b, 1
	return nil
}

func writePolicy(w *writer, p *Policy) {
	w.uint(1, uint64(p.Ordering))
	w.int(2, p.MaxAgeSeconds)
	w.int(3, p.MaxDepth)
	w.int(4, p.MaxBytes)
	w.int(5, p.LeaseMS)
	w.uint(6, uint64(p.MaxAttempts))
	w.int(7, p.InitialBackoffMS)
	w.int(8, p.BackoffMultiplier)
	w.int(9, p.MaxBackoffMS)
	w.int(10, p.BackoffJitter)
	if len(p.BackoffScheduleMS) > 0 {
		w.list(11, len(p.BackoffScheduleMS))
		for _, v := range p.BackoffScheduleMS {
			w.buf = appendInt(w.buf, v)
		}
	}
	w.uint(12, uint64(p.OnRetry))
	w.uint(13, uint64(p.OnDead))
	w.str(14, p.DeadLetterQueue)
	w.int(15, p.DedupWindowSeconds)
	w.uint(16, uint64(p.DedupBy))
	w.bytes(17, p.MessageSchema)
	w.str(18, p.Namespace)
	w.str(19, p.Description)
	w.bytes(20, p.Push)
}

func readPolicy(r *reader) *Policy {
	p := &Policy{}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			p.Ordering = Ordering(r.enum(len(orderingNames)))
		case 2:
			p.MaxAgeSeconds = r.int()
		case 3:
			p.MaxDepth = r.int()
		case 4:
			p.MaxBytes = r.int()
		case 5:
			p.LeaseMS = r.int()
		case 6:
			p.MaxAttempts = r.u32()
		case 7:
			p.InitialBackoffMS = r.int()
		case 8:
			p.BackoffMultiplier = r.int()
		case 9:
			p.MaxBackoffMS = r.int()
		case 10:
			p.BackoffJitter = r.int()
		case 11:
			p.BackoffScheduleMS = list(r, func(v *int64) { *v = r.int() })
		case 12:
			p.OnRetry = OnRetry(r.enum(len(onRetryNames)))
		case 13:
			p.OnDead = OnDead(r.enum(len(onDeadNames)))
		case 14:
			p.DeadLetterQueue = r.str()
		case 15:
			p.DedupWindowSeconds = r.int()
		case 16:
			p.DedupBy = DedupBy(r.enum(len(dedupByNames)))
		case 17:
			p.MessageSchema = r.bytes()
		case 18:
			p.Namespace = r.str()
		case 19:
			p.Description = r.str()
		case 20:
			p.Push = r.bytes()
		default:
			return false
		}
		return true
	})
	return p
}

// enum reads a number below n.
func (r *reader) enum(n int) uint8 {
	v := r.u8()
	if int(v) >= n {
		r.fail(fmt.Errorf("%d where less than %d belongs", v, n))
		return 0
	}
	return v
}

// EncodePolicy and DecodePolicy are the policy's bytes outside an event (in a
// checkpoint).
func EncodePolicy(p *Policy) []byte {
	w := newWriter(128 + len(p.MessageSchema))
	w.item(func() { writePolicy(w, p) })
	return w.buf
}

// DecodePolicy is the inverse of EncodePolicy.
func DecodePolicy(b []byte) (*Policy, error) {
	r := &reader{}
	if err := r.versioned(b); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	p := readPolicy(r)
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return p, nil
}

// EncodeContent returns what users wrote as a blob: its bytes and their
// SHA-256. A Content without anything in it is the zero Blob.
func EncodeContent(c *Content) Blob { return c.EncodeIn(new([]byte)) }

// EncodeIn is EncodeContent into memory that the caller lends, behind what is in
// it already: the blob is valid as long as that is. Where there is no room for it,
// room is twice as much from here on.
func (c *Content) EncodeIn(room *[]byte) Blob {
	size := 1 + c.size()
	if cap(*room)-len(*room) < size {
		*room = make([]byte, 0, max(size, 2*cap(*room)))
	}
	begin := len(*room)
	w := &writer{buf: append(*room, Version)}
	pos, outer := w.open()
	w.bytes(1, c.Payload)
	w.bool(2, c.Binary)
	w.str(3, c.ContentType)
	if len(c.Headers) > 0 {
		w.list(4, 2*len(c.Headers))
		for _, h := range c.Headers {
			w.buf = appendString(appendString(w.buf, h.Name), h.Value)
		}
	}
	w.str(5, c.CorrelationID)
	w.str(6, c.Error)
	w.bytes(7, c.Result)
	w.bytes(8, c.Answer)
	w.bytes(9, c.Spec)
	w.bytes(10, c.Original)
	w.str(11, c.Why)
	if w.n == 0 {
		return Blob{}
	}
	w.close(pos, outer)
	*room = w.buf
	b := w.buf[begin:len(w.buf):len(w.buf)]
	return Blob{Digest: sha256.Sum256(b), Bytes: b}
}

// size is what a content's bytes take at most, but for the version.
func (c *Content) size() int {
	const field = 1 + 5 // tag, and code with length
	n := 3 + 10*field + len(c.Payload) + len(c.ContentType) + len(c.CorrelationID) + len(c.Error) + len(c.Result) + len(c.Answer) +
		len(c.Spec) + len(c.Original) + len(c.Why)
	for i := range c.Headers {
		n += 2*field + len(c.Headers[i].Name) + len(c.Headers[i].Value)
	}
	return n
}

// DecodeContent is the inverse of EncodeContent. Nil bytes are an empty
// Content. Payload, result and answer are not copied: they lie in b.
func DecodeContent(b []byte) (*Content, error) {
	c := &Content{}
	if err := c.Decode(b); err != nil {
		return nil, err
	}
	return c, nil
}

// Decode is DecodeContent into c, which must be empty.
func (c *Content) Decode(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	r := &reader{}
	if err := r.versioned(b); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	r.fields(func(t int) bool {
		switch t {
		case 1:
			c.Payload = r.peek()
		case 2:
			c.Binary = r.bool()
		case 3:
			c.ContentType = r.str()
		case 4:
			s := list(r, r.text)
			if len(s)%2 != 0 {
				r.fail(fmt.Errorf("a header without a value"))
				return true
			}
			for i := 0; i < len(s); i += 2 {
				c.Headers = append(c.Headers, Header{s[i], s[i+1]})
			}
		case 5:
			c.CorrelationID = r.str()
		case 6:
			c.Error = r.str()
		case 7:
			c.Result = r.peek()
		case 8:
			c.Answer = r.peek()
		case 9:
			c.Spec = r.peek()
		case 10:
			c.Original = r.peek()
		case 11:
			c.Why = r.str()
		default:
			return false
		}
		return true
	})
	if err := r.end(); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	return nil
}
