package event

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// EncodeMsgpack implements msgpack.CustomEncoder: an array of digest and bytes.
func (b *Blob) EncodeMsgpack(e *msgpack.Encoder) error {
	if err := e.EncodeArrayLen(2); err != nil {
		return err
	}
	if err := e.EncodeBytes(b.Digest[:]); err != nil {
		return err
	}
	return e.EncodeBytes(b.Bytes)
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (b *Blob) DecodeMsgpack(d *msgpack.Decoder) error {
	f := &fields{dec: d, src: d.Buffered().(*source)}
	if n, err := d.DecodeArrayLen(); err != nil {
		return err
	} else if n != 2 {
		return fmt.Errorf("content of %d values, want digest and bytes", n)
	}
	digest := f.raw()
	if f.err == nil && len(digest) != len(b.Digest) {
		return fmt.Errorf("digest of %d bytes", len(digest))
	}
	copy(b.Digest[:], digest)
	b.Bytes = f.raw()
	return f.err
}

// EncodeMsgpack implements msgpack.CustomEncoder: an array of index and number.
func (r *Ref) EncodeMsgpack(e *msgpack.Encoder) error {
	if err := e.EncodeArrayLen(2); err != nil {
		return err
	}
	if err := e.EncodeUint(r.Index); err != nil {
		return err
	}
	return e.EncodeUint(uint64(r.Number))
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (r *Ref) DecodeMsgpack(d *msgpack.Decoder) error {
	n, err := d.DecodeArrayLen()
	if err != nil {
		return err
	}
	if n != 2 {
		return fmt.Errorf("place of %d values, want index and number", n)
	}
	if r.Index, err = d.DecodeUint64(); err != nil {
		return err
	}
	number, err := d.DecodeUint64()
	if r.Number = uint32(number); uint64(r.Number) != number {
		return fmt.Errorf("number %d is out of range", number)
	}
	return err
}

func (e *Event) fields(f *fields) {
	enum(f, 'a', &e.Type, len(typeNames))
	f.text('b', &e.Queue)
	f.text('c', &e.Actor)
	f.text('d', &e.Key)
	f.text('e', &e.Kind)
	uintField(f, 'f', &e.Priority)
	f.int('g', &e.Due)
	f.int('h', &e.Expires)
	uintField(f, 'i', &e.Size)
	f.int('j', &e.Until)
	f.text('k', &e.SourceID)
	f.array('l', (*[16]byte)(&e.Lease))
	f.int('m', &e.LeaseExpires)
	uintField(f, 'n', &e.Attempt)
	f.text('o', &e.Worker)
	uintField(f, 'p', &e.Place)
	uintField(f, 'q', &e.Reason)
	f.text('r', &e.ToQueue)
	f.bool('s', &e.HoldsKey)
	f.bool('t', &e.TakesKey)
	f.text('u', &e.DiedIn)
	uintField(f, 'v', &e.Order)
	f.bool('w', &e.Edited)
	f.array('x', (*[16]byte)(&e.First))
	f.other('y', e.Policy != nil, &e.Policy)
	uintField(f, 'z', &e.Number)
	f.int('A', &e.Count)
	f.array('B', (*[16]byte)(&e.Task))
	uintField(f, 'C', &e.TaskKind)
	f.bool('D', &e.Failed)
	f.text('E', &e.Node)
	f.other('F', len(e.Refs) > 0, &e.Refs)
	f.text('G', &e.Webhook)
	f.bytes('H', &e.Definition)
	f.array('I', (*[16]byte)(&e.Body))
	uintField(f, 'J', &e.Before)
	uintField(f, 'K', &e.Rules)
}

func (c *Content) fields(f *fields) {
	f.bytes('a', &c.Payload)
	f.bool('b', &c.Binary)
	f.text('c', &c.ContentType)
	objects(f, 'd', &c.Headers, func(h *Header) lister { return h })
	f.text('e', &c.CorrelationID)
	f.text('f', &c.Error)
	f.bytes('g', &c.Result)
	f.bytes('h', &c.Answer)
	f.bytes('i', &c.Spec)
	f.bytes('j', &c.Original)
	f.text('k', &c.Why)
}

func (h *Header) fields(f *fields) {
	f.text('n', &h.Name)
	f.text('v', &h.Value)
}

func (c *Command) fields(f *fields) {
	f.text('a', &c.Actor)
	optional(f, 'b', &c.Request, func(q *Request) lister { return q })
	optional(f, 'c', &c.Produce, func(q *Produce) lister { return q })
	optional(f, 'd', &c.Lease, func(q *Lease) lister { return q })
	optional(f, 'e', &c.Settle, func(q *Settle) lister { return q })
	optional(f, 'f', &c.Transaction, func(q *Transaction) lister { return q })
	f.other('g', c.PutQueue != nil, &c.PutQueue)
	f.other('h', c.DeleteQueue != nil, &c.DeleteQueue)
	f.other('i', c.PauseQueue != nil, &c.PauseQueue)
	f.other('j', c.PurgeQueue != nil, &c.PurgeQueue)
	f.other('k', c.Delete != nil, &c.Delete)
	f.other('l', c.Carry != nil, &c.Carry)
	f.other('m', c.Retain != nil, &c.Retain)
	f.other('n', c.Mark != nil, &c.Mark)
	f.other('o', c.Upgrade != nil, &c.Upgrade)
	f.other('p', c.Replay != nil, &c.Replay)
	f.other('q', c.PurgeDead != nil, &c.PurgeDead)
	f.other('r', c.Resurrect != nil, &c.Resurrect)
	f.other('s', c.CreateTask != nil, &c.CreateTask)
	f.other('t', c.UpdateTask != nil, &c.UpdateTask)
	f.other('u', c.Erase != nil, &c.Erase)
	f.other('v', c.PutWebhook != nil, &c.PutWebhook)
	f.other('w', c.DeleteWebhook != nil, &c.DeleteWebhook)
	f.other('x', c.Define != nil, &c.Define)
}

func (q *Request) fields(f *fields) {
	f.array('a', (*[16]byte)(&q.Key))
	f.array('b', (*[16]byte)(&q.Body))
	uintField(f, 'c', &q.Looked)
}

func (q *Lease) fields(f *fields) {
	f.texts('a', &q.Queues)
	f.count('b', &q.Max)
	f.int('c', &q.LeaseMS)
	f.text('d', &q.Worker)
	f.texts('e', &q.Kinds)
}

func (q *Produce) fields(f *fields) {
	f.text('a', &q.Queue)
	uintField(f, 'b', &q.Revision)
	f.bool('c', &q.AutoCreate)
	uintField(f, 'd', &q.Looked)
	objects(f, 'e', &q.Messages, func(m *NewMessage) lister { return m })
	f.bool('f', &q.Import)
}

func (m *NewMessage) fields(f *fields) {
	f.text('a', &m.Key)
	f.text('b', &m.Kind)
	uintField(f, 'c', &m.Priority)
	f.int('d', &m.DelayMS)
	f.int('e', &m.DeliverAt)
	f.int('f', &m.TTLMS)
	f.array('g', (*[16]byte)(&m.DedupKey))
	f.array('h', (*[16]byte)(&m.PayloadHash))
	uintField(f, 'i', &m.Size)
	f.blob('j', &m.Content)
	f.array('k', (*[16]byte)(&m.Seen))
	f.int('l', &m.SeenUntil)
	f.text('m', &m.SourceID)
}

func (q *Settle) fields(f *fields) {
	f.text('a', &q.Queue)
	objects(f, 'b', &q.Items, func(it *SettleItem) lister { return it })
}

func (q *Transaction) fields(f *fields) {
	objects(f, 'a', &q.Settle, func(it *SettleItem) lister { return it })
	objects(f, 'b', &q.Produce, func(p *Produce) lister { return p })
}

func (it *SettleItem) fields(f *fields) {
	uintField(f, 'a', &it.Op)
	f.array('b', (*[16]byte)(&it.Lease))
	f.int('c', &it.DelayMS)
	f.int('d', &it.LeaseMS)
	f.blob('e', &it.Content)
}

func (s *Result) fields(f *fields) {
	uintField(f, 'a', &s.Index)
	f.other('b', s.Problem != nil, &s.Problem)
	f.ref('c', &s.Kept)
	f.bool('d', &s.Created)
	f.int('e', &s.Count)
	objects(f, 'f', &s.Produced, func(p *Produced) lister { return p })
	objects(f, 'g', &s.Leased, func(m *LeasedMessage) lister { return m })
	objects(f, 'h', &s.Settled, func(v *Settled) lister { return v })
	f.other('i', len(s.Moved) > 0, &s.Moved)
	f.array('j', (*[16]byte)(&s.ID))
	f.array('k', (*[16]byte)(&s.Digest))
}

func (p *Produced) fields(f *fields) {
	f.array('a', (*[16]byte)(&p.ID))
	f.bool('b', &p.Duplicate)
}

func (s *Settled) fields(f *fields) {
	f.array('a', (*[16]byte)(&s.Lease))
	f.text('b', &s.Status)
	f.text('c', &s.Code)
	f.int('d', &s.NextAt)
	f.int('e', &s.ExpiresAt)
	f.array('f', (*[16]byte)(&s.Message))
	f.text('g', &s.Queue)
}

// LeasedMessage leaves Origin and SourceID out: leases do not return them.
func (m *LeasedMessage) fields(f *fields) {
	f.array('a', (*[16]byte)(&m.ID))
	f.text('b', &m.Queue)
	f.text('c', &m.Key)
	f.text('d', &m.Kind)
	uintField(f, 'e', &m.State)
	f.bool('f', &m.Held)
	uintField(f, 'g', &m.Priority)
	uintField(f, 'h', &m.Attempt)
	uintField(f, 'i', &m.Size)
	f.int('j', &m.EnqueuedAt)
	f.int('k', &m.Due)
	f.int('l', &m.Expires)
	f.array('m', (*[16]byte)(&m.Lease))
	f.int('n', &m.LeaseExpiresAt)
	f.ref('o', &m.Content)
	f.ref('p', &m.Last)
	f.other('q', m.Dead != nil, &m.Dead)
	uintField(f, 'r', &m.MaxAttempts)
}

func (a *Answer) fields(f *fields) {
	f.result('a', &a.Result)
	f.other('b', a.Refusal != nil, &a.Refusal)
	f.bool('c', &a.Back)
}

// answers is the answers of a group.
type answers []Answer

func (a *answers) fields(f *fields) {
	objects(f, 'a', (*[]Answer)(a), func(a *Answer) lister { return a })
}

// result is a field that is always there.
func (f *fields) result(name byte, p *Result) {
	if !f.begin(name, true) {
		return
	}
	f.object(p)
	if f.enc == nil {
		f.pull()
	}
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (v *Event) EncodeMsgpack(e *msgpack.Encoder) error { return encodeFields(e, v) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (v *Event) DecodeMsgpack(d *msgpack.Decoder) error { return decodeFields(d, v) }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (v *Content) EncodeMsgpack(e *msgpack.Encoder) error { return encodeFields(e, v) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (v *Content) DecodeMsgpack(d *msgpack.Decoder) error { return decodeFields(d, v) }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (v *Result) EncodeMsgpack(e *msgpack.Encoder) error { return encodeFields(e, v) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (v *Result) DecodeMsgpack(d *msgpack.Decoder) error { return decodeFields(d, v) }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (v *answers) EncodeMsgpack(e *msgpack.Encoder) error { return encodeFields(e, v) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (v *answers) DecodeMsgpack(d *msgpack.Decoder) error { return decodeFields(d, v) }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (v *Command) EncodeMsgpack(e *msgpack.Encoder) error { return encodeFields(e, v) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (v *Command) DecodeMsgpack(d *msgpack.Decoder) error { return decodeFields(d, v) }
