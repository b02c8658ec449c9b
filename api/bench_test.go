package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
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
		for i, item := range c.Settle.Items {
			res.Settled[i] = event.Settled{Lease: item.Lease, Status: event.StatusAcked}
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
	lorem := strings.Repeat("lorem ipsum ", 84)
	st := &still{h.node, h.fake, &event.Content{Payload: payload, Binary: true}}
	h.s.deps.Node, h.s.deps.State, h.s.deps.Log = st, st, fakeReads{h.log, st}
	h.s.waiters.leasable = st.Leasable
	for _, n := range []int{1, 100} {
		list := func(one any) []any { return slices.Repeat([]any{one}, n) }
		text := map[string]any{"id": 5, "text": lorem}
		lease := event.NewID(1_700_000_000_000, 8, 1).String()
		for _, c := range []struct {
			name, call string
			body       map[string]any
		}{
			{"bytes", "messages", map[string]any{
				"messages": list(map[string]any{"payload_base64": payload}),
			}},
			{"text", "messages", map[string]any{
				"messages": list(map[string]any{"payload": text, "key": "k"}),
			}},
			{"lease", "lease", map[string]any{"max_messages": n}},
			{"ack", "ack", map[string]any{"lease_ids": list(lease)}},
		} {
			for _, media := range []string{typeJSON, typeMsgpack} {
				body, err := wire.Marshal(c.body)
				if media == typeMsgpack {
					body, err = msgpack.Marshal(c.body)
				}
				require.NoError(b, err)
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
