package qlogdotel_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"go.opentelemetry.io/otel"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/client/qlogdotel"
)

// A producer and a worker, usually in two programs, whose spans are in one trace. The programs set
// up OpenTelemetry's SDK as always.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.New("http://127.0.0.1:7070", client.WithPropagator(qlogdotel.Propagator{}))
	if err != nil {
		log.Fatal(err)
	}
	tracer := otel.Tracer("shop")

	produceCtx, span := tracer.Start(ctx, "place order")
	_, err = c.Enqueue(produceCtx, "orders", client.JSON(map[string]int{"order": 17}))
	span.End()
	if err != nil {
		log.Fatal(err)
	}

	worker := client.NewWorker(c, "orders", func(ctx context.Context, m *client.Message) error {
		_, span := tracer.Start(ctx, "charge card") // in the trace of "place order"
		defer span.End()
		return nil
	}, client.WorkerOptions{
		Middleware: []client.Middleware{qlogdotel.Middleware(tracer)},
	})
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
