package qlogdotel_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/client/qlogdotel"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// harness is a server, a client with a Propagator, and a tracer whose spans the test sees.
type harness struct {
	*testing.T
	*client.Client
	tracer trace.Tracer
	spans  *tracetest.SpanRecorder
}

func setup(t *testing.T, p qlogdotel.Propagator) *harness {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	c := cluster.Start(t, cluster.Options{}).Client(client.WithPropagator(p))
	t.Cleanup(c.Close)
	h := &harness{t, c, provider.Tracer("test"), spans}
	_, _, err := c.PutQueue(t.Context(), "q", wire.PolicyUpdate{})
	require.NoError(t, err)
	return h
}

// work runs a worker until it has handled n messages.
func (h *harness) work(n int, handle client.Handler) {
	h.Helper()
	ctx, stop := context.WithCancel(h.Context())
	var left sync.WaitGroup
	left.Add(n)
	go func() { left.Wait(); stop() }()
	require.NoError(h, client.NewWorker(h.Client, "q", func(ctx context.Context, m *client.Message) error {
		defer left.Done()
		return handle(ctx, m)
	}, client.WorkerOptions{
		Middleware: []client.Middleware{qlogdotel.Middleware(h.tracer)},
	}).Run(ctx))
}

// Each message has the span of its own producer, though Enqueue shares requests among them.
func TestHandlersContinueTheTrace(t *testing.T) {
	h := setup(t, qlogdotel.Propagator{})
	var mu sync.Mutex
	of := map[string]trace.SpanContext{} // the producer's, by message id
	produce := func(put func(ctx context.Context) (string, error)) {
		ctx, span := h.tracer.Start(h.Context(), "produce")
		defer span.End()
		id, err := put(ctx)
		mu.Lock()
		defer mu.Unlock()
		of[id] = span.SpanContext()
		if err != nil {
			t.Error(err)
		}
	}
	headers := map[string]string{"k": "v"}
	var producers sync.WaitGroup
	for i := range 20 {
		producers.Go(func() {
			produce(func(ctx context.Context) (string, error) {
				m := client.JSON(i)
				m.Headers = headers
				out, err := h.Enqueue(ctx, "q", m)
				return out.ID, err
			})
		})
	}
	producers.Wait()
	produce(func(ctx context.Context) (string, error) {
		out, err := h.Produce(ctx, "q", client.JSON(20))
		return out[0].ID, err
	})
	if len(headers) != 1 {
		t.Errorf("the caller's headers are %v", headers)
	}
	h.work(21, func(ctx context.Context, m *client.Message) error {
		span := trace.SpanFromContext(ctx).(sdktrace.ReadOnlySpan)
		mu.Lock()
		defer mu.Unlock()
		if got, want := span.Parent(), of[m.ID]; got.SpanID() != want.SpanID() ||
			got.TraceID() != want.TraceID() || !got.IsRemote() {
			t.Errorf("%s is handled under %v, and was produced under %v", m.ID, got, want)
		}
		return nil
	})
}

// What a handler returns, or panics with, is in its span; other propagators carry more.
func TestMiddleware(t *testing.T) {
	h := setup(t, qlogdotel.Propagator{TextMapPropagator: propagation.
		NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})})
	member, err := baggage.NewMember("tenant", "t1")
	require.NoError(t, err)
	carried, err := baggage.New(member)
	require.NoError(t, err)
	_, err = h.Enqueue(baggage.ContextWithBaggage(h.Context(), carried), "q", client.JSON(1))
	require.NoError(t, err)
	h.work(2, func(ctx context.Context, m *client.Message) error {
		if v := baggage.FromContext(ctx).Member("tenant").Value(); v != "t1" {
			t.Errorf("the baggage has %q", v)
		}
		if m.Attempt == 1 {
			return client.RetryAfter(0, errors.New("no"))
		}
		panic("broken")
	})
	ended := h.spans.Ended()
	if len(ended) != 2 {
		t.Fatalf("%d spans", len(ended))
	}
	for i, want := range []string{"no", "broken"} {
		s := ended[i]
		if s.Name() != "process q" || s.SpanKind() != trace.SpanKindConsumer ||
			len(s.Events()) != 1 || len(s.Attributes()) != 6 {
			t.Errorf("span %+v", s)
			continue
		}
		found := false
		for _, a := range s.Events()[0].Attributes {
			found = found || a.Value.AsString() == want
		}
		if !found {
			t.Errorf("event %+v lacks %q", s.Events()[0], want)
		}
	}
	if s := ended[0].Status(); s.Code != codes.Error || s.Description != "no" {
		t.Errorf("status %+v", s)
	}
}

// A message's own context goes before the caller's, and without either there is none.
func TestOwnContext(t *testing.T) {
	const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	h := setup(t, qlogdotel.Propagator{})
	ctx, span := h.tracer.Start(h.Context(), "produce")
	defer span.End()
	m := client.JSON(1)
	m.Headers = map[string]string{"traceparent": own}
	_, err := h.Enqueue(ctx, "q", m)
	require.NoError(t, err)
	_, err = h.Produce(ctx, "q", m)
	require.NoError(t, err)
	_, err = h.Enqueue(h.Context(), "q", client.JSON(2))
	require.NoError(t, err)
	leased, err := h.Lease(h.Context(), "q", client.LeaseOptions{})
	require.NoError(t, err)
	for i, want := range []string{own, own, ""} {
		if got := leased[i].Headers["traceparent"]; got != want {
			t.Errorf("message %d has %q, not %q", i, got, want)
		}
	}
}
