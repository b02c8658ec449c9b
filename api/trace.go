package api

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/qlogd/qlogd/event"
)

// Spans of messaging calls (docs/reference/tracing.md). Without Deps.Tracer nothing here runs but
// sender.

// The types of messaging operations, with which the names of their spans begin.
const (
	opSend    = "send"
	opReceive = "receive"
	opSettle  = "settle"
)

// Limits of the trace context that is kept with messages. W3C requires 512 bytes of tracestate.
// They do not count towards other limits, so a longer one is dropped.
const (
	maxTraceparent = 128
	maxTracestate  = 512
)

// sender returns the span in the request's headers, and its trace context as message headers; none
// if they are missing or invalid. A traceparent with an invalid tracestate is valid.
func (q *request) sender() (from trace.SpanContext, headers []event.Header) {
	parent := q.Header["Traceparent"]
	if len(parent) != 1 || !visible(parent[0], maxTraceparent) {
		return from, nil
	}
	state := strings.Join(q.Header["Tracestate"], ",")
	if len(state) > maxTracestate {
		state = ""
	}
	from = spanOf(map[string]string{event.Traceparent: parent[0], event.Tracestate: state})
	if !from.IsValid() {
		return from, nil
	}
	headers = []event.Header{{Name: event.Traceparent, Value: parent[0]}}
	if from.TraceState().Len() > 0 {
		headers = append(headers, event.Header{Name: event.Tracestate, Value: state})
	}
	return from, headers
}

// spanOf returns the span in headers, an invalid one if there is none.
func spanOf(headers map[string]string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(),
		propagation.MapCarrier(headers))
	return trace.SpanContextFromContext(ctx)
}

// traceContext returns the trace context for the messages that the request produces: the sender's
// or, if it has none, that of the request's own span.
func (q *request) traceContext() []event.Header {
	if _, headers := q.sender(); headers != nil {
		return headers
	}
	return q.ownTrace()
}

// ownTrace returns the trace context of the request's span, nil if it has none.
func (q *request) ownTrace() (headers []event.Header) {
	if q.span == nil || !q.span.SpanContext().IsSampled() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(q.Context(), carrier)
	for _, name := range [...]string{event.Traceparent, event.Tracestate} {
		if v := carrier[name]; v != "" {
			headers = append(headers, event.Header{Name: name, Value: v})
		}
	}
	return headers
}

// traced wraps a messaging call in a span, the child of its sender's.
func (s *Server) traced(operation, name string, h handler) handler {
	if s.deps.Tracer == nil {
		return h
	}
	return func(q *request) error {
		ctx := q.Context()
		if from, _ := q.sender(); from.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, from)
		}
		q.begin(ctx, operation, name, q.PathValue("queue"))
		err := errors.New("panic") // unless h returns
		defer func() { q.end(err) }()
		err = h(q)
		return err
	}
}

// begin starts the request's span, unless it is not sampled.
func (q *request) begin(
	ctx context.Context, operation, name, queue string, more ...trace.SpanStartOption,
) {
	attributes := []attribute.KeyValue{
		semconv.MessagingSystemKey.String("qlogd"), semconv.MessagingOperationName(name),
		semconv.MessagingOperationTypeKey.String(operation),
	}
	title := operation
	if event.ValidName(queue) {
		title += " " + queue
		attributes = append(attributes, semconv.MessagingDestinationName(queue))
	}
	ctx, span := q.s.deps.Tracer.Start(ctx, title, append(more,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))...)
	if span.IsRecording() {
		q.span, q.Request = span, q.Request.WithContext(ctx)
	}
}

// end ends the request's span, if it has one. An empty lease leaves no span: waiting workers would
// otherwise fill the traces.
func (q *request) end(err error) {
	if q.span == nil || q.idle && (err == nil || q.Context().Err() != nil) {
		return
	}
	failed(q.span, err)
	if q.replayed {
		q.span.SetAttributes(attribute.Bool("qlogd.idempotent_replayed", true))
	}
	q.span.End()
}

