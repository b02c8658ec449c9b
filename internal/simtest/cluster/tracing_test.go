package cluster_test

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// receiver takes spans by OTLP over HTTP, as a collector does.
type receiver struct {
	*httptest.Server
	t *testing.T

	mu    sync.Mutex
	spans []span
}

// span is a span with what it was sent with.
type span struct {
	*tracepb.Span
	resource map[string]string
	token    string // of the request's header
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if !fine(r.t, err) {
			return
		}
		body = unpacked
	}
	b, err := io.ReadAll(body)
	in := &collector.ExportTraceServiceRequest{}
	if !fine(r.t, err) || !fine(r.t, proto.Unmarshal(b, in)) {
		return
	}
	assert.Equal(r.t, q.URL.Path, "/v1/traces")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range in.ResourceSpans {
		about := values(of.Resource.Attributes)
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, span{s, about, q.Header.Get("X-Token")})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func fine(t *testing.T, err error) bool {
	assert.NoError(t, err)
	return err == nil
}

// values are attributes as text.
func values(of []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range of {
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			out[kv.Key] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_BoolValue:
			out[kv.Key] = fmt.Sprint(v.BoolValue)
		}
	}
	return out
}

// context returns a span's trace context, as traceparent has it.
func (s span) context() string {
	return "00-" + hex.EncodeToString(s.TraceId) + "-" + hex.EncodeToString(s.SpanId) + "-01"
}

// parent returns the trace context of a span's parent, "" of a root.
func (s span) parent() string {
	if len(s.ParentSpanId) == 0 {
		return ""
	}
	return "00-" + hex.EncodeToString(s.TraceId) + "-" + hex.EncodeToString(s.ParentSpanId) + "-01"
}

func (s span) links() (out []string) {
	for _, l := range s.Links {
		out = append(out, span{Span: &tracepb.Span{TraceId: l.TraceId, SpanId: l.SpanId}}.context())
	}
	return out
}

// find returns the spans of a name and, unless it is "", with this value of an attribute.
func (r *receiver) find(name, attribute, value string) (out []span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.Name == name && (attribute == "" || values(s.Attributes)[attribute] == value) {
			out = append(out, s)
		}
	}
	return out
}

// one returns the only such span.
func (r *receiver) one(name, attribute, value string) span {
	r.t.Helper()
	found := r.find(name, attribute, value)
	require.Equal(r.t, len(found), 1, "spans %s with %s=%s", name, attribute, value)
	return found[0]
}

// committed checks that a span has one child, of the commit.
func (r *receiver) committed(s span) {
	r.t.Helper()
	n := 0
	for _, c := range r.find("commit", "", "") {
		if c.parent() == s.context() {
			n++
			assert.NotEqual(r.t, values(c.Attributes)["qlogd.index"], "")
			assert.Equal(r.t, c.Kind, tracepb.Span_SPAN_KIND_INTERNAL)
		}
	}
	assert.Equal(r.t, n, 1, "commits in %s", s.Name)
}

// traced calls a node with a trace context, and decodes the answer into out.
func traced(t *testing.T, n *cluster.Node, context, path, body string, out any) {
	t.Helper()
	h := http.Header{"Content-Type": {"application/json"}}
	if context != "" {
		h.Set("Traceparent", context)
	}
	res, b, err := n.Client().Raw(t.Context(), "POST", path, h, []byte(body))
	require.NoError(t, err)
	require.Equal(t, res.StatusCode/100, 2, "%s: %s", path, b)
	if out != nil {
		require.NoError(t, wire.Unmarshal(b, out))
	}
}

// caller returns the trace context of the i-th caller of a test.
func caller(i int) string {
	return fmt.Sprintf("00-%032x-%016x-01", 0xabc00+i, 0xdef00+i)
}

// export are the variables of nodes that export their spans, to r and only as they stop.
func export(r *receiver, more ...string) []string {
	return append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL,
		"OTEL_EXPORTER_OTLP_HEADERS=x-token=secret", "OTEL_BSP_SCHEDULE_DELAY=3600000",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"}, more...)
}

