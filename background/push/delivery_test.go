package push

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestAnswerQueueFull: an answer that its queue has no room for waits, but not
// when the answers go elsewhere by now, or nowhere.
func TestAnswerQueueFull(t *testing.T) {
	for name, change := range map[string]func(e *Engine, q *queue){
		"another queue": func(_ *Engine, q *queue) {
			q.set(&event.Policy{Push: []byte(`{"url":"https://example.com","answer_to":"other"}`)},
				map[string]uint32{"full": 1, "other": 2})
		},
		"push taken away": func(e *Engine, _ *queue) { e.update(false) },
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			asked := make(chan event.SettleOp, 1000)
			e := New(Deps{
				Logger: slog.New(slog.DiscardHandler), Registry: reg,
				Queues: func() []event.QueueView { return nil },
				Settle: func(_ context.Context, item event.SettleItem, to string,
					_ *wire.NewMessage) (event.Settled, error) {
					asked <- item.Op
					if to != "" {
						return event.Settled{}, event.Problemf(event.CodeQueueFull, "queue", "full")
					}
					return event.Settled{Status: event.StatusReleased}, nil
				},
			})
			q := newQueue(e, "q", 0)
			e.queues["q"] = q
			q.set(&event.Policy{Push: []byte(`{"url":"https://example.com","answer_to":"full"}`)},
				map[string]uint32{"full": 1, "other": 2})
			d := &delivery{q: q, t: q.target}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				d.settle(t.Context(), &verdict{op: event.OpAck, answer: []byte("1")})
			}()
			for range 2 {
				require.Equal(t, <-asked, event.OpAck)
			}
			change(e, q)
			<-ended
			last := event.OpAck
			for len(asked) > 0 {
				last = <-asked
			}
			assert.Equal(t, last, event.OpRelease)
			// The series of a queue without push do not come back.
			families, err := reg.Gather()
			must(t, err)
			found := false
			for _, f := range families {
				found = found || f.GetName() == "qlogd_push_deliveries_total"
			}
			assert.Equal(t, found, name == "another queue", "counted")
		})
	}
}

// TestLeasedTooLate: what was leased while the target went down, or the policy
// changed, is given back unsent.
func TestLeasedTooLate(t *testing.T) {
	policy := func(url string) *event.Policy {
		return &event.Policy{Push: []byte(`{"url":"` + url + `","max_in_flight":1}`)}
	}
	for name, change := range map[string]func(q *queue){
		"down": func(q *queue) {
			q.mu.Lock()
			q.breaker = breaker{open: true, next: time.Now().Add(time.Hour)}
			q.interrupt()
			q.mu.Unlock()
		},
		"changed": func(q *queue) { q.set(policy("https://example.com/b"), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			settled := make(chan event.SettleOp, 10)
			var q *queue
			leases := 0
			e := New(Deps{
				Logger: slog.New(slog.DiscardHandler),
				Now:    func() int64 { return 0 },
				Lease: func(ctx context.Context, _ *event.Lease,
					_ time.Duration) ([]event.LeasedMessage, error) {
					if leases++; leases > 1 {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					change(q)
					return []event.LeasedMessage{{MessageView: event.MessageView{Lease: event.NewID(1, 1, 1), LeaseExpiresAt: 60_000}}}, nil
				},
				Settle: func(_ context.Context, item event.SettleItem, _ string,
					_ *wire.NewMessage) (event.Settled, error) {
					settled <- item.Op
					return event.Settled{Status: event.StatusReleased}, nil
				},
				Content: func(event.Ref) (*event.Content, error) {
					t.Error("it was to be sent")
					return nil, nil
				},
			})
			q = newQueue(e, "q", 0)
			q.set(policy("https://example.com/a"), nil)
			q.lead(true)
			e.work.Go(q.run)
			assert.Equal(t, <-settled, event.OpRelease)
			q.retire()
			e.work.Wait()
		})
	}
}
