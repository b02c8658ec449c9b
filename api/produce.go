package api

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// Limits of a message's fields; other limits are in package event.
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

// produce answers POST /v1/queues/{queue}/messages: a JSON or msgpack batch, CloudEvents, or one
// payload with its metadata in the query.
func (s *Server) produce(q *request) error {
	name := q.queue()
	q.do(q.checkHops)
	b := get(q, func() (*batch, error) { return s.produced(q) })
	res := get(q, func() (event.Result, error) { return s.enqueue(q, name, b) })
	q.note(b, &res)
	out := get(q, func() ([]wire.Produced, error) { return s.producedAll(q, res.Produced) })
	isNew := func(p event.Produced) bool { return !p.Duplicate }
	status := createdOrOK(slices.ContainsFunc(res.Produced, isNew))
	return q.answer(status, &wire.ProduceResponse{Messages: out})
}

// produced reads the messages of a produce call.
func (s *Server) produced(q *request) (*batch, error) {
	switch {
	case q.media == "application/x-www-form-urlencoded" || strings.HasPrefix(q.media, "multipart/"):
		return nil, event.Problemf(codeUnsupportedMedia, "Content-Type",
			"Content-Type %s is a form's, probably a client's default: with curl, use --json in place "+
				"of -d, or add -H 'Content-Type: application/json', or the payload's own type", q.media)
	case q.isEvents():
		return q.eventBatch()
	case q.media == "" || q.media == typeJSON || isMsgpack(q.media):
		var in wire.ProduceRequest
		q.read().body(&in)
		bare := !reflect.ValueOf(in.NewMessage).IsZero()
		switch {
		case bare && in.Messages != nil:
			q.refuse("messages", "messages must be omitted beside the fields of one message")
		case bare:
			in.Messages = []wire.NewMessage{in.NewMessage}
		}
		q.do(func() error { return batchSize("messages", len(in.Messages)) })
		hops := webhook.Hops(q.Header)
		for i := range in.Messages {
			carryHops(&in.Messages[i], hops)
			q.link(in.Messages[i].Headers)
		}
		b := get(q, func() (*batch, error) {
			return s.newBatch(in.Messages, q.room(), q.traceContext())
		})
		q.do(func() error { return b.uncaused() })
		return b, q.err
	}
	m, b := q.rawMessage(), &batch{trace: q.traceContext()}
	carryHops(m, webhook.Hops(q.Header))
	q.do(func() error { return s.add(b, m, nil) })
	return b, q.err
}

// carryHops copies the hop count of a push's request to the message.
func carryHops(m *wire.NewMessage, hops int) {
	if hops == 0 {
		return
	}
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers[strings.ToLower(webhook.HopsHeader)] = strconv.Itoa(hops)
}

// batch has messages to enqueue together into one queue, and their payloads, which fit checks
// against the queue's schema.
type batch struct {
	msgs     []event.NewMessage
	payloads []payload
	imported bool           // they have source ids
	noCreate bool           // do not create their queue automatically
	trace    []event.Header // added to messages without a trace context of their own

	content  event.Content // of the newest message
	contents []byte        // of all messages, encoded
}

func batchSize(field string, n int) error {
	if n < 1 || n > event.MaxBatch {
		return bad(field, "%s must have 1 to %d entries, not %d", field, event.MaxBatch, n)
	}
	return nil
}

// uncaused rejects messages with a cause: only an ack or a transaction has leases.
func (b *batch) uncaused() error {
	for i := range b.msgs {
		if !b.msgs[i].Cause.IsZero() {
			return bad("cause", "messages[%d].cause goes with an ack or a transaction, of which it "+
				"is a lease", i).At(i)
		}
	}
	return nil
}

// rawMessage reads a message whose payload is the body.
func (q *request) rawMessage() *wire.NewMessage {
	m := q.metadata("key", "priority", "delay_ms", "deliver_at", "ttl_ms", "kind", "correlation_id",
		"idempotency_key", "header.")
	m.ContentType = q.Header.Get("Content-Type")
	m.Headers = q.queryHeaders()
	m.PayloadBytes = get(q, func() ([]byte, error) { return q.bytes(q.s.opts.MaxPayload) })
	if len(m.PayloadBytes) == 0 {
		q.refuse("payload", "the body is empty; it is the payload")
	}
	return m
}

