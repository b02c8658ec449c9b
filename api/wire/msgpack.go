package wire

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/qlogd/qlogd/internal/msgp"
)

// The msgpack of a value is that of its JSON, field by field, but for payloads
// and results: bytes are bin, and JSON is the extension type msgp.JSONText (74)
// with its text, so that nothing is written anew on the way.

// AcceptMsgpack is the Accept header that asks for answers as DecodeMsgpack
// likes them best: payloads as they are kept.
const AcceptMsgpack = "application/msgpack; payload=bin"

// AppendMsgpack appends the msgpack of v, a pointer to a request or answer of
// produce, lease, settle or transaction calls. A text that is not UTF-8 and
// another type are errors.
func AppendMsgpack(dst []byte, v any) ([]byte, error) {
	p := packer{b: dst}
	switch v := v.(type) {
	case *ProduceRequest:
		p.object(1)
		p.name("messages")
		packList(&p, v.Messages, (*packer).newMessage)
	case *ProduceResponse:
		p.object(1)
		p.name("messages")
		packList(&p, v.Messages, (*packer).produced)
	case *LeaseRequest:
		p.leaseRequest(v)
	case *LeaseResponse:
		p.object(1)
		p.name("messages")
		packList(&p, v.Messages, (*packer).leased)
	case *AckRequest:
		p.object(1 + one(v.Result != nil))
		p.name("lease_ids")
		p.strs(v.LeaseIDs)
		p.json("result", v.Result)
	case *RetryRequest:
		p.object(1)
		p.name("items")
		packList(&p, v.Items, (*packer).retryItem)
	case *DeadLetterRequest:
		p.object(1)
		p.name("items")
		packList(&p, v.Items, (*packer).deadLetterItem)
	case *ExtendRequest:
		p.object(1)
		p.name("items")
		packList(&p, v.Items, (*packer).extendItem)
	case *ReleaseRequest:
		p.object(1)
		p.name("lease_ids")
		p.strs(v.LeaseIDs)
	case *AckOne:
		p.object(one(v.Result != nil))
		p.json("result", v.Result)
	case *RetryOne:
		p.object(one(v.Error != "") + one(v.DelayMS != nil) + one(v.Retryable != nil))
		p.retryFields(v.Error, v.DelayMS, v.Retryable)
	case *DeadLetterOne:
		p.object(one(v.Error != ""))
		p.optStr("error", v.Error)
	case *ExtendOne:
		p.object(one(v.LeaseMS != 0))
		p.optInt("lease_ms", v.LeaseMS)
	case *ReleaseOne:
		p.object(0)
	case *SettleResponse:
		p.object(1)
		p.name("results")
		packList(&p, v.Results, (*packer).settleResult)
	case *SettleResult:
		p.settleResult(v)
	case *Dead:
		p.dead(v)
	case *TransactionRequest:
		p.transaction(v)
	case *TransactionResponse:
		p.object(2)
		p.name("results")
		packList(&p, v.Results, (*packer).settleResult)
		p.name("messages")
		packList(&p, v.Messages, (*packer).produced)
	default:
		return nil, fmt.Errorf("%T has no msgpack", v)
	}
	return p.b, p.err
}

// packer appends values. Fields that are zero are left out where their JSON
// leaves them out.
type packer struct {
	b   []byte
	err error
}

func one(there bool) int {
	if there {
		return 1
	}
	return 0
}

func (p *packer) object(n int)     { p.b = msgp.AppendMap(p.b, n) }
func (p *packer) name(name string) { p.b = msgp.AppendStr(p.b, name) }
func (p *packer) int(v int64)      { p.b = msgp.AppendInt(p.b, v) }

func (p *packer) str(v string) {
	if !utf8.ValidString(v) && p.err == nil {
		p.err = errors.New("a string that is not UTF-8")
	}
	p.b = msgp.AppendStr(p.b, v)
}

func (p *packer) optStr(name, v string) {
	if v != "" {
		p.name(name)
		p.str(v)
	}
}

func (p *packer) optInt(name string, v int64) {
	if v != 0 {
		p.name(name)
		p.int(v)
	}
}

