package wire

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/qlogd/qlogd/internal/coding"
)

// DecodeMsgpack reads a value that AppendMsgpack could have written into v, a
// pointer as there; of the ways to write a value that msgpack has, it knows those
// that mean the same to everybody. Payloads and results are not copied where
// src has them as they are kept: then src must not change as long as they are
// used. Requests are read strictly: an unknown field or a name twice is an error,
// as in Decode, and so is a list of more than 1000. What answers hold that is new
// is skipped. After an error *v is zero.
func DecodeMsgpack(src []byte, v any) error {
	u := unpacker{Reader: coding.NewReader(src, false)}
	if !u.request(v) {
		u = unpacker{Reader: coding.NewReader(src, true), lenient: true}
		if !u.answer(v) {
			return fmt.Errorf("%T has no msgpack", v)
		}
	}
	if err := u.End(); err != nil {
		reflect.ValueOf(v).Elem().SetZero()
		return fmt.Errorf("msgpack: %w", err)
	}
	return nil
}

// DecodeRequest reads a request of the calls that AppendMsgpack is for, JSON or
// msgpack, strictly and in one pass. False says that it is for Decode to find out
// what is wrong, if anything: there is good JSON that this does not know. *v is
// zero then. Payloads lie in src or in memory, which holds what is made on the way
// and may be exchanged for larger memory; both must stay as they are as long as *v
// is used. The list of a ProduceRequest is used again.
func DecodeRequest(src []byte, v any, msgpack bool, memory *[]byte) bool {
	u := unpacker{}
	if msgpack {
		u.Reader = coding.NewReader(src, false)
	} else {
		u.Reader = coding.NewTextReader(src)
	}
	u.Lend(*memory)
	ok := u.request(v)
	*memory = u.Back()
	if ok && u.End() == nil {
		return true
	}
	reflect.ValueOf(v).Elem().SetZero()
	return false
}

// request reads a request; false where v is none.
func (u *unpacker) request(v any) bool {
	switch v := v.(type) {
	case *ProduceRequest:
		messages := v.Messages[:0]
		*v = ProduceRequest{}
		u.only("messages", func() { v.Messages = unpackList(u, messages, func(m *NewMessage) { u.newMessage(m, 3) }) })
	case *LeaseRequest:
		*v = LeaseRequest{}
		u.leaseRequest(v)
	case *AckRequest:
		*v = AckRequest{}
		u.object(func(name []byte) bool {
			switch string(name) {
			case "lease_ids":
				v.LeaseIDs = u.strs()
			case "result":
				v.Result = u.Value(2)
			case "produce":
				v.Produce = unpackList(u, nil, u.transactionProduce)
			default:
				return false
			}
			return true
		})
	case *RetryRequest:
		*v = RetryRequest{}
		u.only("items", func() { v.Items = unpackList(u, nil, u.retryItem) })
	case *DeadLetterRequest:
		*v = DeadLetterRequest{}
		u.only("items", func() { v.Items = unpackList(u, nil, u.deadLetterItem) })
	case *ExtendRequest:
		*v = ExtendRequest{}
		u.only("items", func() { v.Items = unpackList(u, nil, u.extendItem) })
	case *ReleaseRequest:
		*v = ReleaseRequest{}
		u.only("lease_ids", func() { v.LeaseIDs = u.strs() })
	case *AckOne:
		*v = AckOne{}
		u.object(func(name []byte) bool {
			switch string(name) {
			case "result":
				v.Result = u.Value(2)
			case "produce":
				v.Produce = unpackList(u, nil, u.transactionProduce)
			default:
				return false
			}
			return true
		})
	case *RetryOne:
		*v = RetryOne{}
		u.object(func(name []byte) bool { return u.retryField(name, &v.Error, &v.DelayMS, &v.Retryable) })
	case *DeadLetterOne:
		*v = DeadLetterOne{}
		u.only("error", func() { v.Error = u.Str() })
	case *ExtendOne:
		*v = ExtendOne{}
		u.only("lease_ms", func() { v.LeaseMS = u.Int() })
	case *ReleaseOne:
		u.object(func([]byte) bool { return false })
	case *TransactionRequest:
		*v = TransactionRequest{}
		u.transaction(v)
	default:
		return false
	}
	return true
}

