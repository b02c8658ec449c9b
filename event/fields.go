package event

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/qlogd/qlogd/internal/msgpackcheck"
)

// fielder is a type whose values pass through the codec once or more per message on every
// node. It lists its fields once, for both directions, so that neither needs reflection.
type fielder interface {
	// fields calls one of coder's methods for each field, in the order of the encoding.
	fields(c *coder)
}

// coder encodes and decodes structs as the library does: as a map of the fields that are not
// zero. Decoding is stricter: it wants the fields in the order of fields, and no zeros.
type coder struct {
	w        *msgpack.Encoder // nil: decoding
	out      bytes.Buffer
	counting bool // encoding: count the fields that are not zero

	r    *msgpack.Decoder // nil: encoding
	src  bytes.Reader     // over data
	data []byte

	n   int    // counting: fields so far; decoding: fields that follow the pending one
	key []byte // decoding: name of the pending field; nil: none
	err error
}

var encoders = sync.Pool{New: func() any { return &coder{w: msgpack.NewEncoder(nil)} }}

var decoders = sync.Pool{New: func() any { return &coder{r: msgpack.NewDecoder(nil)} }}

// maxPooled bounds the buffers that the pool keeps.
const maxPooled = 1 << 18

// encodeWith returns the version and what write encodes. It panics if the library fails, which
// it does for no type of this package.
func encodeWith(write func(c *coder) error) []byte {
	c := encoders.Get().(*coder)
	c.out.Reset()
	c.out.WriteByte(Version)
	c.w.Reset(&c.out)
	c.w.UseCompactInts(true)
	c.w.SetOmitEmpty(true)
	c.err = nil
	if err := write(c); err != nil {
		panic(fmt.Sprintf("event: encode: %v", err))
	}
	b := bytes.Clone(c.out.Bytes())
	if c.out.Cap() <= maxPooled {
		encoders.Put(c)
	}
	return b
}

// decodeWith checks b and decodes what follows its version by read.
func decodeWith(b []byte, read func(c *coder) error) error {
	if len(b) == 0 {
		return errors.New("empty")
	}
	if b[0] != Version {
		return fmt.Errorf("version %d is not this program's %d", b[0], Version)
	}
	b = b[1:]
	if err := msgpackcheck.Check(b); err != nil {
		return err
	}
	c := decoders.Get().(*coder)
	c.data, c.err = b, nil
	c.src.Reset(b)
	c.r.Reset(&c.src)
	c.r.DisallowUnknownFields(true)
	err := read(c)
	c.data, c.key = nil, nil
	c.src.Reset(nil)
	decoders.Put(c)
	return err
}

// encode encodes the struct v.
func (c *coder) encode(v fielder) error {
	c.n, c.counting = 0, true
	v.fields(c)
	c.counting = false
	if c.err == nil {
		c.err = c.w.EncodeMapLen(c.n)
	}
	v.fields(c)
	return c.err
}

// decode decodes a struct into v, which is zero.
func (c *coder) decode(v fielder) error {
	n, key := c.n, c.key
	c.n, c.err = c.r.DecodeMapLen()
	c.next(c.n < 0) // nil is no struct
	v.fields(c)
	if c.err == nil && c.key != nil {
		c.err = fmt.Errorf("unknown or misplaced field %q", c.key)
	}
	c.n, c.key = n, key
	return c.err
}

// next reads the name of the next field of the struct that is being decoded. The field before
// it must not be zero, since a zero is not encoded.
func (c *coder) next(zero bool) {
	c.key = nil
	switch {
	case c.err != nil:
	case zero:
		c.err = errNotCanonical
	case c.n > 0:
		c.n--
		c.key = c.take(msgpcode.IsString)
	}
}

// take reads a string or bytes and returns them as a part of data.
func (c *coder) take(is func(code byte) bool) []byte {
	code, err := c.r.PeekCode()
	if err == nil && !is(code) {
		err = errNotCanonical
	}
	n := 0
	if err == nil {
		n, err = c.r.DecodeBytesLen()
	}
	if err == nil && n > c.src.Len() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		c.err = err
		return nil
	}
	at := len(c.data) - c.src.Len()
	_, _ = c.src.Seek(int64(n), io.SeekCurrent) // within data
	return c.data[at : at+n : at+n]
}

