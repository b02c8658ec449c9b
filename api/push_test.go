package api

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/raft/peer"
)

// pushes is a Push that takes some URLs.
type pushes struct{ reason *wire.PushReason }

func (p pushes) Check(v *wire.Push) error {
	if !strings.HasPrefix(v.URL, "https://") {
		return event.Problemf(event.CodeInvalidArgument, "push.url", "push.url must be https")
	}
	v.TimeoutMS = 7
	return nil
}

func (p pushes) Reason(string) *wire.PushReason { return p.reason }

func (p pushes) Unready() []string { return []string{"secret_missing: push of queue q: x"} }

// TestSettleHereCountsLostLeases as it does those of workers.
func TestSettleHereCountsLostLeases(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/answers", "").want(201)
	lost := event.SettleItem{Op: event.OpAck, Lease: event.NewID(1, 1, 0)}
	v, err := h.s.SettleHere(t.Context(), lost, "", nil)
	assert.True(t, err == nil && v.Status == event.StatusRejected, "%+v, %v", v, err)
	answer := &wire.NewMessage{Payload: []byte("1")}
	if v, err := h.s.SettleHere(t.Context(), lost, "answers", answer); err == nil {
		t.Errorf("%+v", v)
	}
	metrics := h.do("GET", "/metrics", "").want(200).Body.String()
	assert.Contains(t, metrics, "\nqlogd_lease_lost_total 2\n")
}

// TestPushReason: who does not lead asks who does.
func TestPushReason(t *testing.T) {
	h := setup(t)
	down := &wire.PushReason{Code: "push_target_down", Detail: "d", LastError: "e", NextProbe: 1000}
	h.s.deps.Push = pushes{down}
	v := &event.QueueView{Name: "q"}
	if r := h.s.pushReason(t.Context(), v); r != nil {
		t.Errorf("a queue without push: %+v", r)
	}
	v.Policy.Push = []byte(`{"url":"https://a/"}`)
	assert.Equal(t, h.s.pushReason(t.Context(), v), down)
	leader := setup(t)
	leader.s.deps.Push = pushes{down}
	h.s.deps.Push = pushes{}
	h.node.leader = "elsewhere"
	h.node.askLeader = func(ctx context.Context, name string, body []byte) ([]byte, error) {
		assert.True(t, name == askPush && string(body) == `"q"`, "asked %s %q", name, body)
		return leader.s.Answers()[name](ctx, peer.Identity{}, body)
	}
	if r := h.s.pushReason(t.Context(), v); !cmp.Equal(r, down) {
		t.Errorf("%+v", r)
	}
	leader.s.deps.Push = pushes{}
	if r := h.s.pushReason(t.Context(), v); r != nil {
		t.Errorf("%+v", r)
	}
}