// failed records an error, nil for none, in a span.
func failed(span trace.Span, err error) {
	if err == nil {
		return
	}
	code := "internal"
	if p, ok := errors.AsType[*event.Problem](err); ok {
		code = p.Code
	} else if errors.Is(err, context.Canceled) {
		code = "client_gone"
	}
	span.SetStatus(codes.Error, code)
	span.SetAttributes(semconv.ErrorTypeKey.String(code))
}

// link links the request's span, if it has one, to the span in a message's headers.
func (q *request) link(headers map[string]string, more ...attribute.KeyValue) {
	if q.span == nil || headers[event.Traceparent] == "" {
		return
	}
	if from := spanOf(headers); from.IsValid() {
		q.span.AddLink(trace.Link{SpanContext: from, Attributes: more})
	}
}

// note records the outcome of a call in the request's span, if it has one: that of its settles or,
// without any, that of its messages, the first of which are in b.
func (q *request) note(b *batch, res *event.Result) {
	if q.span == nil || q.err != nil {
		return
	}
	n, special, what := len(res.Settled), 0, "qlogd.rejected"
	for i := range res.Settled {
		if res.Settled[i].Status == event.StatusRejected {
			special++
		}
	}
	if n == 0 {
		n, what = len(res.Produced), "qlogd.duplicates"
		for i := range res.Produced {
			if res.Produced[i].Duplicate {
				special++
			}
		}
		if n == 1 {
			m := &b.msgs[0]
			q.span.SetAttributes(semconv.MessagingMessageID(res.Produced[0].ID.String()),
				semconv.MessagingMessageBodySize(int(m.Size)))
			if m.CorrelationID != "" {
				q.span.SetAttributes(semconv.MessagingMessageConversationID(m.CorrelationID))
			}
		}
	}
	q.span.SetAttributes(semconv.MessagingBatchMessageCount(n))
	if special > 0 {
		q.span.SetAttributes(attribute.Int(what, special))
	}
}

// noteLeased records leased messages in the request's span, if it has one, and links it to the
// spans that produced them.
func (q *request) noteLeased(worker string, leased *leaseAnswer) {
	if q.span == nil {
		return
	}
	messages := leased.Messages
	q.span.SetAttributes(semconv.MessagingBatchMessageCount(len(messages)))
	if worker != "" {
		q.span.SetAttributes(semconv.MessagingClientID(worker))
	}
	if len(messages) == 1 {
		q.span.SetAttributes(semconv.MessagingMessageID(messages[0].ID),
			semconv.MessagingDestinationName(messages[0].Queue))
	}
	for i := range messages {
		q.link(messages[i].Headers, semconv.MessagingMessageID(messages[i].ID))
	}
}

// hooked starts the span of a verified webhook, in a new trace: the sender is external and must not
// decide what is recorded here.
func (q *request) hooked(queue string, at time.Time) {
	if q.s.deps.Tracer == nil {
		return
	}
	more := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithTimestamp(at)}
	if from, _ := q.sender(); from.IsValid() {
		more = append(more, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	q.begin(q.Context(), opSend, opSend, queue, more...)
}

// commitSpan starts the span of a proposal, nil if the request is not traced.
func (s *Server) commitSpan(ctx context.Context) (context.Context, trace.Span) {
	if s.deps.Tracer == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	return s.deps.Tracer.Start(ctx, "commit")
}

// endCommit ends the span of a proposal. As in end, an empty lease leaves no span.
func endCommit(span trace.Span, c *event.Command, res *event.Result, err error) {
	if c.Lease != nil && err == nil && len(res.Leased) == 0 {
		return
	}
	failed(span, err)
	if res.Index > 0 {
		span.SetAttributes(attribute.Int64("qlogd.index", int64(res.Index)))
	}
	span.End()
}