// begin reports whether the value of the named field comes next.
func (c *coder) begin(name string, zero bool) bool {
	switch {
	case c.err != nil:
		return false
	case c.r != nil:
		return string(c.key) == name
	case zero:
		return false
	case c.counting:
		c.n++
		return false
	}
	c.err = c.w.EncodeString(name)
	return true
}

func (c *coder) string(name string, p *string) {
	if !c.begin(name, *p == "") {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeString(*p)
		return
	}
	*p = string(c.take(msgpcode.IsString))
	c.next(*p == "")
}

func (c *coder) bytes(name string, p *[]byte) {
	if !c.begin(name, len(*p) == 0) {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeBytes(*p)
		return
	}
	*p = bytes.Clone(c.take(msgpcode.IsBin))
	c.next(len(*p) == 0)
}

func (c *coder) bool(name string, p *bool) {
	if !c.begin(name, !*p) {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeBool(*p)
		return
	}
	*p, c.err = c.r.DecodeBool()
	c.next(!*p)
}

// id encodes ids and hashes.
func (c *coder) id(name string, p *[16]byte) {
	if !c.begin(name, *p == [16]byte{}) {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeBytes(p[:])
		return
	}
	b := c.take(msgpcode.IsBin)
	if c.err == nil && len(b) != len(p) {
		c.err = fmt.Errorf("an id of %d bytes", len(b))
	}
	copy(p[:], b)
	c.next(*p == [16]byte{})
}

func (c *coder) int(name string, p *int64) {
	if !c.begin(name, *p == 0) {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeInt(*p)
		return
	}
	*p, c.err = c.r.DecodeInt64()
	c.next(*p == 0)
}

// number encodes a number without a sign.
func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, name string, p *T) {
	if !c.begin(name, *p == 0) {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeUint(uint64(*p))
		return
	}
	var v uint64
	v, c.err = c.r.DecodeUint64()
	if *p = T(v); c.err == nil && uint64(*p) != v {
		c.err = fmt.Errorf("%d is out of range", v)
	}
	c.next(*p == 0)
}

// blob decodes without a copy: the bytes are a part of what is decoded.
func (c *coder) blob(name string, p *Blob) {
	if !c.begin(name, p.Bytes == nil && p.Digest == [32]byte{}) {
		return
	}
	if c.w != nil {
		c.err = p.EncodeMsgpack(c.w)
		return
	}
	if c.err = decodePair(c.r); c.err == nil {
		digest := c.take(msgpcode.IsBin)
		if c.err == nil && len(digest) != len(p.Digest) {
			c.err = fmt.Errorf("a digest of %d bytes", len(digest))
		}
		copy(p.Digest[:], digest)
	}
	if c.err == nil {
		p.Bytes = c.take(msgpcode.IsBin)
	}
	c.next(false)
}

func (c *coder) ref(name string, p *Ref) {
	if !c.begin(name, p.IsZero()) {
		return
	}
	if c.w != nil {
		c.err = p.EncodeMsgpack(c.w)
		return
	}
	c.err = p.DecodeMsgpack(c.r)
	c.next(p.IsZero())
}

// other encodes what few messages pass through as the library does. p points to the field.
func (c *coder) other(name string, zero bool, p any) {
	if !c.begin(name, zero) {
		return
	}
	if c.w != nil {
		c.err = c.w.EncodeValue(reflect.ValueOf(p).Elem())
		return
	}
	c.err = c.r.Decode(p)
	c.next(reflect.ValueOf(p).Elem().IsZero())
}

// pointer encodes a struct that may be missing.
func pointer[T any, P fieldsOf[T]](c *coder, name string, p *P) {
	if !c.begin(name, *p == nil) {
		return
	}
	if c.w != nil {
		c.err = c.encode(*p)
		return
	}
	*p = new(T)
	c.err = c.decode(*p)
	c.next(false)
}

// list encodes a list of structs.
func list[T any, P fieldsOf[T]](c *coder, name string, p *[]T) {
	if !c.begin(name, len(*p) == 0) {
		return
	}
	elements[T, P](c, p)
	if c.r != nil {
		c.next(len(*p) == 0)
	}
}

func elements[T any, P fieldsOf[T]](c *coder, p *[]T) {
	if c.w != nil {
		c.err = c.w.EncodeArrayLen(len(*p))
	} else {
		var n int
		if n, c.err = c.r.DecodeArrayLen(); c.err == nil && n > c.src.Len() {
			c.err = io.ErrUnexpectedEOF
		}
		if c.err == nil && n > 0 {
			*p = make([]T, n)
		}
	}
	for i := range *p {
		if c.err == nil && c.w != nil {
			_ = c.encode(P(&(*p)[i]))
		} else if c.err == nil {
			_ = c.decode(P(&(*p)[i]))
		}
	}
}

