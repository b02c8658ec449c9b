package wire

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/qlogd/qlogd/internal/coding"
)

// The msgpack of a value is that of its JSON, field by field, but for payloads
// and results: bytes are bin, and JSON is the extension type coding.JSONText (74)
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
		p.object(1 + one(v.Result != nil) + one(v.Produce != nil))
		p.name("lease_ids")
		p.strs(v.LeaseIDs)
		p.json("result", v.Result)
		p.transactionProduce(v.Produce)
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
		p.object(one(v.Result != nil) + one(v.Produce != nil))
		p.json("result", v.Result)
		p.transactionProduce(v.Produce)
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

func (p *packer) object(n int)     { p.b = coding.AppendMap(p.b, n) }
func (p *packer) name(name string) { p.b = coding.AppendStr(p.b, name) }
func (p *packer) int(v int64)      { p.b = coding.AppendInt(p.b, v) }

func (p *packer) str(v string) {
	if !utf8.ValidString(v) && p.err == nil {
		p.err = errors.New("a string that is not UTF-8")
	}
	p.b = coding.AppendStr(p.b, v)
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
		p.b = coding.AppendNil(p.b)
		return
	}
	var text [len(TimeFormat) + 8]byte
	p.b = coding.AppendStr(p.b, t.Append(text[:0]))
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
		p.b = coding.AppendJSONText(p.b, v)
	}
}

func (p *packer) bytes(name string, v Bytes) {
	if v != nil {
		p.name(name)
		p.b = coding.AppendBin(p.b, v)
	}
}

func (p *packer) strs(v []string) {
	p.b = coding.AppendArray(p.b, len(v))
	for _, s := range v {
		p.str(s)
	}
}

func packList[T any](p *packer, v []T, fn func(*packer, *T)) {
	p.b = coding.AppendArray(p.b, len(v))
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
	p.object(13 + one(m.Payload != nil) + one(m.PayloadBytes != nil) + one(m.ContentType != "") + one(m.Original != nil) + one(m.Erased))
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
	p.json("original", m.Original)
	if m.Erased {
		p.name("erased")
		p.b = coding.AppendBool(p.b, true)
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
		p.b = coding.AppendNil(p.b)
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
		p.b = coding.AppendBool(p.b, *retryable)
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
	p.transactionProduce(v.Produce)
}

// transactionProduce appends the field produce, unless there is none.
func (p *packer) transactionProduce(v []TransactionProduce) {
	if v == nil {
		return
	}
	p.name("produce")
	packList(p, v, func(p *packer, t *TransactionProduce) {
		p.object(2)
		p.name("queue")
		p.str(t.Queue)
		p.name("messages")
		packList(p, t.Messages, (*packer).newMessage)
	})
}
