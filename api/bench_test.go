package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// still is a state, log and proposer that take no time: what is measured is HTTP.
type still struct {
	*fake
	view    event.QueueView
	content *event.Content
}

func (s *still) Queue(string) (event.QueueView, bool) { return s.view, true }
func (s *still) Leasable(string, []string) int        { return 1000 }

func (s *still) Propose(_ context.Context, c *event.Command) (event.Result, error) {
	res := event.Result{Index: 7}
	switch {
	case c.Produce != nil:
		res.Produced = make([]event.Produced, len(c.Produce.Messages))
		for i := range res.Produced {
			res.Produced[i].ID = event.NewID(1_700_000_000_000, 7, uint32(i))
		}
	case c.Lease != nil:
		res.Leased = make([]event.LeasedMessage, c.Lease.Max)
		for i := range res.Leased {
			res.Leased[i] = event.LeasedMessage{MaxAttempts: 5, MessageView: event.MessageView{
				ID: event.NewID(1_700_000_000_000, 7, uint32(i)), Lease: event.NewID(1_700_000_000_000, 8, uint32(i)), Queue: "q", Attempt: 1, Priority: 5,
				Size: 1024, EnqueuedAt: 1_700_000_000_000, LeaseExpiresAt: 1_700_000_030_000, Content: event.RefOf(event.NewID(1, 7, uint32(i)))}}
		}
	case c.Settle != nil:
		res.Settled = make([]event.Settled, len(c.Settle.Items))
		for i := range res.Settled {
			res.Settled[i] = event.Settled{Lease: c.Settle.Items[i].Lease, Status: event.StatusAcked}
		}
	}
	return res, nil
}

func (s *still) Contents(refs []event.Ref) ([]*event.Content, error) {
	out := make([]*event.Content, len(refs))
	for i := range out {
		out[i] = s.content
	}
	return out, nil
}

func benchServer(b testing.TB) (*Server, []byte) {
	payload := make([]byte, 1024)
	_, _ = rand.Read(payload)
	f := &still{fake: newFake(), view: event.QueueView{Name: "q", Revision: 1}, content: &event.Content{Payload: payload, Binary: true}}
	s := New(Deps{Proposer: f, Barrier: f, State: f, Log: f, Past: f, Ready: f, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}, Options{})
	b.Cleanup(s.Close)
	return s, payload
}

// nowhere is a ResponseWriter that costs nothing.
type nowhere struct {
	head   http.Header
	status int
	n      int
}

func (w *nowhere) Header() http.Header               { return w.head }
func (w *nowhere) WriteHeader(status int)            { w.status = status }
func (w *nowhere) Write(b []byte) (int, error)       { w.n += len(b); return len(b), nil }
func (w *nowhere) SetReadDeadline(t time.Time) error { return nil }

// benchBodies are requests as clients of the hot calls send them.
func benchBodies(tb testing.TB, payload []byte) []benchBody {
	text := []byte(`"` + string(bytes.Repeat([]byte("lorem ipsum "), 85)) + `"`)
	var bytesBatch, jsonBatch wire.ProduceRequest
	ack := wire.AckRequest{}
	for i := range 100 {
		bytesBatch.Messages = append(bytesBatch.Messages, wire.NewMessage{PayloadBytes: payload})
		jsonBatch.Messages = append(jsonBatch.Messages, wire.NewMessage{Payload: append(append([]byte(`{"id":`+strconv.Itoa(i)+`,"text":`), text...), '}')})
		ack.LeaseIDs = append(ack.LeaseIDs, event.NewID(1_700_000_000_000, 8, uint32(i)).String())
	}
	hundred := int64(100)
	lease := wire.LeaseRequest{MaxMessages: &hundred}
	both := func(name, path string, n int, v any) []benchBody {
		j, err := wire.Marshal(v)
		if err != nil {
			tb.Fatal(err)
		}
		m, err := wire.AppendMsgpack(nil, v)
		if err != nil {
			tb.Fatal(err)
		}
		return []benchBody{{name + "/json", path, n, j, http.Header{"Content-Type": {typeJSON}}},
			{name + "/msgpack", path, n, m, http.Header{"Content-Type": {typeMsgpack}, "Accept": {wire.AcceptMsgpack}}}}
	}
	out := both("bytes100", "/v1/queues/q/messages", 100, &bytesBatch)
	out = append(out, both("json100", "/v1/queues/q/messages", 100, &jsonBatch)...)
	out = append(out, both("lease100", "/v1/queues/q/lease", 100, &lease)...)
	out = append(out, both("ack100", "/v1/queues/q/ack", 100, &ack)...)
	out = append(out, both("bytes1", "/v1/queues/q/messages", 1, &wire.ProduceRequest{Messages: bytesBatch.Messages[:1]})...)
	return append(out, benchBody{"raw1", "/v1/queues/q/messages", 1, payload, http.Header{"Content-Type": {"application/octet-stream"}}})
}

type benchBody struct {
	name, path string
	n          int // messages
	body       []byte
	head       http.Header
}

// BenchmarkHandler is what the API costs a message without net/http, Raft and
// the rest.
func BenchmarkHandler(b *testing.B) {
	s, payload := benchServer(b)
	h := s.Handler()
	for _, c := range benchBodies(b, payload) {
		for _, key := range []string{"", "key"} {
			name := c.name
			if key != "" {
				if c.path == "/v1/queues/q/lease" {
					continue
				}
				name += "/" + key
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				r, _ := http.NewRequest("POST", c.path, nil)
				r.Header = c.head.Clone()
				r.Header.Set("User-Agent", "bench")
				if key != "" {
					r.Header.Set("Idempotency-Key", "0123456789abcdef")
				}
				r.ContentLength = int64(len(c.body))
				body := bytes.NewReader(nil)
				w := &nowhere{}
				for b.Loop() {
					body.Reset(c.body)
					r.Body = io.NopCloser(body)
					w.head, w.status = http.Header{}, 0
					h.ServeHTTP(w, r)
				}
				if w.status/100 != 2 {
					b.Fatal(w.status)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.n), "ns/msg")
			})
		}
	}
}

// BenchmarkConnection is one request after the other on a kept connection, beside
// a handler that reads the body and answers the same number of bytes.
func BenchmarkConnection(b *testing.B) {
	s, payload := benchServer(b)
	bodies := benchBodies(b, payload)
	raw := bodies[len(bodies)-1]
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "66")
		w.WriteHeader(201)
		_, _ = w.Write(payload[:66])
	})
	for _, c := range []struct {
		name string
		h    http.Handler
	}{{"bare", bare}, {"raw1", s.Handler()}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			srv := HTTPServer(c.h, Options{}, slog.New(slog.DiscardHandler))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go func() { _ = srv.Serve(Limit(l, 0, 0)) }()
			defer func() { _ = srv.Close() }()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			req := []byte("POST " + raw.path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: " + strconv.Itoa(len(raw.body)) + "\r\n\r\n")
			req = append(req, raw.body...)
			buf := make([]byte, 4096)
			for b.Loop() {
				if _, err := conn.Write(req); err != nil {
					b.Fatal(err)
				}
				n, err := conn.Read(buf)
				if err != nil || !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 201")) {
					b.Fatalf("%v %s", err, buf[:n])
				}
			}
		})
	}
}
