package api

import (
	"encoding/binary"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Limits of what users write beside the payload (contract.md section 3 has the
// others).
const (
	maxKind          = 128
	maxCorrelationID = 256
	maxMessageKey    = 256 // a message's idempotency_key
	maxContentType   = 256
	maxWorker        = 256
	maxError         = 64 << 10
	maxKinds         = 100
	maxQueues        = 100
)

// produce answers POST /v1/queues/{queue}/messages: a JSON or msgpack batch,
// or one payload with its metadata in the query.
func (s *Server) produce(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	var msgs []wire.NewMessage
	switch {
	case isForm(q.media):
		return event.Problemf(codeUnsupportedMedia, "Content-Type",
			"Content-Type %s is a form's, most likely sent for want of another; name the payload's own type, or application/json with messages", q.media)
	case q.isEvents():
		b, err := q.eventBatch()
		if err != nil {
			return err
		}
		return s.enqueue(q, name, b)
	case q.media == "" || q.media == typeJSON || isMsgpack(q.media):
		if err := q.allow(); err != nil {
			return err
		}
		var in wire.ProduceRequest
		if err := q.decode(&in, true, false); err != nil {
			return err
		}
		msgs = in.Messages
	default:
		m, payload, err := q.rawMessage()
		if err != nil {
			return err
		}
		nm, err := s.newMessage(m, payload)
		if err != nil {
			p := *err.(*event.Problem)
			p.Index = -1
			return &p
		}
		return s.enqueue(q, name, &batch{msgs: []event.NewMessage{nm}, payloads: [][]byte{payload}, binary: []bool{true}})
	}
	if p := batchSize("messages", len(msgs)); p != nil {
		return p
	}
	b, err := s.newBatch(msgs)
	if err != nil {
		return err
	}
	b.list = true
	return s.enqueue(q, name, b)
}

func isForm(media string) bool {
	return media == "application/x-www-form-urlencoded" || strings.HasPrefix(media, "multipart/")
}

// batch is what is enqueued together into one queue. payloads are the
// messages', for what is to be checked against the queue.
type batch struct {
	msgs     []event.NewMessage
	payloads [][]byte
	binary   []bool
	imported bool // they have source ids
	// list: the body is a list of messages, and none of the request's headers went
	// into them.
	list bool
}

// hash is of a query, of all that these messages are to be, by the digests of
// their contents, and of how many bytes of a body say so. Requests of the same hash
// ask for the same. It is quicker than a hash of the body.
func (b *batch) hash(query string, body int) event.Hash {
	buf := make([]byte, 0, 32+len(query)+96*len(b.msgs))
	str := func(s string) { buf = append(binary.AppendUvarint(buf, uint64(len(s))), s...) }
	num := func(v int64) { buf = binary.AppendVarint(buf, v) }
	str("messages")
	str(query)
	num(int64(body))
	for i := range b.msgs {
		m := &b.msgs[i]
		str(m.Key)
		str(m.Kind)
		num(int64(m.Priority))
		num(m.DelayMS)
		num(m.DeliverAt)
		num(m.TTLMS)
		buf = append(buf, m.DedupKey[:]...)
		num(int64(m.Size))
		buf = append(buf, m.Content.Digest[:]...)
		str(m.SourceID)
	}
	return hashBytes(buf)
}

func batchSize(field string, n int) error {
	if n < 1 || n > event.MaxBatch {
		return bad(field, "%s must have 1 to %d entries, not %d", field, event.MaxBatch, n)
	}
	return nil
}

// rawMessage reads a message whose body is its payload.
func (q *request) rawMessage() (*wire.NewMessage, []byte, error) {
	m, err := q.metadata("key", "priority", "delay_ms", "deliver_at", "ttl_ms", "kind", "correlation_id", "idempotency_key", "header.")
	if err != nil {
		return nil, nil, err
	}
	m.ContentType = q.Header.Get("Content-Type")
	for name, v := range q.query {
		if h, ok := strings.CutPrefix(name, "header."); ok {
			if m.Headers == nil {
				m.Headers = map[string]string{}
			}
			m.Headers[h] = v[0]
		}
	}
	payload, err := q.bytes(q.s.opts.MaxPayload)
	if err == nil && len(payload) == 0 {
		err = bad("payload", "the body is empty; it is the payload")
	}
	return m, payload, err
}

// metadata reads a message's fields from the query, of which the route takes
// these.
func (q *request) metadata(names ...string) (*wire.NewMessage, error) {
	if err := q.allow(names...); err != nil {
		return nil, err
	}
	m := &wire.NewMessage{
		Key: q.query.Get("key"), Kind: q.query.Get("kind"), CorrelationID: q.query.Get("correlation_id"),
		IdempotencyKey: q.query.Get("idempotency_key"),
	}
	for _, p := range [...]struct{ name, v string }{
		{"key", m.Key}, {"kind", m.Kind}, {"correlation_id", m.CorrelationID}, {"idempotency_key", m.IdempotencyKey},
	} {
		if !utf8.ValidString(p.v) {
			return nil, bad(p.name, "%s must be UTF-8", p.name)
		}
	}
	if q.query.Has("idempotency_key") && m.IdempotencyKey == "" {
		return nil, bad("idempotency_key", "idempotency_key must not be empty")
	}
	var err error
	if q.query.Has("priority") {
		n, err := q.number("priority", 0, event.MinPriority, event.MaxPriority)
		if err != nil {
			return nil, err
		}
		m.Priority = &n
	}
	if m.DelayMS, err = q.number("delay_ms", 0, 0, event.MaxDelayMS); err != nil {
		return nil, err
	}
	if m.TTLMS, err = q.number("ttl_ms", 0, 0, event.MaxDelayMS); err != nil {
		return nil, err
	}
	if v := q.query.Get("deliver_at"); q.query.Has("deliver_at") {
		if err := wire.Decode([]byte(strconv.Quote(clip(v, 64))), &m.DeliverAt); err != nil {
			return nil, bad("deliver_at", "deliver_at must be an RFC 3339 time")
		}
	}
	return m, nil
}

// newBatch checks messages one by one.
func (s *Server) newBatch(msgs []wire.NewMessage) (*batch, error) {
	room := new([]byte) // of the contents, which are encoded one behind the other
	b := &batch{msgs: make([]event.NewMessage, len(msgs)), payloads: make([][]byte, len(msgs)), binary: make([]bool, len(msgs))}
	for i := range msgs {
		m := &msgs[i]
		var err error
		switch {
		case m.Payload != nil && m.PayloadBytes != nil:
			err = bad("payload", "messages[%d] has both payload and payload_base64", i)
		case m.Payload != nil && m.ContentType != "":
			err = bad("content_type", "messages[%d].content_type goes with payload_base64", i)
		case m.Payload != nil:
			b.payloads[i] = m.Payload
		case m.PayloadBytes != nil:
			b.payloads[i], b.binary[i] = m.PayloadBytes, true
		default:
			err = bad("payload", "messages[%d] needs a payload or a payload_base64", i)
		}
		if err == nil {
			b.msgs[i], err = s.newMessageFrom(m, b.payloads[i], nil, room)
		}
		if err != nil {
			return nil, err.(*event.Problem).At(i)
		}
	}
	return b, nil
}

// newMessage checks one message and encodes what the user wrote, once. The
// payload is JSON where m has one, else bytes. Problems are of field names
// within the message.
func (s *Server) newMessage(m *wire.NewMessage, payload []byte) (event.NewMessage, error) {
	return s.newMessageFrom(m, payload, nil, new([]byte))
}

// newMessageFrom is newMessage with the body that the payload was made from, if
// it was, and with the memory that its content is written into.
func (s *Server) newMessageFrom(m *wire.NewMessage, payload, original []byte, room *[]byte) (out event.NewMessage, err error) {
	if int64(len(payload)) > s.opts.MaxPayload {
		return out, event.Problemf(codePayloadTooLarge, "payload", "the payload has %d bytes, more than %d", len(payload), s.opts.MaxPayload)
	}
	if err := within("key", m.Key, event.MaxKeyBytes); err != nil {
		return out, err
	}
	if err := within("kind", m.Kind, maxKind); err != nil {
		return out, err
	}
	if err := within("correlation_id", m.CorrelationID, maxCorrelationID); err != nil {
		return out, err
	}
	if err := within("idempotency_key", m.IdempotencyKey, maxMessageKey); err != nil {
		return out, err
	}
	if len(m.ContentType) > maxContentType || !printable(m.ContentType) {
		return out, bad("content_type", "content_type must be a media type of at most %d bytes", maxContentType)
	}
	priority := int64(event.NormalPriority)
	if m.Priority != nil {
		priority = *m.Priority
	}
	if priority < event.MinPriority || priority > event.MaxPriority {
		return out, bad("priority", "priority must be from %d to %d, not %d", event.MinPriority, event.MaxPriority, priority)
	}
	for _, d := range [...]struct {
		name string
		v    int64
	}{{"delay_ms", m.DelayMS}, {"ttl_ms", m.TTLMS}} {
		if d.v < 0 || d.v > event.MaxDelayMS {
			return out, bad(d.name, "%s must be from 0 to %d (10 years), not %d", d.name, int64(event.MaxDelayMS), d.v)
		}
	}
	if m.DeliverAt != 0 {
		if m.DelayMS != 0 {
			return out, bad("deliver_at", "deliver_at and delay_ms exclude each other")
		}
		if int64(m.DeliverAt)-s.clock(s.deps.State) > event.MaxDelayMS {
			return out, bad("deliver_at", "deliver_at must be at most 10 years from now")
		}
	}
	headers, err := messageHeaders(m.Headers)
	if err != nil {
		return out, err
	}
	content := event.Content{
		Payload: payload, Binary: m.Payload == nil, ContentType: m.ContentType, Headers: headers, CorrelationID: m.CorrelationID,
		Original: original,
	}
	out = event.NewMessage{
		Key: m.Key, Kind: m.Kind, Priority: uint8(priority), DelayMS: m.DelayMS, DeliverAt: int64(m.DeliverAt), TTLMS: m.TTLMS,
		Size: uint32(len(payload)), Content: content.EncodeIn(room),
	}
	if m.IdempotencyKey != "" {
		out.DedupKey = hash(m.IdempotencyKey)
	}
	return out, nil
}

func within(field, v string, n int) error {
	if len(v) > n {
		return bad(field, "%s must be at most %d bytes, not %d", field, n, len(v))
	}
	return nil
}

// printable reports whether v has no control characters.
func printable(v string) bool {
	for i := range len(v) {
		if v[i] < 0x20 && v[i] != '\t' || v[i] == 0x7f {
			return false
		}
	}
	return true
}

// messageHeaders checks headers and sorts them by name, so that the same
// message has the same bytes.
func messageHeaders(m map[string]string) ([]event.Header, error) {
	if len(m) == 0 {
		return nil, nil
	}
	if len(m) > event.MaxHeaders {
		return nil, bad("headers", "headers must be at most %d, not %d", event.MaxHeaders, len(m))
	}
	out := make([]event.Header, 0, len(m))
	for name, v := range m {
		if !visible(name, event.MaxHeaderName) {
			return nil, bad("headers", "a header's name must be 1 to %d visible ASCII characters, not %s", event.MaxHeaderName, echo(name))
		}
		if len(v) > event.MaxHeaderValue || !printable(v) || !utf8.ValidString(v) {
			return nil, bad("headers", "the value of header %s must be at most %d bytes of UTF-8 without control characters", echo(name), event.MaxHeaderValue)
		}
		out = append(out, event.Header{Name: name, Value: v})
	}
	slices.SortFunc(out, func(a, b event.Header) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// enqueue proposes messages and answers produce.
func (s *Server) enqueue(q *request, name string, b *batch) error {
	res, err := s.enqueueBatch(q, name, b)
	if err != nil {
		return err
	}
	return s.answerProduced(q, res.Produced)
}

// enqueueBatch proposes messages, until they were checked against the policy
// under which they are decided.
func (s *Server) enqueueBatch(q *request, name string, b *batch) (event.Result, error) {
	if !b.list || q.Header["Idempotency-Key"] == nil {
		return s.enqueueAs(q, name, b, false)
	}
	// The contents have digests already: the body need not be hashed, too.
	return s.enqueueAs(q, name, b, true)
}

// enqueueAs is enqueueBatch of a request that is known again by its messages'
// contents, or by its body.
func (s *Server) enqueueAs(q *request, name string, b *batch, byContents bool) (res event.Result, err error) {
	hash := q.bodyHash
	if byContents {
		hash = func(body []byte) event.Hash { return b.hash(q.URL.RawQuery, len(body)) }
	}
	req, err := q.identity(hash)
	if err != nil {
		return res, err
	}
	for range maxStale {
		p := event.Produce{Queue: name, AutoCreate: s.opts.AutoCreateQueues, Messages: b.msgs, Import: b.imported}
		if err := s.fit(q, &p, b); err != nil {
			return res, err
		}
		res, err := q.propose(&event.Command{Request: req, Produce: &p})
		if isStale(err) {
			q.unhurried()
			if err := s.barrier(q.Context()); err != nil {
				return res, err
			}
			continue
		}
		return res, err
	}
	return res, event.Problemf(event.CodeConflict, "queue", "the policy of %s keeps changing; try again", echo(name))
}

// fit checks messages against their queue as this node knows it, and stamps
// the command with the policy's revision: deciding refuses it if that is no
// longer the one.
func (s *Server) fit(q *request, p *event.Produce, b *batch) error {
	v, err := s.current(q, p.Queue)
	if err != nil {
		missing, ok := err.(*event.Problem)
		if ok && missing.Code == event.CodeQueueNotFound && (p.AutoCreate || q.Header["Idempotency-Key"] != nil) {
			p.Revision = 0
			return nil
		}
		return err
	}
	err = s.schemas.check(&v, func(i int) ([]byte, bool, bool) {
		if i >= len(b.payloads) {
			return nil, false, false
		}
		return b.payloads[i], b.binary[i], true
	})
	if err != nil {
		return err
	}
	for i := range p.Messages {
		p.Messages[i].PayloadHash = event.Hash{}
		if v.Policy.DedupBy == event.DedupByContent && !p.Import {
			p.Messages[i].PayloadHash = hashBytes(b.payloads[i])
		}
	}
	p.Revision = v.Revision
	return s.lookForDuplicates(p, &v)
}

// answerProduced tells the ids; 200 where nothing is new, else 201.
func (s *Server) answerProduced(q *request, produced []event.Produced) error {
	status := http.StatusOK
	if slices.ContainsFunc(produced, func(p event.Produced) bool { return !p.Duplicate }) {
		status = http.StatusCreated
	}
	out, err := s.producedAll(q, produced)
	if err != nil {
		return err
	}
	return q.answer(status, &wire.ProduceResponse{Messages: out})
}

// producedAll says what became of each message of a request.
func (s *Server) producedAll(q *request, produced []event.Produced) ([]wire.Produced, error) {
	out := make([]wire.Produced, len(produced))
	for i := range produced {
		p := &produced[i]
		out[i] = wire.Produced{ID: p.ID.String(), Status: wire.Enqueued}
		if !p.Duplicate {
			continue
		}
		state, result, err := s.fate(q.Context(), p.ID)
		if err != nil {
			return nil, err
		}
		out[i].Status, out[i].Result = wire.Duplicate, result
		if state != event.StateNone {
			out[i].State = state.String()
		}
	}
	return out, nil
}
