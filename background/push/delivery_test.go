package push

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
)

// queuesWith returns queue q with a push policy, or without one, and the queues that answers go to.
func queuesWith(revision uint64, push string) []event.QueueView {
	q := event.QueueView{Name: "q", Revision: revision}
	q.Policy.Push = []byte(push)
	return []event.QueueView{{Name: "full"}, {Name: "other"}, q}
}

// inFlight returns an engine that has one delivery in flight, of queue q.
func inFlight(d Deps) (*Engine, *delivery) {
	d.Logger = slog.New(slog.DiscardHandler)
	e := New(d)
	e.update(false)
	q := e.queues["q"]
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying(1)
	return e, &delivery{q: q, t: q.target}
}

// TestAnswerQueueFull: an answer that its queue has no room for waits, but not
// when the answers go elsewhere by now, or nowhere.
func TestAnswerQueueFull(t *testing.T) {
	const push = `{"url":"https://example.com","max_in_flight":1,"answer_to":`
	for name, changed := range map[string]string{
		"another queue": push + `"other"}`, "push taken away": "",
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			asked := make(chan event.SettleOp, 1000)
			queues := queuesWith(1, push+`"full"}`)
			e, d := inFlight(Deps{
				Registry: reg, Queues: func() []event.QueueView { return queues },
				Settle: func(_ context.Context, item event.SettleItem, to string,
					_ *wire.NewMessage) (event.Settled, error) {
					asked <- item.Op
					if to != "" {
						return event.Settled{}, event.Problemf(event.CodeQueueFull, "queue", "full")
					}
					return event.Settled{Status: event.StatusReleased}, nil
				},
			})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer d.finish()
				d.settle(t.Context(), &verdict{op: event.OpAck, answer: []byte("1")})
			}()
			for range 2 {
				require.Equal(t, <-asked, event.OpAck)
			}
			queues = queuesWith(2, changed)
			e.update(false)
			<-ended
			last := event.OpAck
			for len(asked) > 0 {
				last = <-asked
			}
			assert.Equal(t, last, event.OpRelease)
			if changed == "" { // then the queue ends
				e.work.Wait()
			}
			e.Stop(t.Context())
			families, err := reg.Gather()
			must(t, err)
			assert.Equal(t, len(families) > 0, changed != "", "series")
		})
	}
}

// TestDamagedContentIsReleased: a message that cannot be read because a file is damaged costs no
// attempt, and is not leased again at once.
func TestDamagedContentIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []event.SettleOp
		e, d := inFlight(Deps{
			Registry: prometheus.NewRegistry(),
			Queues: func() []event.QueueView {
				return queuesWith(1, `{"url":"https://example.com","max_in_flight":1}`)
			},
			Now: func() int64 { return time.Now().UnixMilli() },
			Content: func(event.Ref) (*event.Content, error) {
				return nil, fmt.Errorf("content: %w", &log.CorruptionError{})
			},
			Settle: func(_ context.Context, item event.SettleItem, _ string, _ *wire.NewMessage) (
				event.Settled, error) {
				if item.Op == event.OpExtend {
					return event.Settled{Status: event.StatusExtended}, nil
				}
				asked = append(asked, item.Op)
				return event.Settled{Status: event.StatusReleased}, nil
			},
		})
		d.m.LeaseExpiresAt = time.Now().Add(time.Minute).UnixMilli()
		began := time.Now()
		d.run()
		assert.True(t, slices.Equal(asked, []event.SettleOp{event.OpRelease}), "asked %v", asked)
		assert.True(t, time.Since(began) == damagedPause, "released after %s", time.Since(began))
		e.Stop(t.Context())
	})
}