func (p *packer) time(t Time) {
	if t == 0 {
		p.b = msgp.AppendNil(p.b)
		return
	}
	var text [len(TimeFormat) + 8]byte
	p.b = msgp.AppendStr(p.b, t.Time().AppendFormat(text[:0], TimeFormat))
}

func (p *packer) optTime(name string, t Time) {
	if t != 0 {
		p.name(name)
		p.time(t)
	}
}

func (p *packer) json(name string, v []byte) {
	if v != nil {
		p.name(name)
		p.b = msgp.AppendJSONText(p.b, v)
	}
}

func (p *packer) bytes(name string, v Bytes) {
	if v != nil {
		p.name(name)
		p.b = msgp.AppendBin(p.b, v)
	}
}

func (p *packer) strs(v []string) {
	p.b = msgp.AppendArray(p.b, len(v))
	for _, s := range v {
		p.str(s)
	}
}

func packList[T any](p *packer, v []T, fn func(*packer, *T)) {
	p.b = msgp.AppendArray(p.b, len(v))
	for i := range v {
		fn(p, &v[i])
	}
}

// headers writes headers by name, so that the same request has the same bytes.
func (p *packer) headers(m map[string]string) {
	p.object(len(m))
	names := make([]string, 0, 16)
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p.str(name)
		p.str(m[name])
	}
}

func (p *packer) newMessage(m *NewMessage) {
	p.object(one(m.Payload != nil) + one(m.PayloadBytes != nil) + one(m.ContentType != "") + one(m.Key != "") + one(m.Priority != nil) +
		one(m.Headers != nil) + one(m.IdempotencyKey != "") + one(m.DelayMS != 0) + one(m.DeliverAt != 0) + one(m.TTLMS != 0) +
		one(m.Kind != "") + one(m.CorrelationID != ""))
	p.json("payload", m.Payload)
	p.bytes("payload_base64", m.PayloadBytes)
	p.optStr("content_type", m.ContentType)
	p.optStr("key", m.Key)
	if m.Priority != nil {
		p.name("priority")
		p.int(*m.Priority)
	}
	if m.Headers != nil {
		p.name("headers")
		p.headers(m.Headers)
	}
	p.optStr("idempotency_key", m.IdempotencyKey)
	p.optInt("delay_ms", m.DelayMS)
	p.optTime("deliver_at", m.DeliverAt)
	p.optInt("ttl_ms", m.TTLMS)
	p.optStr("kind", m.Kind)
	p.optStr("correlation_id", m.CorrelationID)
}

func (p *packer) produced(m *Produced) {
	p.object(2 + one(m.Queue != "") + one(m.State != "") + one(m.Result != nil))
	p.name("id")
	p.str(m.ID)
	p.name("status")
	p.str(m.Status)
	p.optStr("queue", m.Queue)
	p.optStr("state", m.State)
	p.json("result", m.Result)
}

func (p *packer) leaseRequest(v *LeaseRequest) {
	p.object(one(v.Queues != nil) + one(v.MaxMessages != nil) + one(v.WaitMS != 0) + one(v.LeaseMS != 0) + one(v.Worker != "") + one(v.Kinds != nil))
	if v.Queues != nil {
		p.name("queues")
		p.strs(v.Queues)
	}
	if v.MaxMessages != nil {
		p.name("max_messages")
		p.int(*v.MaxMessages)
	}
	p.optInt("wait_ms", v.WaitMS)
	p.optInt("lease_ms", v.LeaseMS)
	p.optStr("worker", v.Worker)
	if v.Kinds != nil {
		p.name("kinds")
		p.strs(v.Kinds)
	}
}