// fieldsOf is a pointer to a T that lists its fields.
type fieldsOf[T any] interface {
	*T
	fielder
}

func (e *Event) fields(c *coder) {
	number(c, "a", &e.Type)
	c.string("b", &e.Queue)
	c.string("c", &e.Actor)
	c.string("d", &e.Key)
	c.string("e", &e.Kind)
	number(c, "f", &e.Priority)
	c.int("g", &e.Due)
	c.int("h", &e.Expires)
	number(c, "i", &e.Size)
	c.int("j", &e.Until)
	c.string("k", &e.SourceID)
	c.id("l", (*[16]byte)(&e.Lease))
	c.int("m", &e.LeaseExpires)
	number(c, "n", &e.Attempt)
	c.string("o", &e.Worker)
	number(c, "p", &e.Place)
	number(c, "q", &e.Reason)
	c.string("r", &e.ToQueue)
	c.bool("s", &e.HoldsKey)
	c.bool("t", &e.TakesKey)
	c.string("u", &e.DiedIn)
	number(c, "v", &e.Order)
	c.bool("w", &e.Edited)
	c.id("x", (*[16]byte)(&e.First))
	c.other("y", e.Policy == nil, &e.Policy)
	number(c, "z", &e.Number)
	c.int("A", &e.Count)
	c.id("B", (*[16]byte)(&e.Task))
	number(c, "C", &e.TaskKind)
	c.bool("D", &e.Failed)
	c.string("E", &e.Node)
	c.other("F", len(e.Refs) == 0, &e.Refs)
	c.string("G", &e.Webhook)
	c.bytes("H", &e.Definition)
	c.id("I", (*[16]byte)(&e.Body))
	number(c, "J", &e.Before)
	number(c, "K", &e.Rules)
}

func (t *Content) fields(c *coder) {
	c.bytes("a", &t.Payload)
	c.bool("b", &t.Binary)
	c.string("c", &t.ContentType)
	list(c, "d", &t.Headers)
	c.string("e", &t.CorrelationID)
	c.string("f", &t.Error)
	c.bytes("g", &t.Result)
	c.bytes("h", &t.Answer)
	c.bytes("i", &t.Spec)
	c.bytes("j", &t.Original)
	c.string("k", &t.Why)
}

func (h *Header) fields(c *coder) {
	c.string("n", &h.Name)
	c.string("v", &h.Value)
}

func (m *Command) fields(c *coder) {
	c.string("Actor", &m.Actor)
	pointer(c, "Request", &m.Request)
	c.other("PutQueue", m.PutQueue == nil, &m.PutQueue)
	c.other("DeleteQueue", m.DeleteQueue == nil, &m.DeleteQueue)
	c.other("PauseQueue", m.PauseQueue == nil, &m.PauseQueue)
	c.other("PurgeQueue", m.PurgeQueue == nil, &m.PurgeQueue)
	pointer(c, "Produce", &m.Produce)
	pointer(c, "Lease", &m.Lease)
	pointer(c, "Settle", &m.Settle)
	pointer(c, "Transaction", &m.Transaction)
	c.other("Delete", m.Delete == nil, &m.Delete)
	c.other("Carry", m.Carry == nil, &m.Carry)
	c.other("Retain", m.Retain == nil, &m.Retain)
	c.other("Mark", m.Mark == nil, &m.Mark)
	c.other("Upgrade", m.Upgrade == nil, &m.Upgrade)
	c.other("Replay", m.Replay == nil, &m.Replay)
	c.other("PurgeDead", m.PurgeDead == nil, &m.PurgeDead)
	c.other("Resurrect", m.Resurrect == nil, &m.Resurrect)
	c.other("CreateTask", m.CreateTask == nil, &m.CreateTask)
	c.other("UpdateTask", m.UpdateTask == nil, &m.UpdateTask)
	c.other("Erase", m.Erase == nil, &m.Erase)
	c.other("PutWebhook", m.PutWebhook == nil, &m.PutWebhook)
	c.other("DeleteWebhook", m.DeleteWebhook == nil, &m.DeleteWebhook)
	c.other("Define", m.Define == nil, &m.Define)
}