// metadata reads a message's fields from the query; the route accepts only these.
func (q *request) metadata(names ...string) *wire.NewMessage {
	q.read(names...)
	m := &wire.NewMessage{}
	for name, v := range map[string]*string{
		"key": &m.Key, "kind": &m.Kind,
		"correlation_id": &m.CorrelationID, "idempotency_key": &m.IdempotencyKey,
	} {
		if *v = q.query.Get(name); !utf8.ValidString(*v) {
			q.refuse(name, "%s must be UTF-8", name)
		}
	}
	if q.query.Has("idempotency_key") && m.IdempotencyKey == "" {
		q.refuse("idempotency_key", "idempotency_key must not be empty")
	}
	if q.query.Has("priority") {
		m.Priority = new(q.number("priority", 0, event.MinPriority, event.MaxPriority))
	}
	if q.query.Has("delay_ms") {
		m.DelayMS = new(q.number("delay_ms", 0, 0, event.MaxDelayMS))
	}
	m.TTLMS = q.number("ttl_ms", 0, 0, event.MaxDelayMS)
	if v := q.query.Get("deliver_at"); q.query.Has("deliver_at") &&
		wire.Decode([]byte(strconv.Quote(clip(v, 64))), &m.DeliverAt) != nil {
		q.refuse("deliver_at", "deliver_at must be an RFC 3339 time")
	}
	return m
}

// newBatch checks messages and adds them to a new batch. Their contents are appended to room.
func (s *Server) newBatch(
	msgs []wire.NewMessage, room []byte, trace []event.Header,
) (*batch, error) {
	n := len(msgs)
	b := &batch{
		msgs: make([]event.NewMessage, 0, n), payloads: make([]payload, 0, n), contents: room,
		trace: trace,
	}
	for i := range msgs {
		m := &msgs[i]
		var err error
		switch {
		case m.Payload != nil && m.PayloadBytes != nil:
			err = bad("payload", "messages[%d] has both payload and payload_base64", i)
		case m.Payload != nil && m.ContentType != "":
			err = bad("content_type", "messages[%d].content_type goes with payload_base64", i)
		case m.Payload == nil && m.PayloadBytes == nil:
			err = bad("payload", "messages[%d] needs a payload or a payload_base64", i)
		default:
			err = s.add(b, m, nil)
		}
		if err != nil {
			return nil, err.(*event.Problem).At(i)
		}
	}
	return b, nil
}

// add checks a message, encodes its content, and adds both to a batch. original is the body that
// its payload was mapped from, nil for none. Problems name fields within the message.
func (s *Server) add(b *batch, m *wire.NewMessage, original []byte) error {
	p := payload{m.Payload, false}
	if m.Payload == nil {
		p = payload{m.PayloadBytes, true}
	}
	if int64(len(p.bytes)) > s.opts.MaxPayload {
		return event.Problemf(event.CodePayloadTooLarge, "payload",
			"the payload has %d bytes, more than %d", len(p.bytes), s.opts.MaxPayload)
	}
	delay, priority := deref(m.DelayMS), int64(event.NormalPriority)
	if m.Priority != nil {
		priority = *m.Priority
	}
	err := cmp.Or(
		within("key", m.Key, event.MaxKeyBytes), within("kind", m.Kind, maxKind),
		within("correlation_id", m.CorrelationID, maxCorrelationID),
		within("idempotency_key", m.IdempotencyKey, maxMessageKey),
		mediaType("content_type", m.ContentType), checkPriority(priority),
		checkDelay("delay_ms", delay), checkDelay("ttl_ms", m.TTLMS), s.checkDeliverAt(m.DeliverAt),
	)
	if err == nil && m.DeliverAt != 0 && delay != 0 {
		err = bad("deliver_at", "deliver_at and delay_ms exclude each other")
	}
	if err != nil {
		return err
	}
	headers, err := messageHeaders(m.Headers)
	if err != nil {
		return err
	}
	b.content = event.Content{
		Payload: p.bytes, Binary: p.binary, ContentType: m.ContentType,
		Headers: event.WithTrace(headers, b.trace), CorrelationID: m.CorrelationID, Original: original,
	}
	out := event.NewMessage{
		Key: m.Key, Kind: m.Kind, Priority: uint8(priority),
		DelayMS: delay, DeliverAt: int64(m.DeliverAt), TTLMS: m.TTLMS,
		Size: uint32(len(p.bytes)), CorrelationID: m.CorrelationID,
	}
	if m.DelayMS != nil && delay == 0 {
		out.DelayMS = -1 // not the queue's default
	}
	if m.Cause != "" {
		if out.Cause, err = ulid("cause", m.Cause); err != nil {
			return err
		}
	}
	b.contents, out.Content = event.AppendContent(b.contents, &b.content)
	if m.IdempotencyKey != "" {
		out.DedupKey = hash(m.IdempotencyKey)
	}
	b.msgs, b.payloads = append(b.msgs, out), append(b.payloads, p)
	return nil
}