func (p *packer) leased(m *LeasedMessage) {
	p.object(13 + one(m.Payload != nil) + one(m.PayloadBytes != nil) + one(m.ContentType != "") + one(m.Erased))
	p.name("id")
	p.str(m.ID)
	p.name("lease_id")
	p.str(m.LeaseID)
	p.name("queue")
	p.str(m.Queue)
	p.name("key")
	p.str(m.Key)
	p.name("attempt")
	p.int(m.Attempt)
	p.name("max_attempts")
	p.int(m.MaxAttempts)
	p.name("priority")
	p.int(m.Priority)
	p.name("kind")
	p.str(m.Kind)
	p.name("headers")
	p.headers(m.Headers)
	p.json("payload", m.Payload)
	p.bytes("payload_base64", m.PayloadBytes)
	p.optStr("content_type", m.ContentType)
	if m.Erased {
		p.name("erased")
		p.b = msgp.AppendBool(p.b, true)
	}
	p.name("enqueued_at")
	p.time(m.EnqueuedAt)
	p.name("lease_expires_at")
	p.time(m.LeaseExpiresAt)
	p.name("correlation_id")
	p.str(m.CorrelationID)
	p.name("dead")
	p.dead(m.Dead)
}

func (p *packer) dead(d *Dead) {
	if d == nil {
		p.b = msgp.AppendNil(p.b)
		return
	}
	p.object(8)
	p.name("queue")
	p.str(d.Queue)
	p.name("message_id")
	p.str(d.MessageID)
	p.name("reason")
	p.str(d.Reason)
	p.name("error")
	p.str(d.Error)
	p.name("attempts")
	p.int(d.Attempts)
	p.name("failed_at")
	p.time(d.FailedAt)
	p.name("first_enqueued_at")
	p.time(d.FirstEnqueuedAt)
	p.name("replay_count")
	p.int(d.ReplayCount)
}

func (p *packer) retryItem(it *RetryItem) {
	p.object(1 + one(it.Error != "") + one(it.DelayMS != nil) + one(it.Retryable != nil))
	p.name("lease_id")
	p.str(it.LeaseID)
	p.retryFields(it.Error, it.DelayMS, it.Retryable)
}

func (p *packer) retryFields(text string, delay *int64, retryable *bool) {
	p.optStr("error", text)
	if delay != nil {
		p.name("delay_ms")
		p.int(*delay)
	}
	if retryable != nil {
		p.name("retryable")
		p.b = msgp.AppendBool(p.b, *retryable)
	}
}

func (p *packer) deadLetterItem(it *DeadLetterItem) {
	p.object(1 + one(it.Error != ""))
	p.name("lease_id")
	p.str(it.LeaseID)
	p.optStr("error", it.Error)
}

func (p *packer) extendItem(it *ExtendItem) {
	p.object(1 + one(it.LeaseMS != 0))
	p.name("lease_id")
	p.str(it.LeaseID)
	p.optInt("lease_ms", it.LeaseMS)
}

func (p *packer) settleResult(r *SettleResult) {
	p.object(2 + one(r.Code != "") + one(r.NextAt != 0) + one(r.LeaseExpiresAt != 0))
	p.name("lease_id")
	p.str(r.LeaseID)
	p.name("status")
	p.str(r.Status)
	p.optStr("code", r.Code)
	p.optTime("next_at", r.NextAt)
	p.optTime("lease_expires_at", r.LeaseExpiresAt)
}

func (p *packer) transaction(v *TransactionRequest) {
	p.object(one(v.Ack != nil) + one(v.Retry != nil) + one(v.DeadLetter != nil) + one(v.Extend != nil) + one(v.Produce != nil))
	if v.Ack != nil {
		p.name("ack")
		p.strs(v.Ack)
	}
	if v.Retry != nil {
		p.name("retry")
		packList(p, v.Retry, (*packer).retryItem)
	}
	if v.DeadLetter != nil {
		p.name("dead_letter")
		packList(p, v.DeadLetter, (*packer).deadLetterItem)
	}
	if v.Extend != nil {
		p.name("extend")
		packList(p, v.Extend, (*packer).extendItem)
	}
	if v.Produce != nil {
		p.name("produce")
		packList(p, v.Produce, func(p *packer, t *TransactionProduce) {
			p.object(2)
			p.name("queue")
			p.str(t.Queue)
			p.name("messages")
			packList(p, t.Messages, (*packer).newMessage)
		})
	}
}

