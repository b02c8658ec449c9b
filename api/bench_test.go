package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// still is a node, state and log that take no time.
type still struct {
	*fakeNode
	*fake
	content *event.Content
}

func (s *still) Queue(name string) (event.QueueView, bool) {
	return event.QueueView{Name: name, Revision: 1}, true
}

func (s *still) Barrier(context.Context) error { return nil }
func (s *still) Leasable(string, []string) int { return 1000 }
func (s *still) Clock() int64                  { return 1_700_000_000_000 }

func (s *still) Propose(_ context.Context, c *event.Command) (event.Result, error) {
	res, id := event.Result{Index: 7}, func(i int) event.ID {
		return event.NewID(1_700_000_000_000, 7, uint32(i))
	}
	switch {
	case c.Produce != nil:
		res.Produced = make([]event.Produced, len(c.Produce.Messages))
		for i := range res.Produced {
			res.Produced[i].ID = id(i)
		}
	case c.Lease != nil:
		res.Leased = make([]event.LeasedMessage, c.Lease.Max)
		for i := range res.Leased {
			res.Leased[i] = event.LeasedMessage{MaxAttempts: 5, MessageView: event.MessageView{
				ID: id(i), Lease: id(i + 1000), Queue: "q", Attempt: 1, Priority: 5, Size: 1024,
				EnqueuedAt: 1_700_000_000_000, LeaseExpiresAt: 1_700_000_030_000,
				Content: event.RefOf(id(i)),
			}}
		}
	case c.Settle != nil:
		res.Settled = make([]event.Settled, len(c.Settle.Items))
		for i := range res.Settled {
			res.Settled[i] = event.Settled{Lease: c.Settle.Items[i].Lease, Status: event.StatusAcked}
		}
	}
	return res, nil
}

// nowhere is a ResponseWriter that costs nothing.
type nowhere struct {
	head   http.Header
	status int
}

func (w *nowhere) Header() http.Header             { return w.head }
func (w *nowhere) WriteHeader(status int)          { w.status = status }
func (w *nowhere) Write(b []byte) (int, error)     { return len(b), nil }
func (w *nowhere) SetReadDeadline(time.Time) error { return nil }

// BenchmarkHandler is what the API costs without net/http, Raft, the state and the log.
func BenchmarkHandler(b *testing.B) {
	h := build()
	defer h.close()
	payload := bytes.Repeat([]byte{1, 200, 3, 77}, 256)
	text := fmt.Appendf(nil, `{"id":5,"text":%q}`, bytes.Repeat([]byte("lorem ipsum "), 84))
	st := &still{h.node, h.fake, &event.Content{Payload: payload, Binary: true}}
	h.s.deps.Node, h.s.deps.State, h.s.deps.Log = st, st, fakeReads{h.log, st}
	h.s.waiters = newWaiters(st.Leasable)
	for _, n := range []int{1, 100} {
		var binary, texts wire.ProduceRequest
		var ack wire.AckRequest
		packedBinary, packedTexts := map[string]any{}, map[string]any{}
		for i := range n {
			binary.Messages = append(binary.Messages, wire.NewMessage{PayloadBytes: payload})
			texts.Messages = append(texts.Messages, wire.NewMessage{Payload: text, Key: "k"})
			ack.LeaseIDs = append(ack.LeaseIDs, event.NewID(1_700_000_000_000, 8, uint32(i)).String())
		}
		list := func(m map[string]any) (out []any) {
			for range n {
				out = append(out, m)
			}
			return out
		}
		packedBinary["messages"] = list(map[string]any{"payload_base64": payload})
		packedTexts["messages"] = list(map[string]any{"key": "k",
			"payload": map[string]any{"id": 5, "text": string(bytes.Repeat([]byte("lorem ipsum "), 84))}})
		for _, c := range []struct {
			name, call string
			json, pack any
		}{
			{"bytes", "messages", &binary, packedBinary},
			{"text", "messages", &texts, packedTexts},
			{"lease", "lease", wire.LeaseRequest{MaxMessages: new(int64(n))}, map[string]any{"max_messages": n}},
			{"ack", "ack", ack, map[string]any{"lease_ids": ack.LeaseIDs}},
		} {
			for _, media := range []string{typeJSON, typeMsgpack} {
				body, err := wire.Marshal(c.json)
				if media == typeMsgpack {
					body, err = msgpack.Marshal(c.pack)
				}
				if err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("%s%d/%s", c.name, n, media[12:]), func(b *testing.B) {
					b.ReportAllocs()
					r, _ := http.NewRequest("POST", "/v1/queues/q/"+c.call, nil)
					r.Header = http.Header{"Content-Type": {media}, "Accept": {media}}
					r.ContentLength = int64(len(body))
					for b.Loop() {
						r.Body = io.NopCloser(bytes.NewReader(body))
						w := &nowhere{head: http.Header{}}
						if h.h.ServeHTTP(w, r); w.status/100 != 2 {
							b.Fatal(w.status)
						}
					}
				})
			}
		}
	}
}

// fakeReads is a log that has one content.
type fakeReads struct {
	Log
	st *still
}

func (f fakeReads) Content(event.Ref) (*event.Content, error) { return f.st.content, nil }