// tooFar reports whether a time is further away than a delay may be.
func (s *Server) tooFar(at wire.Time) bool {
	return at != 0 && int64(at)-s.clock(s.deps.State) > event.MaxDelayMS
}

// checkDeliverAt returns an error if a message would have to wait for too long.
func (s *Server) checkDeliverAt(at wire.Time) error {
	if s.tooFar(at) {
		return bad("deliver_at", "deliver_at must be at most 10 years from now")
	}
	return nil
}

func checkPriority(v int64) error {
	return inRange("priority", v, event.MinPriority, event.MaxPriority)
}

func checkDelay(field string, v int64) error {
	if v < 0 || v > event.MaxDelayMS {
		return bad(field, "%s must be from 0 to %d (10 years), not %d",
			field, int64(event.MaxDelayMS), v)
	}
	return nil
}

// inRange returns an error unless v is from lo to hi.
func inRange(field string, v, lo, hi int64) error {
	if v < lo || v > hi {
		return bad(field, "%s must be from %d to %d, not %d", field, lo, hi, v)
	}
	return nil
}

func within(field, v string, n int) error {
	if len(v) > n {
		return bad(field, "%s must be at most %d bytes, not %d", field, n, len(v))
	}
	return nil
}

// mediaType returns an error unless v can be a content type.
func mediaType(field, v string) error {
	if len(v) > maxContentType || !printable(v) {
		return bad(field, "%s must be a media type of at most %d bytes", field, maxContentType)
	}
	return nil
}

// printable reports whether v has no control characters.
func printable(v string) bool {
	control := func(r rune) bool { return r < 0x20 && r != '\t' || r == 0x7f }
	return !strings.ContainsFunc(v, control)
}

