package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// flushTime bounds how long a node that stops waits for its last spans to be exported.
const flushTime = 2 * time.Second

// otlpEndpoint returns where OpenTelemetry's standard variables say that spans are exported to, nil
// for nowhere. The SDK reads the others itself. It would pass over a mistake in these ones, so that
// spans are missing and nobody knows why.
func otlpEndpoint(getenv func(string) string) (*url.URL, error) {
	exporter := getenv("OTEL_TRACES_EXPORTER")
	name, v := otlpVariable(getenv, "ENDPOINT")
	if v == "" || exporter == "none" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	if exporter != "" && exporter != "otlp" {
		return nil, settingsf("OTEL_TRACES_EXPORTER must be otlp or none, not %.64q", exporter)
	}
	endpoint, err := url.Parse(v)
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" ||
		endpoint.Host == "" {
		return nil, settingsf("%s must be http://HOST:PORT or https://HOST:PORT, not %.64q", name, v)
	}
	name, v = otlpVariable(getenv, "PROTOCOL")
	if v != "" && v != "http/protobuf" && v != "http/json" && v != grpc {
		return nil, settingsf("%s must be http/protobuf or http/json, not %.64q; collectors take "+
			"OTLP over HTTP at port 4318", name, v)
	}
	return endpoint, nil
}

// grpc is a protocol that is not there, and often set for all programs of a machine.
const grpc = "grpc"

// otlpVariable returns a variable of the exporter and its value. One for traces alone goes first.
func otlpVariable(getenv func(string) string, what string) (name, v string) {
	name = "OTEL_EXPORTER_OTLP_TRACES_" + what
	if v = getenv(name); v == "" {
		name = "OTEL_EXPORTER_OTLP_" + what
		v = getenv(name)
	}
	return name, v
}

// startTracing sets the node's tracer, unless endpoint is nil.
func (n *Node) startTracing(endpoint *url.URL) error {
	if endpoint == nil {
		return nil
	}
	if name, v := otlpVariable(n.c.Getenv, "PROTOCOL"); v == grpc {
		n.logger.Warn("spans are exported by OTLP over HTTP, not gRPC; collectors take it at port 4318",
			"variable", name, "endpoint", endpoint.Redacted())
	}
	otel.SetErrorHandler(rareErrors(n.logger))
	ctx := n.background
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	// What the environment says of the service goes before what the program knows.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		semconv.ServiceName("qlogd"), semconv.ServiceVersion(n.c.Version),
		semconv.ServiceInstanceID(n.card.NodeID),
	), resource.WithFromEnv())
	if err != nil {
		return settingsf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), // it drops spans where the collector is too slow
		sdktrace.WithResource(about),
	)
	n.tracer = provider.Tracer("github.com/qlogd/qlogd",
		trace.WithInstrumentationVersion(n.c.Version), trace.WithSchemaURL(semconv.SchemaURL))
	n.closing(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, flushTime)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			n.logger.Warn("the last spans were not exported", "error", err)
		}
		return nil
	})
	n.logger.Info("exporting spans", "endpoint", endpoint.Redacted())
	return nil
}

// errorEvery is how often a failing export is logged.
const errorEvery = time.Minute

// rareErrors logs OpenTelemetry's errors: a collector that is away must not fill the log.
func rareErrors(logger *slog.Logger) otel.ErrorHandler {
	limit := rate.Sometimes{First: 1, Interval: errorEvery}
	return otel.ErrorHandlerFunc(func(err error) {
		limit.Do(func() {
			logger.Warn("spans were not exported", "error", err, "logged_every", errorEvery)
		})
	})
}
