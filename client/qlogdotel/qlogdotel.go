// Package qlogdotel connects qlogd's Go client with OpenTelemetry: a message's handler continues
// the trace in which the message was produced, and the server's spans are parts of it.
package qlogdotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/qlogd/qlogd/client"
)

// Propagator is a client.Propagator. The zero value carries W3C Trace Context, which is what the
// server reads. To carry more, such as baggage, give it a propagator that includes that:
//
//	propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
//
// What else is in the headers of an Enqueue goes with its message.
type Propagator struct {
	propagation.TextMapPropagator // nil: propagation.TraceContext
}

var _ client.Propagator = Propagator{}

// Inject implements client.Propagator.
func (p Propagator) Inject(ctx context.Context, headers map[string]string) {
	p.propagator().Inject(ctx, propagation.MapCarrier(headers))
}

// Extract implements client.Propagator.
func (p Propagator) Extract(ctx context.Context, headers map[string]string) context.Context {
	return p.propagator().Extract(ctx, propagation.MapCarrier(headers))
}

func (p Propagator) propagator() propagation.TextMapPropagator {
	if p.TextMapPropagator == nil {
		return propagation.TraceContext{}
	}
	return p.TextMapPropagator
}

// Middleware runs each handler of a worker in a span "process QUEUE", the child of the one that
// produced the message if the worker's client has a Propagator.
func Middleware(tracer trace.Tracer) client.Middleware {
	return func(next client.Handler) client.Handler {
		return func(ctx context.Context, m *client.Message) error {
			ctx, span := tracer.Start(ctx, "process "+m.Queue,
				trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
					semconv.MessagingSystemKey.String("qlogd"),
					semconv.MessagingOperationName("process"),
					semconv.MessagingOperationTypeProcess,
					semconv.MessagingDestinationName(m.Queue),
					semconv.MessagingMessageID(m.ID),
					attribute.Int64("qlogd.attempt", m.Attempt),
				))
			defer span.End() // which records a panic
			err := next(ctx, m)
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			return err
		}
	}
}