// messageHeaders checks headers and sorts them by name, so that equal messages have equal bytes.
func messageHeaders(m map[string]string) ([]event.Header, error) {
	if len(m) == 0 {
		return nil, nil
	}
	n := len(m)
	for _, name := range [...]string{event.Traceparent, event.Tracestate} {
		if _, ok := m[name]; ok {
			n--
		}
	}
	if n > event.MaxHeaders {
		return nil, bad("headers", "headers must be at most %d, not %d", event.MaxHeaders, n)
	}
	out := make([]event.Header, 0, len(m))
	for name, v := range m {
		if !visible(name, event.MaxHeaderName) {
			return nil, bad("headers", "a header's name must be 1 to %d visible ASCII characters, "+
				"not %s", event.MaxHeaderName, echo(name))
		}
		if len(v) > event.MaxHeaderValue || !printable(v) || !utf8.ValidString(v) {
			return nil, bad("headers", "the value of header %s must be at most %d bytes of UTF-8 "+
				"without control characters", echo(name), event.MaxHeaderValue)
		}
		out = append(out, event.Header{Name: name, Value: v})
	}
	slices.SortFunc(out, func(a, b event.Header) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// enqueue checks messages against the queue's policy and proposes them.
func (s *Server) enqueue(q *request, name string, b *batch) (event.Result, error) {
	return q.proposeFresh("queue", "the queue's policy", func() (*event.Command, error) {
		p, err := s.fit(q, name, b)
		return &event.Command{Produce: &p}, err
	})
}

// fit checks messages against their queue as this node knows it, and returns the command part that
// enqueues them. It has the policy's revision; the state machine refuses it for another one.
func (s *Server) fit(q *request, name string, b *batch) (event.Produce, error) {
	p := event.Produce{Queue: name, Messages: b.msgs, Import: b.imported}
	p.AutoCreate = s.opts.AutoCreateQueues && !b.noCreate
	v, err := s.current(q, name)
	if err != nil {
		missing, ok := err.(*event.Problem)
		if ok && missing.Code == event.CodeQueueNotFound && (p.AutoCreate || q.keyed()) {
			return p, nil
		}
		return p, err
	}
	if err := s.fitsQueue(&v, b.payloads...); err != nil {
		return p, err
	}
	for i := range p.Messages {
		p.Messages[i].PayloadHash = event.Hash{}
		if v.Policy.DedupBy == event.DedupByContent && !p.Import {
			p.Messages[i].PayloadHash = hash(b.payloads[i].bytes)
		}
	}
	p.Revision = v.Revision
	if s.deps.State.DedupFloor() > 0 { // else the state remembers all hashes
		err = s.lookForDuplicates(q.Context(), &p, &v)
	}
	return p, err
}

// producedAll returns the outcome of each message of a request.
func (s *Server) producedAll(q *request, produced []event.Produced) ([]wire.Produced, error) {
	out := make([]wire.Produced, len(produced))
	for i, p := range produced {
		out[i] = wire.Produced{ID: p.ID.String(), Status: wire.Enqueued}
		if p.Duplicate {
			out[i].Status = wire.Duplicate
			var err error
			if out[i].State, out[i].Result, err = s.firstFate(q.Context(), p.ID); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// firstFate returns the state and result of the original message of a duplicate; the state is "" if
// it is not known any more.
func (s *Server) firstFate(ctx context.Context, id event.ID) (string, jsontext.Value, error) {
	state, result, err := s.fate(ctx, s.deps.State, id)
	if err != nil || state == event.StateNone {
		return "", nil, err
	}
	return state.String(), result, nil
}

const maxSourceID = 256

// importMessages answers POST /v1/queues/{queue}/messages/import.
func (s *Server) importMessages(q *request) error {
	name := q.read().queue()
	var body wire.ImportRequest
	q.body(&body)
	q.do(func() error { return batchSize("messages", len(body.Messages)) })
	b := get(q, func() (*batch, error) { return s.importBatch(body.Messages) })
	res := get(q, func() (event.Result, error) { return s.enqueue(q, name, b) })
	q.note(b, &res)
	out := wire.ImportResponse{Messages: make([]wire.Imported, len(res.Produced))}
	for i, p := range res.Produced {
		m := wire.Imported{ID: p.ID.String(), Status: wire.Enqueued}
		m.SourceID = body.Messages[i].SourceID
		if p.Duplicate {
			m.Status = wire.Duplicate
			out.Ignored++
		} else {
			out.Imported++
		}
		out.Messages[i] = m
	}
	return q.answer(createdOrOK(out.Imported > 0), &out)
}

// importBatch checks messages with source ids.
func (s *Server) importBatch(in []wire.ImportMessage) (*batch, error) {
	msgs := make([]wire.NewMessage, len(in))
	for i := range in {
		m := &in[i]
		switch n := len(m.SourceID); {
		case n < 1 || n > maxSourceID:
			return nil, bad("source_id", "source_id must have 1 to %d bytes, not %d",
				maxSourceID, n).At(i)
		case m.IdempotencyKey != "":
			return nil, bad("idempotency_key", "idempotency_key does not go with an import: "+
				"source_id identifies the message").At(i)
		}
		msgs[i] = m.NewMessage
	}
	b, err := s.newBatch(msgs, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := b.uncaused(); err != nil {
		return nil, err
	}
	b.imported = true
	for i := range in {
		b.msgs[i].SourceID = in[i].SourceID
		// No text begins with this byte, so no idempotency_key has the same hash.
		b.msgs[i].DedupKey = hash("\xffsource_id\x00", in[i].SourceID)
	}
	return b, nil
}