func (r *Request) fields(c *coder) {
	c.id("Key", (*[16]byte)(&r.Key))
	c.id("Body", (*[16]byte)(&r.Body))
	number(c, "Looked", &r.Looked)
}

func (p *Produce) fields(c *coder) {
	c.string("Queue", &p.Queue)
	number(c, "Revision", &p.Revision)
	c.bool("AutoCreate", &p.AutoCreate)
	number(c, "Looked", &p.Looked)
	list(c, "Messages", &p.Messages)
	c.bool("Import", &p.Import)
}

func (m *NewMessage) fields(c *coder) {
	c.string("a", &m.Key)
	c.string("b", &m.Kind)
	number(c, "c", &m.Priority)
	c.int("d", &m.DelayMS)
	c.int("e", &m.DeliverAt)
	c.int("f", &m.TTLMS)
	c.id("g", (*[16]byte)(&m.DedupKey))
	c.id("h", (*[16]byte)(&m.PayloadHash))
	number(c, "i", &m.Size)
	c.blob("j", &m.Content)
	c.id("k", (*[16]byte)(&m.Seen))
	c.int("l", &m.SeenUntil)
	c.string("m", &m.SourceID)
}

func (l *Lease) fields(c *coder) {
	c.other("Queues", len(l.Queues) == 0, &l.Queues)
	c.other("Max", l.Max == 0, &l.Max)
	c.int("LeaseMS", &l.LeaseMS)
	c.string("Worker", &l.Worker)
	c.other("Kinds", len(l.Kinds) == 0, &l.Kinds)
}

func (s *Settle) fields(c *coder) {
	c.string("Queue", &s.Queue)
	list(c, "Items", &s.Items)
}

func (i *SettleItem) fields(c *coder) {
	number(c, "a", &i.Op)
	c.id("b", (*[16]byte)(&i.Lease))
	c.int("c", &i.DelayMS)
	c.int("d", &i.LeaseMS)
	c.blob("e", &i.Content)
}

func (t *Transaction) fields(c *coder) {
	list(c, "Settle", &t.Settle)
	list(c, "Produce", &t.Produce)
}

func (r *Result) fields(c *coder) {
	number(c, "Index", &r.Index)
	c.other("Problem", r.Problem == nil, &r.Problem)
	c.ref("Kept", &r.Kept)
	c.bool("Created", &r.Created)
	c.int("Count", &r.Count)
	list(c, "Produced", &r.Produced)
	list(c, "Leased", &r.Leased)
	list(c, "Settled", &r.Settled)
	c.other("Moved", len(r.Moved) == 0, &r.Moved)
	c.id("ID", (*[16]byte)(&r.ID))
	c.id("Digest", &r.Digest)
}

func (p *Produced) fields(c *coder) {
	c.id("ID", (*[16]byte)(&p.ID))
	c.bool("Duplicate", &p.Duplicate)
}

func (s *Settled) fields(c *coder) {
	c.id("Lease", (*[16]byte)(&s.Lease))
	c.string("Status", &s.Status)
	c.string("Code", &s.Code)
	c.int("NextAt", &s.NextAt)
	c.int("ExpiresAt", &s.ExpiresAt)
	c.id("Message", (*[16]byte)(&s.Message))
	c.string("Queue", &s.Queue)
}

func (m *LeasedMessage) fields(c *coder) {
	c.id("ID", (*[16]byte)(&m.ID))
	c.string("Queue", &m.Queue)
	c.string("Key", &m.Key)
	c.string("Kind", &m.Kind)
	number(c, "State", &m.State)
	c.bool("Held", &m.Held)
	number(c, "Priority", &m.Priority)
	number(c, "Attempt", &m.Attempt)
	number(c, "Size", &m.Size)
	c.int("EnqueuedAt", &m.EnqueuedAt)
	c.int("Due", &m.Due)
	c.int("Expires", &m.Expires)
	c.id("Lease", (*[16]byte)(&m.Lease))
	c.int("LeaseExpiresAt", &m.LeaseExpiresAt)
	c.ref("Content", &m.Content)
	c.ref("Last", &m.Last)
	c.other("Dead", m.Dead == nil, &m.Dead)
	number(c, "MaxAttempts", &m.MaxAttempts)
}

// fields puts the result's fields beside the answer's own.
func (a *Answer) fields(c *coder) {
	a.Result.fields(c)
	c.other("Refusal", a.Refusal == nil, &a.Refusal)
	c.bool("Back", &a.Back)
}