// TestTracing: spans of calls to each node of a cluster, two of which forward their writes, reach a
// collector, at the latest when the node stops.
func TestTracing(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Env: export(r,
		"OTEL_EXPORTER_OTLP_COMPRESSION=gzip")})
	for i := range c.Nodes() {
		queue(t, c.Client(), fmt.Sprint("q", i), "")
	}
	ids, leases := make([]string, 3), make([]wire.LeasedMessage, 3)
	for i, n := range c.Nodes() {
		q, other := fmt.Sprint("/v1/queues/q", i), c.Node((i+1)%3)
		var put wire.ProduceResponse
		traced(t, n, caller(i), q+"/messages", `{"payload":1,"correlation_id":"c"}`, &put)
		ids[i] = put.Messages[0].ID
		var got wire.LeaseResponse
		traced(t, other, caller(10+i), q+"/lease", `{"worker":"w"}`, &got)
		leases[i] = got.Messages[0]
		assert.DeepEqual(t, leases[i].Headers, map[string]string{"traceparent": caller(i)})
		traced(t, n, "", q+"/lease", ``, &got) // it finds nothing
		traced(t, n, caller(20+i), q+"/ack", `{"lease_ids":["`+leases[i].LeaseID+`"]}`, nil)
	}
	c.TermAll()

	for i, n := range c.Nodes() {
		name, other := fmt.Sprint("q", i), c.Node((i+1)%3).Name()
		send := r.one("send "+name, "", "")
		assert.Equal(t, send.parent(), caller(i))
		assert.Equal(t, send.Kind, tracepb.Span_SPAN_KIND_SERVER)
		assert.DeepEqual(t, values(send.Attributes), map[string]string{
			"messaging.system": "qlogd", "messaging.operation.name": "send",
			"messaging.operation.type": "send", "messaging.destination.name": name,
			"messaging.batch.message_count": "1", "messaging.message.id": ids[i],
			"messaging.message.body.size": "1", "messaging.message.conversation_id": "c"})
		assert.Equal(t, send.resource["service.name"], "qlogd")
		assert.Equal(t, send.resource["service.instance.id"], n.Name())
		assert.Equal(t, send.resource["deployment.environment.name"], "test")
		assert.Equal(t, send.token, "secret")
		r.committed(send)

		receive := r.one("receive "+name, "", "")
		assert.Equal(t, receive.parent(), caller(10+i))
		assert.EqualSlices(t, receive.links(), []string{caller(i)})
		assert.Equal(t, receive.resource["service.instance.id"], other)
		assert.DeepEqual(t, values(receive.Attributes), map[string]string{
			"messaging.system": "qlogd", "messaging.operation.name": "receive",
			"messaging.operation.type": "receive", "messaging.destination.name": name,
			"messaging.batch.message_count": "1", "messaging.message.id": ids[i],
			"messaging.client.id": "w"})
		r.committed(receive)

		settle := r.one("settle "+name, "", "")
		assert.Equal(t, settle.parent(), caller(20+i))
		assert.DeepEqual(t, values(settle.Attributes), map[string]string{
			"messaging.system": "qlogd", "messaging.operation.name": "ack",
			"messaging.operation.type": "settle", "messaging.destination.name": name,
			"messaging.batch.message_count": "1"})
		r.committed(settle)
	}
}