// DecodeMsgpack reads a value that AppendMsgpack could have written into v, a
// pointer as there; of the ways to write a value that msgpack has, it knows those
// that mean the same to everybody. Payloads and results are not copied where
// src has them as they are kept: then src must not change as long as they are
// used. Requests are read strictly: an unknown field or a name twice is an error,
// as in Decode, and so is a list of more than 1000. What answers hold that is new
// is skipped. After an error *v is zero.
func DecodeMsgpack(src []byte, v any) error {
	switch v := v.(type) {
	case *ProduceRequest:
		return unpack(src, v, false, func(u *unpacker, v *ProduceRequest) {
			u.only("messages", func() { v.Messages = unpackList(u, func(m *NewMessage) { u.newMessage(m, 3) }) })
		})
	case *ProduceResponse:
		return unpack(src, v, true, func(u *unpacker, v *ProduceResponse) {
			u.only("messages", func() { v.Messages = unpackList(u, u.produced) })
		})
	case *LeaseRequest:
		return unpack(src, v, false, (*unpacker).leaseRequest)
	case *LeaseResponse:
		return unpack(src, v, true, func(u *unpacker, v *LeaseResponse) {
			u.only("messages", func() { v.Messages = unpackList(u, u.leased) })
		})
	case *AckRequest:
		return unpack(src, v, false, func(u *unpacker, v *AckRequest) {
			u.object(func(name []byte) bool {
				switch string(name) {
				case "lease_ids":
					v.LeaseIDs = u.Strs()
				case "result":
					v.Result = u.Value(2)
				default:
					return false
				}
				return true
			})
		})
	case *RetryRequest:
		return unpack(src, v, false, func(u *unpacker, v *RetryRequest) {
			u.only("items", func() { v.Items = unpackList(u, u.retryItem) })
		})
	case *DeadLetterRequest:
		return unpack(src, v, false, func(u *unpacker, v *DeadLetterRequest) {
			u.only("items", func() { v.Items = unpackList(u, u.deadLetterItem) })
		})
	case *ExtendRequest:
		return unpack(src, v, false, func(u *unpacker, v *ExtendRequest) {
			u.only("items", func() { v.Items = unpackList(u, u.extendItem) })
		})
	case *ReleaseRequest:
		return unpack(src, v, false, func(u *unpacker, v *ReleaseRequest) {
			u.only("lease_ids", func() { v.LeaseIDs = u.Strs() })
		})
	case *AckOne:
		return unpack(src, v, false, func(u *unpacker, v *AckOne) {
			u.only("result", func() { v.Result = u.Value(2) })
		})
	case *RetryOne:
		return unpack(src, v, false, func(u *unpacker, v *RetryOne) {
			u.object(func(name []byte) bool { return u.retryField(name, &v.Error, &v.DelayMS, &v.Retryable) })
		})
	case *DeadLetterOne:
		return unpack(src, v, false, func(u *unpacker, v *DeadLetterOne) {
			u.only("error", func() { v.Error = u.Str() })
		})
	case *ExtendOne:
		return unpack(src, v, false, func(u *unpacker, v *ExtendOne) {
			u.only("lease_ms", func() { v.LeaseMS = u.Int() })
		})
	case *ReleaseOne:
		return unpack(src, v, false, func(u *unpacker, v *ReleaseOne) {
			u.object(func([]byte) bool { return false })
		})
	case *SettleResponse:
		return unpack(src, v, true, func(u *unpacker, v *SettleResponse) {
			u.only("results", func() { v.Results = unpackList(u, u.settleResult) })
		})
	case *SettleResult:
		return unpack(src, v, true, (*unpacker).settleResult)
	case *TransactionRequest:
		return unpack(src, v, false, (*unpacker).transaction)
	case *TransactionResponse:
		return unpack(src, v, true, func(u *unpacker, v *TransactionResponse) {
			u.object(func(name []byte) bool {
				switch string(name) {
				case "results":
					v.Results = unpackList(u, u.settleResult)
				case "messages":
					v.Messages = unpackList(u, u.produced)
				default:
					return false
				}
				return true
			})
		})
	}
	return fmt.Errorf("%T has no msgpack", v)
}