// answer reads an answer; false where v is none.
func (u *unpacker) answer(v any) bool {
	switch v := v.(type) {
	case *ProduceResponse:
		*v = ProduceResponse{}
		u.only("messages", func() { v.Messages = unpackList(u, nil, u.produced) })
	case *LeaseResponse:
		*v = LeaseResponse{}
		u.only("messages", func() { v.Messages = unpackList(u, nil, u.leased) })
	case *SettleResponse:
		*v = SettleResponse{}
		u.only("results", func() { v.Results = unpackList(u, nil, u.settleResult) })
	case *SettleResult:
		*v = SettleResult{}
		u.settleResult(v)
	case *TransactionResponse:
		*v = TransactionResponse{}
		u.object(func(name []byte) bool {
			switch string(name) {
			case "results":
				v.Results = unpackList(u, nil, u.settleResult)
			case "messages":
				v.Messages = unpackList(u, nil, u.produced)
			default:
				return false
			}
			return true
		})
	default:
		return false
	}
	return true
}

// unpacker reads requests and answers: msgpack, or JSON.
type unpacker struct {
	*coding.Reader
	lenient bool
	before  struct{ queue, kind string } // of the message before, most likely the same
}

// again reads a text that was read before, as a rule.
func (u *unpacker) again(before *string) string {
	if b := u.Raw(); string(b) != *before {
		*before = string(b)
	}
	return *before
}

// maxList bounds the lists of requests, so that a few bytes an element do not
// make a thousand times the memory: no call takes more.
const maxList = 1000

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

// unpackList reads a list into out's memory, as far as that goes.
func unpackList[T any](u *unpacker, out []T, fn func(*T)) []T {
	it, ok := u.List()
	if !ok {
		return nil
	}
	if out == nil {
		out = make([]T, 0, min(it.Len(), maxList))
	}
	for u.Next(&it) {
		if len(out) == maxList && !u.lenient {
			u.Fail("a list that is too long")
			break
		}
		out = append(out, *new(T))
		fn(&out[len(out)-1])
	}
	return out
}

func (u *unpacker) strs() []string {
	if u.lenient {
		return u.Strs(math.MaxInt)
	}
	return u.Strs(maxList)
}

// time reads an RFC 3339 time, or nil.
func (u *unpacker) time() Time {
	if u.Nil() {
		return 0
	}
	t, ok := parseTime(u.Raw())
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
	return u.Base64()
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
			v.Queues = u.strs()
		case "max_messages":
			v.MaxMessages = u.OptInt()
		case "wait_ms":
			v.WaitMS = u.Int()
		case "lease_ms":
			v.LeaseMS = u.Int()
		case "worker":
			v.Worker = u.Str()
		case "kinds":
			v.Kinds = u.strs()
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
			m.Queue = u.again(&u.before.queue)
		case "key":
			m.Key = u.Str()
		case "attempt":
			m.Attempt = u.Int()
		case "max_attempts":
			m.MaxAttempts = u.Int()
		case "priority":
			m.Priority = u.Int()
		case "kind":
			m.Kind = u.again(&u.before.kind)
		case "headers":
			m.Headers = u.headers()
		case "payload":
			m.Payload = u.Value(4)
		case "payload_base64":
			m.PayloadBytes = u.bytes()
		case "content_type":
			m.ContentType = u.Str()
		case "original":
			m.Original = u.Value(4)
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
			v.Ack = u.strs()
		case "retry":
			v.Retry = unpackList(u, nil, u.retryItem)
		case "dead_letter":
			v.DeadLetter = unpackList(u, nil, u.deadLetterItem)
		case "extend":
			v.Extend = unpackList(u, nil, u.extendItem)
		case "produce":
			v.Produce = unpackList(u, nil, u.transactionProduce)
		default:
			return false
		}
		return true
	})
}

func (u *unpacker) transactionProduce(t *TransactionProduce) {
	u.object(func(name []byte) bool {
		switch string(name) {
		case "queue":
			t.Queue = u.Str()
		case "messages":
			t.Messages = unpackList(u, nil, func(m *NewMessage) { u.newMessage(m, 5) })
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