// TestTracingWithoutSender: what comes without a trace begins one, which the message has; so does
// a webhook whatever its sender says. What the sender does not sample is not exported.
func TestTracingWithoutSender(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	n := cluster.Start(t, cluster.Options{Env: export(r, "OTEL_SERVICE_NAME=jobs")})
	cl := n.Client()
	for _, q := range []string{"a", "b", "hooks", "old", "unsampled"} {
		queue(t, cl, q, "")
	}
	_, _, err := cl.PutWebhook(t.Context(), "w", wire.WebhookDefinition{Queue: "hooks"})
	require.NoError(t, err)
	traced(t, n, "", "/v1/queues/a/messages", `{"payload":1}`, nil)
	traced(t, n, "00-bad", "/v1/transactions",
		`{"produce":[{"queue":"b","messages":[{"payload":1}]}]}`, nil)
	traced(t, n, caller(1), "/hook/w", `{}`, nil)
	// A message with a trace of its own keeps it, and the call is linked to it.
	traced(t, n, "", "/v1/queues/old/messages",
		`{"payload":1,"headers":{"traceparent":"`+caller(2)+`"}}`, nil)
	traced(t, n, strings.TrimSuffix(caller(3), "01")+"00", "/v1/queues/unsampled/messages",
		`{"payload":1}`, nil)
	res, _, err := cl.Raw(t.Context(), "POST", "/v1/queues/none/messages",
		http.Header{"Content-Type": {"application/json"}}, []byte(`{"payload":1}`))
	require.NoError(t, err)
	assert.Equal(t, res.StatusCode, 404)
	var got wire.LeaseResponse
	traced(t, n, "", "/v1/lease", `{"queues":["a","b","hooks","old"]}`, &got)
	n.Term()

	of := map[string]string{}
	for _, m := range got.Messages {
		of[m.Queue] = m.Headers["traceparent"]
	}
	produced := r.one("send", "", "")
	assert.Equal(t, values(produced.Attributes)["messaging.operation.name"], "transaction")
	assert.Equal(t, values(produced.Attributes)["messaging.operation.type"], "send")
	hook := r.one("send hooks", "", "")
	assert.Equal(t, hook.parent(), "")
	assert.NotEqual(t, hook.context()[:35], caller(1)[:35], "a new trace")
	assert.EqualSlices(t, hook.links(), []string{caller(1)})
	r.committed(hook)
	old := r.one("send old", "", "")
	assert.EqualSlices(t, old.links(), []string{caller(2)})
	assert.DeepEqual(t, of, map[string]string{"a": r.one("send a", "", "").context(),
		"b": produced.context(), "hooks": hook.context(), "old": caller(2)})
	assert.Equal(t, len(r.find("send unsampled", "", "")), 0)
	receive := r.one("receive", "", "")
	assert.Equal(t, len(receive.Links), 4)
	assert.Equal(t, receive.resource["service.name"], "jobs")

	refused := r.one("send none", "error.type", "queue_not_found")
	assert.Equal(t, refused.Status.Code, tracepb.Status_STATUS_CODE_ERROR)
}

// TestTracingOff: nothing is exported where the environment says so, and a mistake in it is one of
// usage.
func TestTracingOff(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	for _, off := range []string{"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none",
		"OTEL_TRACES_SAMPLER=always_off"} {
		n := cluster.Start(t, cluster.Options{Env: export(r, off)})
		queue(t, n.Client(), "q", "")
		some(t, n.Client(), 1)
		traced(t, n, caller(1), "/v1/queues/q/messages", `{"payload":1}`, nil)
		got, err := n.Client().Lease(t.Context(), "q", client.LeaseOptions{})
		require.NoError(t, err)
		assert.Equal(t, len(got[0].Headers), 0)
		assert.Equal(t, got[1].Headers["traceparent"], caller(1))
		n.Term()
	}
	r.mu.Lock()
	assert.Equal(t, len(r.spans), 0)
	r.mu.Unlock()

	for _, wrong := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=localhost:4317",
		"OTEL_EXPORTER_OTLP_PROTOCOL=thrift", "OTEL_TRACES_EXPORTER=zipkin"} {
		n := cluster.NewCluster(t, cluster.Options{Nodes: 1, Env: export(r, wrong)}).Node(0)
		n.Launch()
		ended(t, n)
		name, _, _ := strings.Cut(wrong, "=")
		assert.Contains(t, n.Log(), name+" must be ")
	}
}

// TestTracingCollectorHangs: a collector that does not answer delays neither writes nor the end.
func TestTracingCollectorHangs(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		<-block
	}))
	t.Cleanup(hung.Close)
	t.Cleanup(func() { close(block) })
	n := cluster.Start(t, cluster.Options{Env: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + hung.URL, "OTEL_BSP_MAX_QUEUE_SIZE=8",
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4",
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", // which is often set for all programs of a machine
	}})
	queue(t, n.Client(), "q", "")
	some(t, n.Client(), 50)
	n.Term()
	assert.Contains(t, n.Log(), "over HTTP, not gRPC")
	assert.Contains(t, n.Log(), "the last spans were not exported")
}