// maxList bounds the lists of requests, so that a few bytes an element do not
// make a thousand times the memory: no call takes more.
const maxList = 1000

type unpacker struct {
	*msgp.Reader
	lenient bool
}

func unpack[T any](src []byte, v *T, lenient bool, fn func(*unpacker, *T)) error {
	*v = *new(T)
	u := &unpacker{msgp.NewReader(src, lenient), lenient}
	fn(u, v)
	err := u.End()
	if err != nil {
		*v = *new(T)
		return fmt.Errorf("msgpack: %w", err)
	}
	return nil
}

// object reads a map that must be there.
func (u *unpacker) object(field func(name []byte) bool) {
	if !u.Map(field) {
		u.Fail("no object")
	}
}

// only reads a map of at most one field.
func (u *unpacker) only(field string, value func()) {
	u.object(func(name []byte) bool {
		if string(name) != field {
			return false
		}
		value()
		return true
	})
}

func unpackList[T any](u *unpacker, fn func(*T)) []T {
	n, ok := u.Array()
	if !ok {
		return nil
	}
	if n > maxList && !u.lenient {
		u.Fail("a list that is too long")
		return nil
	}
	out := make([]T, 0, min(n, maxList))
	for i := 0; i < n && u.OK(); i++ {
		out = append(out, *new(T))
		fn(&out[i])
	}
	return out
}

// time reads an RFC 3339 time, or nil.
func (u *unpacker) time() Time {
	b := u.Raw()
	if b == nil {
		return 0
	}
	t, ok := parseTime(b)
	if !ok {
		u.Fail("no RFC 3339 time")
	}
	return t
}

// bytes reads bin, or a base64 text.
func (u *unpacker) bytes() Bytes {
	if b, ok := u.Bin(); ok {
		return b
	}
	if u.Nil() {
		return nil
	}
	text := u.Raw()
	b, err := DecodeBase64(text)
	if err != nil {
		u.Fail(err.Error())
	}
	return b
}

func (u *unpacker) headers() map[string]string {
	var m map[string]string
	if u.Map(func(name []byte) bool {
		if m == nil {
			m = map[string]string{}
		}
		m[string(name)] = u.Str()
		return true
	}) && m == nil {
		m = map[string]string{}
	}
	return m
}

// known returns the words that answers are full of without making them anew.
func known(b []byte) string {
	switch string(b) {
	case Enqueued:
		return Enqueued
	case Duplicate:
		return Duplicate
	case "acked":
		return "acked"
	case "retried":
		return "retried"
	case "extended":
		return "extended"
	case "released":
		return "released"
	case "rejected":
		return "rejected"
	case "lease_lost":
		return "lease_lost"
	}
	return string(b)
}

func (u *unpacker) newMessage(m *NewMessage, depth int) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "payload":
			m.Payload = u.Value(depth + 1)
		case "payload_base64":
			m.PayloadBytes = u.bytes()
		case "content_type":
			m.ContentType = u.Str()
		case "key":
			m.Key = u.Str()
		case "priority":
			m.Priority = u.OptInt()
		case "headers":
			m.Headers = u.headers()
		case "idempotency_key":
			m.IdempotencyKey = u.Str()
		case "delay_ms":
			m.DelayMS = u.Int()
		case "deliver_at":
			m.DeliverAt = u.time()
		case "ttl_ms":
			m.TTLMS = u.Int()
		case "kind":
			m.Kind = u.Str()
		case "correlation_id":
			m.CorrelationID = u.Str()
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) produced(m *Produced) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "id":
			m.ID = u.Str()
		case "status":
			m.Status = known(u.Raw())
		case "queue":
			m.Queue = u.Str()
		case "state":
			m.State = u.Str()
		case "result":
			m.Result = u.Value(4)
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) leaseRequest(v *LeaseRequest) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "queues":
			v.Queues = u.Strs()
		case "max_messages":
			v.MaxMessages = u.OptInt()
		case "wait_ms":
			v.WaitMS = u.Int()
		case "lease_ms":
			v.LeaseMS = u.Int()
		case "worker":
			v.Worker = u.Str()
		case "kinds":
			v.Kinds = u.Strs()
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) leased(m *LeasedMessage) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "id":
			m.ID = u.Str()
		case "lease_id":
			m.LeaseID = u.Str()
		case "queue":
			m.Queue = u.Str()
		case "key":
			m.Key = u.Str()
		case "attempt":
			m.Attempt = u.Int()
		case "max_attempts":
			m.MaxAttempts = u.Int()
		case "priority":
			m.Priority = u.Int()
		case "kind":
			m.Kind = u.Str()
		case "headers":
			m.Headers = u.headers()
		case "payload":
			m.Payload = u.Value(4)
		case "payload_base64":
			m.PayloadBytes = u.bytes()
		case "content_type":
			m.ContentType = u.Str()
		case "erased":
			m.Erased = u.Bool()
		case "enqueued_at":
			m.EnqueuedAt = u.time()
		case "lease_expires_at":
			m.LeaseExpiresAt = u.time()
		case "correlation_id":
			m.CorrelationID = u.Str()
		case "dead":
			if !u.Nil() {
				m.Dead = &Dead{}
				u.dead(m.Dead)
			}
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) dead(d *Dead) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "queue":
			d.Queue = u.Str()
		case "message_id":
			d.MessageID = u.Str()
		case "reason":
			d.Reason = u.Str()
		case "error":
			d.Error = u.Str()
		case "attempts":
			d.Attempts = u.Int()
		case "failed_at":
			d.FailedAt = u.time()
		case "first_enqueued_at":
			d.FirstEnqueuedAt = u.time()
		case "replay_count":
			d.ReplayCount = u.Int()
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) retryItem(it *RetryItem) {
	u.object(func(name []byte) bool {
		if string(name) == "lease_id" {
			it.LeaseID = u.Str()
			return true
		}
		return u.retryField(name, &it.Error, &it.DelayMS, &it.Retryable)
	})
}

func (u *unpacker) retryField(name []byte, text *string, delay **int64, retryable **bool) bool {
	switch string(name) {
	case "error":
		*text = u.Str()
	case "delay_ms":
		*delay = u.OptInt()
	case "retryable":
		*retryable = u.OptBool()
	default:
		return false
	}
	return true
}

func (u *unpacker) deadLetterItem(it *DeadLetterItem) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "lease_id":
			it.LeaseID = u.Str()
		case "error":
			it.Error = u.Str()
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) extendItem(it *ExtendItem) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "lease_id":
			it.LeaseID = u.Str()
		case "lease_ms":
			it.LeaseMS = u.Int()
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) settleResult(r *SettleResult) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "lease_id":
			r.LeaseID = u.Str()
		case "status":
			r.Status = known(u.Raw())
		case "code":
			r.Code = known(u.Raw())
		case "next_at":
			r.NextAt = u.time()
		case "lease_expires_at":
			r.LeaseExpiresAt = u.time()
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) transaction(v *TransactionRequest) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "ack":
			v.Ack = u.Strs()
		case "retry":
			v.Retry = unpackList(u, u.retryItem)
		case "dead_letter":
			v.DeadLetter = unpackList(u, u.deadLetterItem)
		case "extend":
			v.Extend = unpackList(u, u.extendItem)
		case "produce":
			v.Produce = unpackList(u, func(t *TransactionProduce) {
				u.object(func(name []byte) bool {
					switch string(name) {
					case "queue":
						t.Queue = u.Str()
					case "messages":
						t.Messages = unpackList(u, func(m *NewMessage) { u.newMessage(m, 5) })
					default:
						return false
					}
					return true
				})
			})
		default:
			return false
		}
		return true
	})
}

// parseTime reads an RFC 3339 time of the years 1970 to 9999.
func parseTime[T string | []byte](text T) (Time, bool) {
	v, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil || v.Year() < 1970 || v.Year() > 9999 || v.UnixMilli() < 0 {
		return 0, false
	}
	return TimeOf(v), true
}
